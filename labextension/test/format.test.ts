import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { ago, bytes, clock, duration, json, number, plain } from '../src/format';

test('durations have one form for each size', () => {
  assert.equal(duration(0.421), '0.42 s');
  assert.equal(duration(12.34), '12.3 s');
  assert.equal(duration(59.97), '1 min 00 s');
  assert.equal(duration(185), '3 min 05 s');
  assert.equal(duration(7440), '2 h 04 min');
  assert.equal(duration(86400 * 3 + 7200), '3 d 02 h');
  assert.equal(duration(-5), '0.00 s');
  assert.equal(duration(NaN), '–');
});

test('ages have one unit', () => {
  assert.deepEqual([5, 185, 7200, 4 * 86400, -3].map(ago), ['5 s', '3 min', '2 h', '4 d', '0 s']);
});

test('clock', () => {
  assert.deepEqual([5, 750, 3723].map(clock), ['0:05', '12:30', '1:02:03']);
});

test('bytes are binary with three figures', () => {
  assert.deepEqual(
    [0, 12, 1023, 1536, 327155712, 1024 ** 3 * 23.4].map(bytes),
    ['0 B', '12 B', '1.00 KiB', '1.50 KiB', '312 MiB', '23.4 GiB']
  );
});

test('numbers', () => {
  assert.deepEqual(
    [0, 3, 0.123456, 1e-7, 123456789, null, Infinity, 'nan'].map(number),
    ['0', '3', '0.1235', '1.00e-7', '1.23e+8', '–', '–', 'nan']
  );
});

test('long JSON values are cut', () => {
  assert.equal(json([1, 2, 3], 5), '[1,2…');
  assert.equal(json('text'), 'text');
  assert.equal(json(undefined), '–');
});

test('terminal colors are dropped', () => {
  assert.equal(plain('\u001b[1;32mok\u001b[0m \u001b[2K done'), 'ok  done');
});
