import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { FormCache } from '../src/kernel/session';
import { Meter } from '../src/kernel/model';
import type { IGpuFrame } from '../src/panel/tokens';
import type { IKindsReply, PanelEvent } from '../src/protocol';

const reply = { kinds: [], submit: [], connect: [], version: 2, ok: true } as IKindsReply;

test('forms are requested once, and again when they may have changed', async () => {
  let requests = 0;
  const forms = new FormCache(async () => ((requests += 1), reply));
  await Promise.all([forms.get(), forms.get()]);
  assert.equal(requests, 1);
  forms.forget();
  await forms.get();
  assert.equal(requests, 2);
});

test('a refusal is not kept, and one of before takes nothing away', async () => {
  const answers: (() => Promise<IKindsReply>)[] = [
    () => Promise.reject(new Error('No answer.')),
    () => Promise.resolve(reply)
  ];
  let requests = 0;
  const forms = new FormCache(() => answers[requests++]());
  const first = forms.get();
  forms.forget();
  const second = forms.get();
  await assert.rejects(first, /No answer/);
  assert.equal(await second, reply);
  assert.equal(await forms.get(), reply);
  assert.equal(requests, 2);
});

test('the meter tells what is new of the target in use', () => {
  const reported: (number | null)[] = [];
  const meter = new Meter(value => reported.push(value));
  const frame = (source: string, util: number) =>
    ({ head: { source }, ticks: { count: 1, y: Float32Array.of(0, 0, util, 0) } }) as unknown as IGpuFrame;
  meter.frame(frame('target:box', 30), 'box');
  meter.frame(frame('target:box', 30), 'box');
  meter.frame(frame('target:other', 99), 'box');
  meter.event({ type: 'meter', util: 40 } as PanelEvent);
  meter.event({ type: 'beat' } as PanelEvent);
  meter.stop();
  meter.stop();
  assert.deepEqual(reported, [30, 40, null]);
  meter.event({ type: 'meter', util: 5 } as PanelEvent);
  meter.forget();
  meter.stop();
  assert.deepEqual(reported, [30, 40, null, 5], 'another kernel causes no notification');
});

test('what the GPUs of one target did is not said of the next one in use', () => {
  const reported: (number | null)[] = [];
  const meter = new Meter(value => reported.push(value));
  meter.target('cluster');
  meter.event({ type: 'meter', util: 84 } as Parameters<Meter['event']>[0]);
  meter.target('cluster');
  assert.deepEqual(reported, [84]);
  meter.target('local');
  assert.deepEqual(reported, [84, null]);
  meter.event({ type: 'meter', util: 3 } as Parameters<Meter['event']>[0]);
  assert.deepEqual(reported, [84, null, 3]);
});
