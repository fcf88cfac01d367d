import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { metricOf, timeOf } from '../src/children';
import { normalise } from '../src/record';

const CHILD = { id: 'a_1', name: 'a_1', kind: 'trial', state: 'running', metric: 'loss', value: 0.125, started: 10 };

test('children of a saved record become whole, and what has a wrong type is dropped', () => {
  const record = normalise({ children: [{ ...CHILD, best: 1, ended: 'x' }, 3], children_hidden: 'x' });
  const [child, other] = record.children;
  assert.deepEqual([child.best, child.ended, child.detail, child.url], [false, null, '', '']);
  assert.equal(other.name, '?');
  assert.equal(record.children_hidden, 0);
  assert.deepEqual(normalise({}).children, []);
});

test('metric and time of a child', () => {
  const [child] = normalise({ children: [CHILD] }).children;
  assert.equal(metricOf(child), 'loss 0.125');
  assert.equal(metricOf({ ...child, metric: '' }), '');
  assert.equal(timeOf(child, 14.4), '4.00 s');
  assert.equal(timeOf({ ...child, ended: 22.5 }, 99), '12.5 s');
  assert.equal(timeOf({ ...child, started: null }, 99), '');
});
