import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { IHeatSize, nodesOf, topsOf } from '../src/charts/heat';
import { columnsOf, fieldChart, HeatCells, when } from '../src/sections/gpuBoard';
import { GpuStore } from '../src/sections/gpuStore';

const trans: any = {
  __: (text: string, ...values: unknown[]) => values.reduce((t: string, v, i) => t.replace(`%${i + 1}`, String(v)), text)
};

test('rows of a node touch; nodes are apart', () => {
  const size: IHeatSize = { left: 0, right: 0, top: 0, bottom: 0, gap: 2, key: false, rows: [[8, 10]] };
  const rows = [{ node: 0 }, { node: 0 }, { node: 1 }, { node: 1 }];
  assert.deepEqual(nodesOf(rows), [
    { node: 0, first: 0, rows: 2 },
    { node: 1, first: 2, rows: 2 }
  ]);
  assert.deepEqual(topsOf(rows, size), [0, 10, 22, 32, 42]);
  assert.deepEqual(topsOf([], size), [0]);
});

test('the newest tick is at the right edge, and a young stream leaves the left empty', () => {
  const store = new GpuStore();
  const head: any = { source: 'a', first: true, labels: ['GPU 0'], names: ['x'], memory: [null], period: 1, note: '' };
  const y = Float32Array.from([0, 0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 3]);
  store.push({ head, ticks: { node: 0, first: 0, count: 3, t: Float64Array.from([100, 101, 102]), y } });
  assert.deepEqual(columnsOf(store), { count: 60, empty: 57 });
  const chart = fieldChart(trans, store, 'util');
  assert.deepEqual([[...chart.x as Float64Array], chart.xAxis.ticks, chart.last], [[0, 1, 2], [-57, 2], '3 %']);
  assert.deepEqual([...chart.series[0].y as Float32Array], [1, 2, 3]);
  assert.deepEqual(chart.xAxis.labels, ['1 min ago', 'now']);
  assert.deepEqual([when(trans, store, 2), when(trans, store, 0)], ['now', '2 s ago']);
  store.ended = true;
  assert.deepEqual([when(trans, store, 2), when(trans, store, 0)], ['at the end', '2 s before the end']);
});

test('cells of the heat map computed as ticks come equal those computed at once', () => {
  const store = new GpuStore();
  const cells = new HeatCells();
  for (let i = 0; i < 1400; i += 1 + (i % 7)) {
    const head: any = { source: 'a', first: !i, labels: ['GPU 0', 'GPU 1'], names: [], memory: [], period: 1, note: '' };
    const y = Float32Array.of(0, 0, i % 101, i % 13 ? (3 * i) % 101 : NaN, 0, 0);
    store.push({ head, ticks: { node: 0, first: i, count: 1, t: Float64Array.of(i), y } });
    const each = i < 300 ? 1 : 3;
    const whole = new HeatCells();
    const before = cells.first;
    cells.update(store, each);
    whole.update(store, each);
    assert.deepEqual([cells.first, cells.columns], [whole.first, whole.columns]);
    // The first column keeps the ticks that the store has let go of.
    const cut = (found: HeatCells) => [...found.cells].filter((_, at) => at % found.columns);
    assert.deepEqual(cut(cells), cut(whole), `at ${i} after ${before}`);
  }
});
