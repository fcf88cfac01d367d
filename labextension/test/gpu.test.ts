import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { same, yExtent } from '../src/charts/chart';
import { area } from '../src/charts/scale';
import { gpuCharts, shades } from '../src/output/charts';
import { heatCells, heatRow, normalise } from '../src/record';

const trans: any = {
  __: (text: string, ...values: unknown[]) => values.reduce((t: string, v, i) => t.replace(`%${i + 1}`, String(v)), text)
};

test('a record without GPUs, or with nonsense for them, is a record', () => {
  for (const gpu of [undefined, null, 3, 'x', []]) {
    assert.equal(normalise({ gpu }).gpu, null);
  }
  for (const gpu of [{}, { t: 3, gpus: 'x', heat: {}, util: 5, processes: [null], now: [1], age: 'x' }]) {
    const record = normalise({ gpu });
    assert.deepEqual([record.gpu?.t, record.gpu?.gpus, record.gpu?.heat, record.gpu?.util], [[], [], null, null]);
    assert.equal(gpuCharts(record, trans).size, 0);
  }
  const record = normalise({ truth: 'x', summary: 3, metrics_hidden: 'x', kind: 1, view: null, window: 'x' });
  assert.deepEqual(
    [record.truth, record.summary, record.metrics_hidden, record.kind, record.view, record.window],
    [null, {}, 0, 'run', 'run', 600]
  );
  assert.equal(normalise({ truth: { verdict: 'not used', detail: 'd' } }).truth?.cause, '');
});

test('a series that is too short has holes, not zeros', () => {
  const record = normalise({ gpu: { t: [1, 2, 3], gpus: [{ util: [5, 'x'], memory: null }] } });
  assert.deepEqual(record.gpu?.gpus[0].util, [5, null, null]);
  assert.deepEqual(record.gpu?.gpus[0].memory, []);
});

test('charts of few GPUs are lines; what no device tells has no chart', () => {
  const gpu = (index: number) => ({
    index,
    util: [10, 20],
    peak: [10, 60],
    memory: [2 ** 30, 2 ** 31],
    memory_total: 2 ** 34,
    power: [null, null]
  });
  const record = normalise({ gpu: { t: [100, 200], gpus: [gpu(0), gpu(1)] } });
  const charts = gpuCharts(record, trans);
  assert.deepEqual([...charts.keys()], ['gpu util', 'gpu memory']);
  const util = charts.get('gpu util');
  assert.deepEqual(util?.series.map(s => [s.name, s.color, s.faint === true]), [
    ['GPU 0 peak', 0, true],
    ['GPU 0', 0, false],
    ['GPU 1 peak', 1, true],
    ['GPU 1', 1, false]
  ]);
  assert.equal(util?.yMax, 100);
  const memory = charts.get('gpu memory');
  assert.deepEqual(memory?.levels, [{ name: 'size', value: 2 ** 34 }]);
  assert.equal(memory?.last, '2 GiB');
});

test('GPUs with different limits have a dashed line each', () => {
  const gpu = (index: number, limit: number | null) => ({ index, power: [1, 2], power_limit: limit });
  const gpus = [gpu(0, 700), gpu(1, 350), gpu(2, 700), gpu(3, null)];
  const charts = gpuCharts(normalise({ gpu: { t: [1, 2], gpus } }), trans);
  assert.deepEqual(charts.get('gpu power')?.levels, [
    { name: 'limit', value: 350 },
    { name: 'limit', value: 700 }
  ]);
});

test('charts of many GPUs are a band', () => {
  const util = { mean: [50, null], low: [10, null], high: [90, null] };
  const gpus = Array.from({ length: 64 }, (_, index) => ({ index }));
  const charts = gpuCharts(normalise({ gpu: { t: [1, 2], gpus, util } }), trans);
  const chart = charts.get('gpu util');
  assert.deepEqual(chart?.band?.high, [90, null]);
  assert.equal(chart?.last, '10 % to 90 %');
});

test('phases beside running are shaded', () => {
  const record = normalise({
    seen_at: 1100,
    phases: [
      { name: 'queued', start: 1000, end: 1010 },
      { name: 'running', start: 1010, end: 1050 },
      { name: 'finalizing', start: 1050, end: null }
    ]
  });
  assert.deepEqual(shades(record, 1000), [
    { name: 'queued', from: 0, to: 10 },
    { name: 'finalizing', from: 50, to: 100 }
  ]);
});

test('heat maps are two hex digits a cell', () => {
  const record = normalise({ gpu: { heat: { labels: ['0:0', '1:3'], columns: 2, cells: '0064ff0a' } } });
  const heat = record.gpu?.heat;
  assert.ok(heat);
  assert.deepEqual([...heatCells(heat)], [0, 100, NaN, 10]);
  assert.deepEqual(heat.labels.map(heatRow), [{ node: 0, index: 0 }, { node: 1, index: 3 }]);
  assert.equal(normalise({ gpu: { heat: { labels: ['0:0'], columns: 2, cells: '00' } } }).gpu?.heat, null);
});

test('bands, levels and holes of a chart', () => {
  const id = (x: number) => x;
  assert.equal(area([0, 1, 2, 3], { low: [0, 0, null, 1], high: [1, 2, 3, 4] }, id, id), 'M0.0,1.0L1.0,2.0L1.0,0.0L0.0,0.0ZM3.0,4.0L3.0,1.0Z');
  const data: any = { x: [0], series: [{ name: 'a', y: [3] }], levels: [{ name: 'size', value: 9 }] };
  assert.deepEqual(yExtent(data), [3, 9]);
  assert.equal(yExtent({ ...data, series: [{ name: 'a', y: [null] }] }), null);
  assert.ok(same(data, { ...data, series: [{ name: 'a', y: [3] }] }));
  assert.ok(!same(data, { ...data, series: [{ name: 'a', y: [4] }] }));
});
