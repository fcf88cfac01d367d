import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { choiceOf, drawn, MAX_SHOWN, MetricChoice, smooth } from '../src/charts/metricChoice';
import { metricAxis } from '../src/charts/scale';
import { joined } from '../src/charts/values';
import { trans } from './english';

const NAMES = ['a', 'b', 'c', 'd', 'e', 'f'];

test('the first metrics are charted until others are chosen', () => {
  const choice = new MetricChoice();
  assert.deepEqual(choice.shown(NAMES), NAMES.slice(0, MAX_SHOWN));
  choice.choose(NAMES, 'f', true);
  choice.choose(NAMES, 'b', false);
  assert.deepEqual(choice.shown(NAMES), ['a', 'c', 'd', 'f']);
  assert.deepEqual(choice.shown(['f', 'g']), ['f'], 'a metric that comes later is not charted unasked');
  assert.equal(choiceOf('local/x'), choiceOf('local/x'));
});

test('the moving average starts at the first value and keeps gaps', () => {
  const found = smooth([4, 4, null, 4, 0], 0.9);
  assert.deepEqual(found.slice(0, 2), [4, 4]);
  assert.ok(Number.isNaN(found[2]));
  assert.ok(found[4] > 2 && found[4] < 4);
});

test('a logarithmic axis has no place for zero', () => {
  const found = drawn([100, 0, -1, 0.01], { smoothing: 0, log: true });
  assert.deepEqual([found[0], found[3]], [2, -2]);
  assert.ok(Number.isNaN(found[1]) && Number.isNaN(found[2]));
  assert.deepEqual(metricAxis(-3, 0, true).labels, ['0.001', '0.01', '0.1', '1']);
  const narrow = metricAxis(Math.log10(0.2), Math.log10(0.9), true);
  assert.ok(narrow.labels.includes('0.2') && narrow.labels.includes('0.5'), String(narrow.labels));
});

test('a range and its whole have a common unit once', () => {
  const cases: [string[], string, string][] = [
    [['13.8 GiB', '17.2 GiB'], '80 GiB', '13.8 to 17.2 of 80 GiB'],
    [['900 MiB', '2 GiB'], '80 GiB', '900 MiB to 2 GiB of 80 GiB'],
    [['7 %', '7 %'], '', '7 %'],
    [['7 %', '9 %'], '', '7 to 9 %'],
    [['n/a'], '', 'n/a']
  ];
  cases.forEach(([ends, whole, text]) => assert.equal(joined(ends, whole, trans), text));
});
