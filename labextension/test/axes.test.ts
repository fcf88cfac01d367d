import * as assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { metricAxis, roundAxis, stepAxis, timeAxis } from '../src/charts/scale';
import { amount, number } from '../src/format';

// `tests/kernel/test_chart_axes.py` reads it, too: live and ended charts have the same axes and values.
const cases = JSON.parse(readFileSync('tests/golden/axes.json', 'utf8'));

const made: Record<string, (...args: any[]) => any> = {
  round: roundAxis,
  metric: metricAxis,
  step: stepAxis,
  time: seconds => timeAxis(0, seconds),
  number,
  amount
};

for (const [kind, rows] of Object.entries<any[]>(cases)) {
  test(`${kind}: what the page makes is what Python makes`, () => {
    for (const [args, expected] of rows) {
      const found = made[kind](...args);
      if (typeof expected === 'string') {
        assert.equal(found, expected, JSON.stringify(args));
        continue;
      }
      assert.deepEqual(found.labels, expected.labels, JSON.stringify(args));
      [found.min, found.max, ...found.ticks].forEach((value: number, i) => {
        const wanted = [expected.min, expected.max, ...expected.ticks][i];
        assert.ok(Math.abs(value - wanted) <= 1e-9 * Math.max(1e-9, Math.abs(wanted)), `${JSON.stringify(args)}: ${value} ${wanted}`);
      });
    }
  });
}

test('an axis in MiB is that in bytes', () => {
  const [bytes, mib] = [roundAxis(41 * 2 ** 30, 'bytes'), roundAxis(41 * 2 ** 10, 'MiB')];
  assert.deepEqual(mib.labels, bytes.labels);
  assert.equal(mib.max * 2 ** 20, bytes.max);
});
