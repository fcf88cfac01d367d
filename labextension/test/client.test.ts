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

const comms = { comm_info_request: () => ({ comms: { [REQUEST]: { target_name: REQUEST } } }) };
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
  const { fake } = channel({ ...comms, [REQUEST]: () => ({ version: PROTOCOL_VERSION + 1, ok: true }) });
  await assert.rejects(new KernelClient(fake).request('hello', {}), /version 5, .*version 4/);
  assert.equal((await new KernelClient(fake).probe(10)).kind, 'other-version');
});

test('probe tells a kernel without us from one that does not respond', async () => {
  assert.equal((await new KernelClient(channel({ ...comms, [REQUEST]: hello }).fake).probe(10)).kind, 'ready');
  assert.equal((await new KernelClient(channel({ kernel_info_request: () => ({}) }).fake).probe(10)).kind, 'not-loaded');
  assert.equal((await new KernelClient(channel({}).fake).probe(10)).kind, 'not-responding');
});

test('a kernel without us is never sent our own message type', async () => {
  const { fake, log } = channel({ comm_info_request: () => ({ comms: {} }), kernel_info_request: () => ({}) });
  const client = new KernelClient(fake);
  assert.equal((await client.probe(10)).kind, 'not-loaded');
  assert.deepEqual(log.sent.map(({ type }) => type), ['comm_info_request']);
});

test('a kernel that has just loaded us is greeted at once, also by an older package without a comm', async () => {
  const { fake } = channel({ comm_info_request: () => ({ comms: {} }), [REQUEST]: hello });
  const client = new KernelClient(fake);
  client.trust();
  assert.equal((await client.probe(10)).kind, 'ready');
  client.doubt();
  assert.equal((await client.probe(10)).kind, 'not-loaded');
});

test('a question that cannot be sent yet is asked again', async () => {
  let tries = 0;
  const fake: IControlChannel = {
    send(type) {
      const ours = type !== 'kernel_info_request';
      if (ours || ++tries > 1) {
        return { reply: ours ? new Promise(() => undefined) : Promise.resolve({}), dispose: () => undefined };
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
      reply: new Promise(resolve => {
        const first = type === 'comm_info_request';
        setTimeout(() => resolve(first ? comms[type]() : type === REQUEST ? hello() : {}), first ? 1500 : 0);
      }),
      dispose: () => undefined
    })
  };
  assert.equal((await new KernelClient(fake).probe(3000)).kind, 'ready');
});

test('probe waits for a kernel that has listed the extension and greets late', async () => {
  const { fake } = channel({ ...comms, kernel_info_request: () => ({}) });
  const send = fake.send.bind(fake);
  const late: IControlChannel = {
    send: (type, content) =>
      type === REQUEST
        ? { reply: new Promise(resolve => setTimeout(() => resolve(hello()), 900)), dispose: () => undefined }
        : send(type, content)
  };
  assert.equal((await new KernelClient(late).probe(3000)).kind, 'ready');
  assert.equal((await new KernelClient(late).probe(500)).kind, 'not-responding');
});
