import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { IControlChannel, KernelClient, NoAnswer, Refused } from '../src/kernel/client';
import { PROTOCOL_VERSION, REQUEST } from '../src/protocol';

type Answer = (content: Record<string, unknown>) => unknown;

/** A channel that answers the given message types and is silent on all others. */
function channel(answers: Record<string, Answer>) {
  const log = { sent: [] as Record<string, unknown>[], disposed: 0 };
  const fake: IControlChannel = {
    send(type, content) {
      log.sent.push({ type, ...content });
      const answer = answers[type];
      return {
        reply: answer ? Promise.resolve(answer(content)) : new Promise(() => undefined),
        dispose: () => void (log.disposed += 1)
      };
    }
  };
  return { fake, log };
}

const hello = () => ({ version: PROTOCOL_VERSION, ok: true, package: '0.1.0', kernel_busy: false });

test('a request carries version, operation and payload', async () => {
  const { fake, log } = channel({ [REQUEST]: () => ({ version: PROTOCOL_VERSION, ok: true, accepted: true }) });
  const reply = await new KernelClient(fake).request('cancel', { handle: 'local/a' });
  assert.equal(reply.accepted, true);
  assert.deepEqual(log.sent, [{ type: REQUEST, version: PROTOCOL_VERSION, op: 'cancel', handle: 'local/a' }]);
  assert.equal(log.disposed, 1);
});

test('silence ends in NoAnswer and the message is given up', async () => {
  const { fake, log } = channel({});
  await assert.rejects(new KernelClient(fake, 10).request('hello', {}), NoAnswer);
  assert.equal(log.disposed, 1);
});

test('a refusal keeps the sentence of the kernel', async () => {
  const { fake } = channel({ [REQUEST]: () => ({ version: PROTOCOL_VERSION, ok: false, error: 'No run local/b.' }) });
  await assert.rejects(new KernelClient(fake).request('run', { handle: 'local/b' }), (error: Error) => {
    assert.ok(error instanceof Refused);
    assert.equal(error.message, 'No run local/b.');
    return true;
  });
});

test('another protocol version is reported', async () => {
  const { fake } = channel({ [REQUEST]: () => ({ version: PROTOCOL_VERSION + 1, ok: true }) });
  await assert.rejects(new KernelClient(fake).request('hello', {}), /version 3, .*version 2/);
  assert.equal((await new KernelClient(fake).probe(10)).kind, 'other-version');
});

test('probe tells a kernel without us from one that does not respond', async () => {
  assert.equal((await new KernelClient(channel({ [REQUEST]: hello }).fake).probe(10)).kind, 'ready');
  assert.equal((await new KernelClient(channel({ kernel_info_request: () => ({}) }).fake).probe(10)).kind, 'not-loaded');
  assert.equal((await new KernelClient(channel({}).fake).probe(10)).kind, 'not-responding');
});

test('a question that cannot be sent yet is asked again', async () => {
  let tries = 0;
  const fake: IControlChannel = {
    send(type) {
      if (type === REQUEST || ++tries > 1) {
        return { reply: type === REQUEST ? new Promise(() => undefined) : Promise.resolve({}), dispose: () => undefined };
      }
      throw new Error('Could not send message: status is not connected');
    }
  };
  assert.equal((await new KernelClient(fake).probe(3000)).kind, 'not-loaded');
  assert.equal(tries, 2);
});

test('a first question that was held back is waited for', async () => {
  const fake: IControlChannel = {
    direct: false,
    send: type => ({
      reply: new Promise(resolve => setTimeout(() => resolve(type === REQUEST ? hello() : {}), type === REQUEST ? 1500 : 0)),
      dispose: () => undefined
    })
  };
  assert.equal((await new KernelClient(fake).probe(3000)).kind, 'ready');
});
