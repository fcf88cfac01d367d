import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { collapse, cut, LogLines, spans } from '../src/tabs/logText';

const texts = (log: LogLines) => log.lines.map(line => line.text);
const size = (text: string) => new TextEncoder().encode(text).length;

test('a progress bar is one line: the last thing it wrote', () => {
  assert.equal(collapse('10%\r50%\r100%'), '100%');
  assert.equal(collapse('10%\r50%\r'), '50%');
  assert.equal(collapse('windows\r'), 'windows');
  assert.equal(collapse(''), '');
  const log = new LogLines();
  let at = 0;
  for (const part of ['begin\n 1%', '\r 2%', '\r 3', '%\r', '\r 4%\nend', '\n']) {
    log.append(part, (at += size(part)));
  }
  assert.deepEqual(texts(log), ['begin', ' 4%', 'end']);
  assert.equal(log.end, at);
  assert.equal(log.lines.reduce((sum, line) => sum + line.bytes, 0), at);
});

test('an unfinished line grows; finished ones stay the same objects', () => {
  const log = new LogLines();
  log.append('a\nb', 3);
  const [a, b] = log.lines;
  log.append('c\nd', 6);
  assert.deepEqual(texts(log), ['a', 'bc', 'd']);
  assert.equal(log.lines[0], a);
  assert.notEqual(log.lines[1].key, b.key);
  log.append('', 6);
  assert.deepEqual(texts(log), ['a', 'bc', 'd']);
});

test('a bar that never ends does not grow', () => {
  const log = new LogLines();
  let at = 0;
  for (let i = 0; i < 20000; i++) {
    log.append(`\r${i} ${'#'.repeat(40)}`, (at += 47));
  }
  assert.equal(log.lines.length, 1);
  assert.ok(texts(log)[0].startsWith('19999 '));
});

test('it is bounded: old lines go, and what is left knows where it begins', () => {
  const log = new LogLines(3);
  log.append('ä\nb\nc\nd\ne', 11);
  assert.deepEqual(texts(log), ['c', 'd', 'e']);
  assert.equal(log.start, 5);
});

test('earlier text goes before; the newest lines make room', () => {
  const log = new LogLines(4);
  log.reset(6);
  log.append('lf\nthree\n', 15);
  assert.equal(log.prepend('one\nha', 0), true);
  assert.deepEqual(texts(log), ['one', 'half', 'three']);
  assert.deepEqual([log.start, log.end], [0, 15]);
  const full = new LogLines(4);
  full.reset(10);
  full.append('f\ng\nh\ni', 17);
  assert.equal(full.prepend('a\nb\nc\nd\ne\n', 0), false);
  assert.deepEqual([texts(full), full.start, full.end], [['d', 'e', 'f', 'g'], 6, 14]);
});

test('a long line is cut between characters', () => {
  assert.deepEqual(cut('abc', 3), { text: 'abc', rest: 0 });
  assert.deepEqual(cut('ab\u{1f600}c', 3), { text: 'ab', rest: 3 });
});

test('colors are classes, unknown codes are nothing, and text is text', () => {
  assert.deepEqual(
    spans('a\u001b[1;31mred\u001b[0m <b>\u001b[2K\u001b]8;;x\u0007link').map(s => [s.text, s.classes.join(' ')]),
    [['a', ''], ['red', 'ansi-red-intense-fg ansi-bold'], [' <b>', ''], ['link', '']]
  );
  assert.equal(spans('\u001b[38;5;208mo')[0].color, 'rgb(255, 135, 0)');
  assert.equal(spans('\u001b[48;2;1;2;300mo')[0].background, 'rgb(1, 2, 255)');
  assert.deepEqual(spans('\u001b[38;5;9mo')[0].classes, ['ansi-red-intense-fg']);
  assert.deepEqual(spans('\u001b[7mo')[0].classes, ['ansi-default-inverse-fg', 'ansi-default-inverse-bg']);
  assert.deepEqual(spans('\u001b[42;94mo\u001b[39;49mp').map(s => s.classes), [
    ['ansi-blue-intense-fg', 'ansi-green-bg'],
    []
  ]);
  assert.deepEqual(spans('\u001b[m\u001b['), []);
});
