import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { timeAt } from '../src/charts/brush';

const plot = { area: { left: 50, right: 150, top: 0, bottom: 100 }, span: [1000, 1200] as const };

test('the place of a pointer is a time between the edges of the chart', () => {
  assert.equal(timeAt(plot, 100), 1100);
  assert.equal(timeAt(plot, 20), 1000);
  assert.equal(timeAt(plot, 999), 1200);
});
