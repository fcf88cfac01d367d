import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { MinMaxHistory } from '../src/charts/series';

/** A generator of its own: the same numbers in every run. */
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const close = (a: number, b: number, what: string) =>
  assert.ok((Number.isNaN(a) && Number.isNaN(b)) || Math.abs(a - b) <= 1e-3 * Math.max(1, Math.abs(b)), `${what}: ${a} ${b}`);

for (const [ticks, buckets, seed] of [
  [5, 8, 1],
  [8, 8, 2],
  [9, 8, 3],
  [100, 8, 4],
  [1000, 16, 5],
  [4097, 64, 6]
]) {
  test(`buckets equal those made from all ${ticks} ticks at once`, () => {
    const next = random(seed);
    const columns = 3;
    const rows = Array.from({ length: ticks }, () =>
      Float32Array.from({ length: columns }, (_, c) => (next() < 0.2 + 0.3 * c ? NaN : 100 * next() - 20))
    );
    const history = new MinMaxHistory(columns, buckets);
    rows.forEach((row, i) => history.push(1000 + i, row));
    const width = history.width;
    assert.equal(history.length, Math.ceil(ticks / width));
    assert.equal(history.partial, ticks - (history.length - 1) * width);
    assert.ok(width === 1 || history.length > buckets / 2, 'no more is merged than has to be');
    for (let b = 0; b < history.length; b++) {
      assert.equal(history.t(b), 1000 + b * width);
      for (let c = 0; c < columns; c++) {
        const known = rows.slice(b * width, (b + 1) * width).map(row => row[c]).filter(v => !Number.isNaN(v));
        const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [NaN, NaN];
        close(history.min(c, b), low, 'min');
        close(history.max(c, b), high, 'max');
        close(history.mean(c, b), known.reduce((a, v) => a + v, 0) / known.length, 'mean');
      }
    }
  });
}

test('a state that was taken over goes on as the original', () => {
  const next = random(7);
  const one = new MinMaxHistory(2, 8);
  const two = new MinMaxHistory(2, 8);
  const row = () => Float32Array.from([next(), next()]);
  for (let i = 0; i < 21; i++) {
    one.push(i, row());
  }
  const n = one.length;
  const block = (get: (c: number, b: number) => number) => [0, 1].flatMap(c => Array.from({ length: n }, (_, b) => get(c, b)));
  const values = [...block((c, b) => one.min(c, b)), ...block((c, b) => one.mean(c, b)), ...block((c, b) => one.max(c, b))];
  two.load(Float64Array.from({ length: n }, (_, b) => one.t(b)), Float32Array.from(values), n, one.width, one.partial);
  for (let i = 21; i < 60; i++) {
    const values = row();
    one.push(i, values);
    two.push(i, values);
  }
  assert.deepEqual([two.length, two.width, two.partial], [one.length, one.width, one.partial]);
  for (let b = 0; b < one.length; b++) {
    assert.equal(two.t(b), one.t(b));
    for (const c of [0, 1]) {
      assert.equal(two.min(c, b), one.min(c, b));
      assert.equal(two.max(c, b), one.max(c, b));
      close(two.mean(c, b), one.mean(c, b), 'mean');
    }
  }
});
