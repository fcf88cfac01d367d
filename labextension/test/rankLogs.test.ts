import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { RankLogs } from '../src/tabs/rankLogs';

const part = (text: string, offset: number, ended = false) => ({ text, offset, ended });

test('log of a rank is marked by whole lines', () => {
  const logs = new RankLogs();
  assert.equal(logs.offset(1), undefined);
  assert.equal(logs.add(1, part('a\nb', 3)), '[rank 1] a\n');
  assert.equal(logs.add(0, part('x\n', 2)), '[rank 0] x\n');
  assert.equal(logs.offset(1), 3);
  assert.equal(logs.add(1, part('c\n', 5)), '[rank 1] bc\n');
});

test('end of a log completes its last line, and all ends complete the whole', () => {
  const logs = new RankLogs();
  assert.equal(logs.add(0, part('last', 4, true)), '[rank 0] last\n');
  assert.equal(logs.ended(2), false);
  assert.equal(logs.add(0, part('', 4, true)), '');
  assert.equal(logs.add(1, part('', 0, true)), '');
  assert.equal(logs.ended(2), true);
});

test('progress bar shows its last state after the mark', () => {
  assert.equal(new RankLogs().add(0, part('10%\r90%\rdone\n', 13)), '[rank 0] done\n');
});

test('log that its job has emptied starts over', () => {
  const logs = new RankLogs();
  logs.add(0, part('one\nhalf', 8));
  assert.equal(logs.add(0, part('new\n', 4)), '[rank 0] new\n');
});

test('unfinished line of a progress bar or without any end stays bounded', () => {
  const logs = new RankLogs();
  const kept = () => (logs as unknown as { _logs: { open: string }[] })._logs.map(log => log.open.length);
  for (let i = 1; i <= 3000; i++) {
    logs.add(0, part(`\r${i} of 3000 ${'#'.repeat(100)}`, 120 * i));
    logs.add(1, part('x'.repeat(1000), 1000 * i));
  }
  assert.ok(kept()[0] < 200 && kept()[1] <= 128 * 1024, String(kept()));
  assert.equal(logs.add(0, part('\rdone\n', 400000)), '[rank 0] done\n');
  assert.match(logs.add(1, part('\n', 3000001)), /^\[rank 1\] x+\n$/);
});
