import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { takeReadings } from '../src/widgets/frames';
import { newest, readingText } from '../src/widgets/gpuTable';

test('a reading is formatted as in the kernel', () => {
  const GIB = 2 ** 30;
  assert.equal(readingText([93], ' %', ''), '93 %');
  assert.equal(readingText([31.25 * GIB], 'B', '80.0 GiB'), '31.3 of 80.0 GiB');
  assert.equal(readingText([512 * 2 ** 20], 'B', '80.0 GiB'), '512.0 MiB of 80.0 GiB');
  assert.equal(readingText([0], 'B', ''), '0 B');
  assert.equal(readingText([612.4], ' W', '700 W'), '612 of 700 W');
  assert.equal(readingText([3], '', ''), '3');
  assert.equal(readingText([12345, NaN], ' MiB/s', ''), '12,345, n/a MiB/s');
  assert.equal(readingText([NaN], ' W', '700 W'), 'n/a');
  assert.equal(readingText([NaN, NaN], ' MiB/s', ''), 'n/a');
});

test('readings are the last buffer of ticks', () => {
  const tick = new ArrayBuffer(16);
  const [readings, rest] = takeReadings({ n: 0, s: 1, v: 4 }, [tick, Float32Array.of(1, 2).buffer]);
  assert.deepEqual([readings?.version, [...(readings?.values ?? [])], readings?.words, rest], [4, [1, 2], null, [tick]]);
  assert.deepEqual(takeReadings({ n: 0, s: 1 }, [tick]), [null, [tick]]);
});

test('texts are kept until they change', () => {
  const next = (version: number, words: string[] | null) => ({ version, values: Float32Array.of(1), words });
  assert.deepEqual(newest(next(1, ['power cap']), next(1, null)).words, ['power cap']);
  assert.deepEqual(newest(next(1, ['power cap']), next(1, ['nothing'])).words, ['nothing']);
  assert.equal(newest(next(1, ['power cap']), next(2, null)).words, null);
});
