import * as assert from 'node:assert/strict';
import { band, lines, means, nearestRow, NodeHistory } from '../src/charts/series';
import { test } from 'node:test';
import { dashed } from '../src/widgets/frames';

function history(values: (i: number) => number[], n: number, capacity = 3600, at = (i: number) => 1000 + i): NodeHistory {
  const found = new NodeHistory(values(0).length, capacity, 64, 1);
  for (let i = 0; i < n; i++) {
    found.take({ node: 0, first: i, count: 1, t: Float64Array.of(at(i)), y: Float32Array.from(values(i)) });
  }
  return found;
}

test('few ticks are drawn as they are, each row in memory of its own', () => {
  const rows = history(i => [i, 2 * i], 50).rows(1010);
  const { x, y } = lines({ rows, columns: [1, 0] }, 1010, 1049, 300);
  assert.equal(x[0], 1009, 'one more, so that the line reaches the edge');
  assert.equal(x.length, 41);
  assert.deepEqual([y[0][1], y[1][1]], [20, 10]);
  for (const row of [x, ...y]) {
    assert.equal(row.buffer.byteLength, row.byteLength);
  }
});

test('many ticks keep every high and low, in bounds', () => {
  const rows = history(i => [i === 777 ? 100 : i === 1234 ? -100 : Math.sin(i)], 3000).rows(1000);
  const { x, y } = lines({ rows, columns: [0] }, 1000, 4000, 300);
  assert.ok(x.length <= 302, `${x.length}`);
  assert.equal(Math.max(...y[0]), 100);
  assert.equal(Math.min(...y[0]), -100);
  assert.ok(x.every((t, i) => !i || t >= x[i - 1]));
});

test('groups do not change when the window moves', () => {
  const all = history(i => [(i * 7919) % 101], 3000).rows(1000);
  const points = (t0: number, t1: number) => {
    const { x, y } = lines({ rows: all, columns: [0] }, t0, t1, 300);
    return new Map([...x].map((t, i) => [t, y[0][i]]));
  };
  const [a, b] = [points(1500, 3500), points(1501, 3501)];
  const inner = [...a.keys()].filter(t => t > 1530 && t < 3470);
  assert.ok(inner.length > 200 && inner.every(t => a.get(t) === b.get(t)));
});

test('what the ring has lost comes from the min-max history, spikes included', () => {
  const found = history(i => [i === 500 ? 99 : 1], 5000, 100);
  assert.equal(found.rows(5950).raw, true);
  const { x, y } = lines({ rows: found.rows(1000), columns: [0] }, 1000, 6000, 300);
  assert.equal(Math.max(...y[0]), 99);
  assert.equal(x[0], 1000);
});

test('no line crosses a pause of the sampler, nor a missing value', () => {
  const rows = history(i => [i === 3 ? NaN : i], 20, 3600, i => (i < 10 ? i : 1000 + i)).rows(0);
  const { x, y } = lines({ rows, columns: [0] }, 0, 2000, 300);
  assert.equal(x.length, 21);
  assert.ok(Number.isNaN(y[0][3]) && Number.isNaN(y[0][10]) && y[0][11] === 10);
});

test('a band is the extremes and the mean over all GPUs of all nodes', () => {
  const one = history(() => [10, 20], 100);
  const { x, y } = band([{ rows: one.rows(1000), columns: [0, 1] }], 1000, 1100, 300);
  assert.equal(x.length, 100);
  assert.deepEqual(y.map(row => row[50]), [20, 15, 10]);
  const two = history(i => [i % 2 ? 90 : NaN], 100, 3600, i => 1000.4 + i);
  const both = band([{ rows: one.rows(1000), columns: [0, 1] }, { rows: two.rows(1000), columns: [0] }], 1000, 1100, 300);
  const seen = new Set(Array.from(both.x, (_, i) => both.y.map(row => row[i]).join()));
  assert.ok(seen.has('90,40,10') && seen.has('20,15,10'), [...seen].join(' '));
  assert.equal(band([{ rows: history(() => [NaN], 5).rows(0), columns: [0] }], 0, 2000, 300).x.length, 0);
});

test('the heat map has the mean of each stretch and holes where nothing is known', () => {
  const rows = history(i => [i < 50 ? 20 : i < 60 ? NaN : 80], 100).rows(1000);
  const found = means(rows, 0, 1000, 1100, 10);
  assert.deepEqual([...found], [20, 20, 20, 20, 20, NaN, 80, 80, 80, 80]);
  assert.ok([...means(rows, 0, 1000, 1040, 40)].every(value => value === 20), 'no stripes between ticks');
});

test('the value under the pointer is the nearest tick, and none in a hole', () => {
  const rows = history(i => [i], 20, 3600, i => (i < 10 ? i : 1000 + i)).rows(0);
  assert.equal(nearestRow(rows, 4.4), 4);
  assert.equal(nearestRow(rows, 4.6), 5);
  assert.equal(nearestRow(rows, 500), -1);
});

test('a value without neighbors is a dash', () => {
  const once = dashed({ x: Float64Array.of(500), y: [Float32Array.of(3)] }, 1000);
  assert.deepEqual([[...once.x], [...once.y[0]]], [[500, 508], [3, 3]]);
  const x = Float64Array.of(0, 4, 8);
  const holes = dashed({ x, y: [Float32Array.of(1, NaN, 2), Float32Array.of(5, 6, 7)] }, 1000);
  assert.deepEqual([...holes.x], [0, 2, 4, 8, 16]);
  assert.deepEqual([...holes.y[0]], [1, 1, NaN, 2, 2]);
  assert.deepEqual([...holes.y[1]], [5, 5, 6, 7, 7]);
  const line = { x, y: [Float32Array.of(1, 2, NaN)] };
  assert.equal(dashed(line, 1000).x, x);
});
