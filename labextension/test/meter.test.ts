import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { Meter } from '../src/kernel/model';

test('what the GPUs of one target did is not said of the next one in use', () => {
  const told: (number | null)[] = [];
  const meter = new Meter(value => told.push(value));
  meter.target('cluster');
  meter.event({ type: 'meter', util: 84 } as Parameters<Meter['event']>[0]);
  meter.target('cluster');
  assert.deepEqual(told, [84]);
  meter.target('local');
  assert.deepEqual(told, [84, null]);
  meter.event({ type: 'meter', util: 3 } as Parameters<Meter['event']>[0]);
  assert.deepEqual(told, [84, null, 3]);
});
