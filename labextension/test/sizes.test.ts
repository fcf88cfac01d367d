import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ISizeRow } from '../src/protocol';
import { filterSizes, sizeColumns, sortSizes } from '../src/azure/sizeText';
import { trans } from './english';

const size = (name: string, more: Partial<ISizeRow> = {}): ISizeRow => ({
  name,
  gpus: 0,
  gpu: '',
  gpu_memory: null,
  cpus: 4,
  memory: null,
  price: null,
  price_low: null,
  fit: null,
  fit_low: null,
  retirement: '',
  retired: false,
  ...more
});
const t4 = size('Standard_NC4as_T4_v3', { gpus: 1, gpu: 'NVIDIA T4 16 GB', price: 0.53, price_low: 0.1, fit: 6 });
const v100 = size('Standard_NC6s_v3', { gpus: 1, gpu: 'NVIDIA V100 16 GB', price: 3.06, fit: 0, retirement: 'retired 2025-09-30', retired: true });
const cpu = size('Standard_DS3_v2');
const all = [cpu, v100, t4];

test('sizes are filtered by all words and by their GPUs', () => {
  assert.deepEqual(filterSizes(all, 'nc nvidia', true), [v100, t4]);
  assert.deepEqual(filterSizes(all, 't4', false), [t4]);
  assert.deepEqual(filterSizes(all, '', false), all);
  assert.deepEqual(filterSizes(all, 'ds3', true), []);
});

test('sizes without a price are last in both directions', () => {
  const price = sizeColumns(trans, false, String)[4];
  assert.deepEqual(sortSizes(all, price, false), [t4, v100, cpu]);
  assert.deepEqual(sortSizes(all, price, true), [v100, t4, cpu]);
});

test('a row says GPU, price and quota, of low-priority machines their own', () => {
  const texts = (low: boolean) => sizeColumns(trans, low, String).map(column => column.text(t4));
  assert.deepEqual(texts(false), ['Standard_NC4as_T4_v3', '1 × NVIDIA T4 16 GB', '4', '?', '0.53', '6', '']);
  assert.deepEqual(texts(true).slice(4, 6), ['0.10', '?']);
});
