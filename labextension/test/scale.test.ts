import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { extent, linear, nearest, path, ticks, timeTicks } from '../src/charts/scale';

test('extent ignores what is missing', () => {
  assert.deepEqual(extent([null, 3, -1, NaN, 2]), [-1, 3]);
  assert.equal(extent([null, NaN]), null);
  assert.equal(extent([]), null);
});

test('ticks are round and inside the range', () => {
  assert.deepEqual(ticks(0, 1, 4), [0, 0.5, 1]);
  assert.deepEqual(ticks(0.03, 0.31, 3), [0.1, 0.2, 0.3]);
  assert.deepEqual(ticks(0, 3, 10, true), [0, 1, 2, 3]);
  assert.deepEqual(ticks(4, 4, 3), [4]);
  assert.deepEqual(timeTicks(100, 4), [0, 30, 60, 90]);
});

test('a line has gaps and lone points', () => {
  const same = linear(0, 10, 0, 10);
  assert.equal(path([0, 1, 2, 3], [1, 2, null, 4], same, same), 'M0.0,1.0L1.0,2.0M3.0,4.0h0.01');
  assert.equal(path([], [], same, same), '');
});

test('nearest', () => {
  assert.equal(nearest([0, 1, 5, 9], 6), 2);
  assert.equal(nearest([0, 1, 5, 9], 100), 3);
  assert.equal(nearest([], 1), -1);
});
