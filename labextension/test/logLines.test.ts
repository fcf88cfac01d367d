import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { cut, LogLines } from '../src/tabs/logLines';

const texts = (log: LogLines) => log.lines.map(line => line.text);

test('lines from a number on are replaced; what has not changed stays the same object', () => {
  const log = new LogLines();
  log.replace(0, ['begin', 'outer 0%', 'inner 0%', 'end'], 30);
  const [begin, outer, inner, end] = log.lines;
  log.replace(1, ['outer 1%', 'inner 0%', 'the end'], 60);
  assert.deepEqual(texts(log), ['begin', 'outer 1%', 'inner 0%', 'the end']);
  assert.equal(log.lines[0], begin);
  assert.notEqual(log.lines[1].key, outer.key);
  assert.equal(log.lines[2], inner);
  assert.notEqual(log.lines[3].key, end.key);
  log.replace(2, [], 70);
  assert.deepEqual([texts(log), log.start, log.end], [['begin', 'outer 1%'], 0, 70]);
});

test('an empty last line is not shown: nothing has been written to it', () => {
  const log = new LogLines();
  log.replace(0, [''], 0);
  assert.deepEqual(texts(log), []);
  log.replace(0, ['a', '', ''], 3, [[2, 3]]);
  assert.deepEqual(texts(log), ['a', '']);
});

/** A log with lines of 10 bytes, of which `size` arrive at a time. */
function grown(log: LogLines, count: number, size: number, marked = true): void {
  for (let line = 0; line < count; line += size) {
    const part = Array.from({ length: size }, (_, i) => `line ${String(line + i).padStart(4, '0')}`);
    const end = 10 * (line + size);
    log.replace(line, [...part, ''], end, marked ? [[line + size, end]] : []);
  }
}

test('it is bounded: lines go up to a byte that is known', () => {
  const log = new LogLines(100);
  grown(log, 1000, 7);
  assert.ok(log.lines.length <= 100 && log.lines.length > 90, String(log.lines.length));
  assert.equal(texts(log)[0], `line ${String(log.start / 10).padStart(4, '0')}`);
  assert.equal(log.start % 70, 0);
});

test('lines without a known byte are bounded, too', () => {
  const log = new LogLines(100);
  grown(log, 5000, 7, false);
  assert.ok(log.lines.length <= 200, String(log.lines.length));
  assert.ok(log.start > 0 && log.resume() === log.start);
});

test('earlier lines go before; the newest lines make room', () => {
  const log = new LogLines(4);
  log.reset(6);
  log.replace(0, ['three', ''], 12, [[1, 12]]);
  assert.equal(log.room, 2);
  assert.equal(log.prepend(['one', 'two'], 0), true);
  assert.deepEqual([texts(log), log.start, log.end], [['one', 'two', 'three'], 0, 12]);
  log.replace(1, ['four'], 16);
  assert.deepEqual(texts(log), ['one', 'two', 'three', 'four']);
  const full = new LogLines(4);
  full.reset(10);
  full.replace(0, ['f', 'g', 'h', 'i'], 17);
  assert.equal(full.prepend(['d', ''], 6), false);
  assert.deepEqual([texts(full), full.start], [['d', '', 'f', 'g'], 6]);
});

test('part of an endless bar has no lines, but the begin moves', () => {
  const log = new LogLines();
  log.reset(1000);
  log.replace(0, ['99%'], 1400);
  assert.equal(log.prepend([], 500), true);
  assert.deepEqual([texts(log), log.start], [['99%'], 500]);
  log.prepend(['begin'], 0);
  log.replace(0, ['100%'], 1410);
  assert.deepEqual(texts(log), ['begin', '100%']);
});

test('another screen resumes where it shows the same', () => {
  const log = new LogLines();
  log.reset(100);
  log.replace(0, ['a', 'b', ''], 104, [[2, 104]]);
  const [a, b] = log.lines;
  log.replace(2, ['bar 1%'], 111);
  assert.deepEqual([log.resume(), log.end], [104, 104]);
  log.replace(0, ['bar 5%', 'end', ''], 120, [[2, 120]]);
  assert.deepEqual(texts(log), ['a', 'b', 'bar 5%', 'end']);
  assert.ok(log.lines[0] === a && log.lines[1] === b);
  assert.equal(log.resume(), 120);
  log.replace(0, ['next'], 124);
  assert.deepEqual(texts(log), ['a', 'b', 'bar 5%', 'end', 'next']);
});

test('a mark below a line that changes later is forgotten', () => {
  const log = new LogLines();
  log.replace(0, ['outer', 'inner', ''], 12, [[2, 12]]);
  log.replace(0, ['other', 'inner', ''], 30);
  assert.equal(log.resume(), 0);
});

test('lines that never change are added one by one, and bounded exactly', () => {
  const log = new LogLines(10);
  for (let k = 0; k < 50; k++) {
    log.append([`${k}`, 'x']);
  }
  assert.deepEqual([log.lines.length, texts(log)[0]], [10, '45']);
  log.append([]);
  assert.equal(log.lines.length, 10);
});

test('a long line is cut between characters', () => {
  assert.deepEqual(cut('abc', 3), { text: 'abc', rest: 0 });
  assert.deepEqual(cut('ab\u{1f600}c', 3), { text: 'ab', rest: 3 });
});
