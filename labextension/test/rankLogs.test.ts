import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { IPart, RankLogs } from '../src/tabs/rankLogs';

const part = (first: number, lines: string[], more: Partial<IPart> = {}): IPart => ({ fresh: false, ended: false, offset: 9, first, lines, ...more });

test('log of a rank is marked by whole lines', () => {
  const logs = new RankLogs();
  assert.equal(logs.offset(1), undefined);
  assert.deepEqual(logs.add(1, part(0, ['a', 'b'], { fresh: true, offset: 3 })), ['[rank 1] a']);
  assert.deepEqual(logs.add(0, part(0, ['x', ''], { fresh: true })), ['[rank 0] x']);
  assert.equal(logs.offset(1), 3);
  assert.deepEqual(logs.add(1, part(1, ['bc', ''])), ['[rank 1] bc']);
  assert.deepEqual(logs.add(1, part(3, [])), []);
});

test('end of a log completes its last line, and all ends complete the whole', () => {
  const logs = new RankLogs();
  assert.deepEqual(logs.add(0, part(0, ['last'], { ended: true })), ['[rank 0] last']);
  assert.equal(logs.ended(2), false);
  assert.deepEqual(logs.add(0, part(1, [], { ended: true })), []);
  assert.deepEqual(logs.add(1, part(0, [''], { ended: true })), []);
  assert.equal(logs.ended(2), true);
});

test('progress bar is shown once, at its end', () => {
  const logs = new RankLogs();
  for (const text of ['10%', '50%', '90%']) {
    assert.deepEqual(logs.add(0, part(0, [text])), []);
  }
  assert.deepEqual(logs.add(0, part(0, ['done', ''])), ['[rank 0] done']);
});

test('line above others that keeps changing is shown again when it has settled', () => {
  const logs = new RankLogs();
  assert.deepEqual(logs.add(0, part(0, ['outer 0', 'inner 0'])), ['[rank 0] outer 0']);
  assert.deepEqual(logs.add(0, part(0, ['outer 1', 'inner 0'])), []);
  assert.deepEqual(logs.add(0, part(0, ['outer 2', 'inner 1'])), []);
  assert.deepEqual(logs.add(0, part(1, ['inner 2'])), ['[rank 0] outer 2']);
  assert.deepEqual(logs.add(0, part(0, ['outer 3', 'inner 3', ''], { ended: true })), ['[rank 0] outer 3', '[rank 0] inner 3']);
});

test('line that is printed over a bar is not lost', () => {
  const logs = new RankLogs();
  assert.deepEqual(logs.add(0, part(0, ['bar one', 'bar two', ''])), ['[rank 0] bar one', '[rank 0] bar two']);
  assert.deepEqual(logs.add(0, part(0, ['printed', 'bar one', 'bar two', ''])), ['[rank 0] bar two']);
  assert.deepEqual(logs.add(0, part(4, [])), ['[rank 0] printed', '[rank 0] bar one']);
});

test('log that its job has emptied starts over', () => {
  const logs = new RankLogs();
  logs.add(0, part(0, ['one', 'half'], { fresh: true }));
  assert.deepEqual(logs.add(0, part(0, ['new', ''], { fresh: true })), ['[rank 0] new']);
});

test('kept lines are bounded, and later ones have their numbers', () => {
  const logs = new RankLogs();
  const kept = () => (logs as unknown as { _logs: { rows: unknown[] }[] })._logs[0].rows.length;
  const many = Array.from({ length: 1000 }, (_, k) => String(k));
  assert.equal(logs.add(0, part(0, [...many, 'bar'])).length, 1000);
  assert.ok(kept() <= 100);
  assert.deepEqual(logs.add(0, part(1000, ['done', ''])), ['[rank 0] done']);
  assert.deepEqual(logs.add(0, part(999, ['over it', 'done', 'more', ''])), ['[rank 0] more']);
});
