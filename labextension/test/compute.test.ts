import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ITargetRow } from '../src/protocol';
import { details, facts, gpusText, nodesText, price, runsText, stateText } from '../src/sections/targetText';
import { trans } from './english';

const row = (more: Partial<ITargetRow>): ITargetRow => ({
  name: 'big',
  kind: 'fake',
  title: 'Fake',
  current: false,
  state: 'ready',
  detail: '',
  size: '',
  nodes: null,
  max_nodes: null,
  cpus: null,
  memory: null,
  gpus: null,
  gpu_name: '', gpu_rows: [], gpus_text: '',
  price: null,
  price_node: null,
  currency: '',
  quota: '',
  stops: '',
  running: 0,
  queued: 0,
  checked_at: 0,
  fields: {},
  acts: [],
  work: null,
  ...more
});

test('a price shows its currency; a free target shows no price', () => {
  assert.equal(price(null, 'USD', trans, 'en-US'), '');
  assert.equal(price(7.346, 'USD', trans, 'en-US'), '$7.35/h');
  assert.equal(price(0, 'EUR', trans, 'en-US'), '€0.00/h');
  assert.equal(price(0.0104, 'USD', trans, 'en-US'), '$0.0104/h');
  assert.equal(price(2, 'credits', trans, 'en-US'), '2.00 credits/h');
  assert.equal(price(2, '', trans, 'en-US'), '2.00/h');
});

test('what is unknown is left out', () => {
  assert.deepEqual(facts(row({}), trans), []);
  assert.deepEqual(details(row({}), trans), [['Kind', 'Fake']]);
  assert.equal(gpusText(row({ gpus: 0 }), trans), 'no GPU');
});

test('machines, GPUs and runs are counted', () => {
  assert.equal(gpusText(row({ gpus: 4, gpu_name: 'T4' }), trans), '4 × T4');
  assert.equal(gpusText(row({ gpus: 1 }), trans), '1 GPU');
  assert.equal(nodesText(row({ nodes: 2, max_nodes: 4 }), trans), '2 of 4 nodes');
  assert.equal(nodesText(row({ nodes: 1, max_nodes: 1 }), trans), '1 of 1 node');
  assert.equal(nodesText(row({ nodes: 1 }), trans), '1 node');
  assert.equal(runsText(row({ running: 2, queued: 1 }), trans), '2 running, 1 queued');
  assert.equal(runsText(row({ queued: 1 }), trans), '1 queued');
});

test('the details say when a machine stops', () => {
  const text = 'stops after 30 min idle';
  assert.deepEqual(details(row({ stops: text }), trans).pop(), ['Power', text]);
});

test('the price of a node is not said twice', () => {
  const labels = (more: Partial<ITargetRow>) => details(row({ currency: 'USD', ...more }), trans).map(([label]) => label);
  assert.deepEqual(labels({ price: 2, price_node: 2 }), ['Kind', 'Price now']);
  assert.deepEqual(labels({ price: 4, price_node: 2 }), ['Kind', 'Price now', 'Price per node']);
});

test('a state nobody knows is one that was not asked for', () => {
  assert.equal(stateText('ready', trans), 'Ready');
  assert.equal(stateText('', trans), 'Not checked yet');
});
