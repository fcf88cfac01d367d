import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { same } from '../src/charts/chart';
import { area } from '../src/charts/scale';
import { lineData } from '../src/output/charts';
import { oldCharts } from '../src/output/oldCharts';
import { heatCells, normalise } from '../src/record';

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
    assert.deepEqual(oldCharts(record).charts, []);
  }
  const record = normalise({ truth: 'x', summary: 3, metrics_hidden: 'x', kind: 1, view: null, window: 'x' });
  assert.deepEqual(
    [record.truth, record.summary, record.metrics_hidden, record.kind, record.view, record.window],
    [null, {}, 0, 'run', 'run', 600]
  );
  assert.equal(normalise({ truth: { verdict: 'not used', detail: 'd' } }).truth?.cause, '');
});

const AXIS = { min: 0, max: 100, ticks: [0, 100], labels: ['0 %', '100 %'] };

test('a chart is drawn from its description and the record', () => {
  const chart = {
    key: 'gpu util',
    title: 'GPU utilization',
    note: 'dashed: SM activity',
    value: '20 %',
    unit: '%',
    x: ['gpu', 't'],
    y: AXIS,
    series: [
      { data: ['gpu', 'gpus', 1, 'peak'], label: 'GPU 1 peak', color: 1, style: 'faint' },
      { data: ['gpu', 'gpus', 1, 'util'], label: 'GPU 1', color: 1 }
    ],
    levels: [{ value: 7, label: 'limit 7 W' }]
  };
  const charts = { charts: [chart], start: 100, time: { ...AXIS, labels: ['0:00', '1:40'] }, phases: [{ name: 'queued', start: 0, end: 9 }] };
  const record = normalise({ gpu: { t: [100, 150], gpus: [{}, { util: [10, 20], peak: [15, 20] }] }, charts });
  const data = lineData(record, record.charts.charts[0], record.charts, trans);
  assert.equal(data.title, 'GPU utilization, dashed: SM activity');
  assert.deepEqual([data.last, [...(data.x as number[])], data.yAxis, data.levels], ['20 %', [0, 50], AXIS, chart.levels]);
  assert.deepEqual(data.series.map(({ name, y, faint }) => [name, y, faint]), [
    ['GPU 1 peak', [15, 20], true],
    ['GPU 1', [10, 20], false]
  ]);
  assert.deepEqual(data.xAxis.labels, ['0:00', '1:40']);
  assert.deepEqual(data.shades, charts.phases);
});

test('a chart whose data are missing is empty', () => {
  const charts = { charts: [{ key: 'gpu util', series: [{ data: ['gpu', 'gpus', 9, 'util'] }], band: ['gpu', 'x'], x: ['gpu', 't'] }] };
  const record = normalise({ charts });
  const data = lineData(record, record.charts.charts[0], record.charts, trans);
  assert.deepEqual([data.x, data.series[0].y, data.yAxis], [[], [], null]);
});

test('a record of an earlier version has charts of its series', () => {
  const gpu = (index: number) => ({ index, util: [10, 20], peak: [10, 60], memory: [2 ** 30, 2 ** 31], power: [null, null] });
  const record = normalise({
    metrics: { loss: { step: [0, 10], value: [3, 1], last: 1 } },
    gpu: { t: [100, 200], gpus: [gpu(0), gpu(1)] },
    telemetry: { t: [90, 190], cpu: [50, 150], memory: [1, 2] }
  });
  const { charts, start, time } = oldCharts(record);
  assert.deepEqual(charts.map(({ key }) => key), ['metric loss', 'gpu util', 'gpu memory', 'host cpu', 'host memory']);
  assert.deepEqual([start, time?.max], [90, 110]);
  assert.deepEqual(charts[1].series.map(({ label, color }) => [label, color]), [
    ['GPU 0', 0],
    ['GPU 1', 1]
  ]);
  assert.deepEqual(charts[2].y?.labels, ['0 GiB', '0.8 GiB', '1.6 GiB', '2.4 GiB']);
  const many = normalise({ gpu: { t: [1, 2], gpus: [gpu(0)], util: { mean: [50, null], low: [10, null], high: [90, null] } } });
  assert.deepEqual(oldCharts(many).charts[0].band, ['gpu', 'util']);
  assert.deepEqual(oldCharts(normalise({})).charts, []);
});

test('heat maps are two hex digits a cell', () => {
  const record = normalise({ gpu: { gpus: [{}, {}], heat: { labels: ['0:0', '1:3'], columns: 2, cells: '0064ff0a' } } });
  const heat = record.gpu?.heat;
  assert.ok(heat);
  assert.deepEqual([...heatCells(heat)], [0, 100, NaN, 10]);
  assert.equal(normalise({ gpu: { gpus: [{}], heat: { labels: ['0:0'], columns: 2, cells: '00' } } }).gpu?.heat, null);
});

test('bands and holes of a chart', () => {
  const id = (x: number) => x;
  assert.equal(area([0, 1, 2, 3], { low: [0, 0, null, 1], high: [1, 2, 3, 4] }, id, id), 'M0.0,1.0L1.0,2.0L1.0,0.0L0.0,0.0ZM3.0,4.0L3.0,1.0Z');
  const data: any = { x: [0], series: [{ name: 'a', y: [3] }], levels: [{ name: 'size', value: 9 }] };
  assert.ok(same(data, { ...data, series: [{ name: 'a', y: [3] }] }));
  assert.ok(!same(data, { ...data, series: [{ name: 'a', y: [4] }] }));
});
