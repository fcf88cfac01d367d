import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { ClickGuard } from '../src/panel/clickGuard';

function house() {
  let now = 0;
  const guard = new ClickGuard(() => now);
  const done: string[] = [];
  const press = (key: string, made?: string) =>
    guard.once(key, async same => {
      done.push(key);
      if (made) {
        same(made);
      }
    });
  return { guard, press, done, pass: (ms: number) => (now += ms) };
}

test('the second press of a double click does nothing, a later one does', async () => {
  const { press, done, pass } = house();
  await press('again a', 'again a');
  pass(250);
  await press('again a');
  assert.deepEqual(done, ['again a']);
  pass(1000);
  await press('again a');
  assert.equal(done.length, 2);
});

test('a press on another run is not suppressed', async () => {
  const { press, done, pass } = house();
  await press('again a', 'again b');
  await press('again c');
  pass(250);
  await press('again b');
  assert.deepEqual(done, ['again a', 'again c']);
  pass(1000);
  await press('again b');
  assert.deepEqual(done, ['again a', 'again c', 'again b']);
});

test('a slow action does not start twice and can be retried after a failure', async () => {
  const { guard, press, done, pass } = house();
  let fail: (error: Error) => void = () => undefined;
  const first = guard.once('delete a', () => new Promise((_, reject) => (fail = reject)));
  pass(60000);
  await press('delete a');
  assert.deepEqual(done, []);
  fail(new Error('no'));
  await assert.rejects(first);
  await press('delete a');
  assert.deepEqual(done, ['delete a']);
});

test('a question that was answered with no may be asked again at once', async () => {
  const { press, done } = house();
  await press('cancel a');
  await press('cancel a');
  assert.equal(done.length, 2);
});
