import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import type { IGpuFrame } from '../src/panel/tokens';
import { GpuChoice, IN_USE, options } from '../src/sections/gpuSource';
import { CAPACITY, GpuStore } from '../src/sections/gpuStore';

function frame(times: number[], util: number[][], more: Record<string, unknown> = {}): IGpuFrame {
  const head: any = {
    type: 'gpus', seq: 0, source: 'a/1', first: false, labels: [], nodes: [], names: [], memory: [], lost: [],
    cpus: null, host_memory: null, period: 1, note: '', ended: false, ...more
  };
  if (head.first) {
    head.labels = util[0].map((_: number, g: number) => `GPU ${g}`);
    head.nodes = util[0].map(() => 0);
    head.names = util[0].map(() => 'A100');
    head.memory = util[0].map(() => 2 ** 30);
  }
  const columns = (util[0] ?? []).map((_, g) => util.map(row => (row[g] === 255 ? NaN : row[g])));
  const memory = columns.map(column => column.map(x => x / 2));
  const y = Float32Array.from([times, times.map(() => NaN), ...columns, ...memory].flat());
  return { head, ticks: times.length ? { node: 0, first: 0, count: times.length, t: Float64Array.from(times), y } : null };
}

test('mean, range and latest values are those of the GPUs that can tell', () => {
  const store = new GpuStore();
  assert.ok(store.push(frame([10, 11], [[0, 50, 255], [20, 40, 255]], { first: true })));
  assert.equal(store.count, 3);
  assert.deepEqual(store.range('util', 1), { mean: 30, low: 20, high: 40 });
  assert.ok(Number.isNaN(store.value('util', 1, 2)));
  assert.equal(store.value('memory', 0, 1), 25);
  assert.equal(store.latest, 1);
  assert.equal(store.together('cpu')[1], 11);
  assert.ok(store.has('cpu') && !store.has('host'));
  assert.equal(store.mean('util', 1, 0, 2), 45);
  assert.ok(Number.isNaN(store.range('util', 7).mean));
});

test('a frame of another source, or without a beginning, is dropped', () => {
  const store = new GpuStore();
  assert.equal(store.push(frame([1], [[1]])), false);
  store.push(frame([1], [[1]], { first: true }));
  assert.equal(store.push(frame([2], [[1]], { source: 'b/2' })), false);
  assert.equal(store.length, 1);
  // But one that only says why there is nothing is taken.
  assert.ok(store.push(frame([], [], { source: 'b/2', note: 'no GPUs there' })));
  assert.deepEqual([store.note, store.length, store.source], ['no GPUs there', 0, 'b/2']);
});

test('the ring keeps the last ten minutes, in order', () => {
  const store = new GpuStore();
  const n = CAPACITY + 37;
  store.push(frame([0], [[0, 100]], { first: true }));
  for (let i = 1; i < n; i++) {
    store.push(frame([i], [[i % 100, 100]]));
  }
  assert.deepEqual([store.length, store.total], [CAPACITY, n]);
  assert.deepEqual([store.time(0), store.time(CAPACITY - 1)], [37, n - 1]);
  assert.equal(store.value('util', 0, 0), 37);
  assert.equal(store.value('util', CAPACITY - 1, 0), (n - 1) % 100);
});

test('time without ticks is a hole of its length; a late tick is none', () => {
  const store = new GpuStore();
  store.push(frame([0, 1], [[5], [5]], { first: true }));
  store.push(frame([2.6], [[5]]));
  assert.equal(store.length, 3);
  store.push(frame([12.6], [[5]]));
  assert.equal(store.length, 13);
  assert.ok(Number.isNaN(store.range('util', 5).mean));
  assert.ok(Math.abs(store.time(5) - 5.6) < 1e-9);
  assert.equal(store.value('util', 12, 0), 5);
  store.push(frame([1e6], [[7]]));
  assert.deepEqual([store.length, store.value('util', CAPACITY - 1, 0)], [CAPACITY, 7]);
  assert.equal(store.latest, CAPACITY - 1);
});

test('ticks slower than announced are not full of holes', () => {
  const store = new GpuStore();
  const times = Array.from({ length: 20 }, (_, i) => 4 * i);
  store.push(frame(times, times.map(() => [9]), { first: true, period: 1 }));
  assert.deepEqual([store.length, store.period], [20, 4]);
});

const run = (handle: string, state: string, name = handle): any => ({ handle, state, name });

test('the chosen run is always among the options', () => {
  const runs = [run('a/1', 'running', 'x'), run('a/2', 'completed'), run('a/3', 'queued'), run('a/4', 'running', 'x')];
  const found = options('local', runs, 'a/2');
  assert.deepEqual(
    found.map(option => [option.kind, option.name, option.value]),
    [
      ['in use', 'local', IN_USE],
      ['running', 'x (a/1)', 'a/1'],
      ['running', 'x (a/4)', 'a/4'],
      ['run', 'a/2', 'a/2']
    ]
  );
  assert.deepEqual(options('', [], IN_USE), []);
});

test('a run is waited for until its row has come, and let go when that is gone', () => {
  const choice = new GpuChoice();
  const others = [run('a/1', 'running')];
  const local: any[] = [{ name: 'local' }];
  choice.reveal('a/2');
  assert.equal(choice.settle(others, local), false);
  assert.deepEqual(options('local', others, 'a/2').at(-1), { value: 'a/2', kind: 'run', name: 'a/2' });
  assert.equal(choice.settle([...others, run('a/2', 'queued', 'mine')], local), false);
  assert.equal(choice.chosen, 'a/2');
  assert.equal(choice.settle([], local), false);
  assert.equal(choice.chosen, 'a/2');
  assert.equal(choice.settle(others, local), true);
  assert.equal(choice.chosen, IN_USE);
  choice.choose('target:big');
  assert.equal(choice.settle(others, [...local, { name: 'big' } as any]), false);
  assert.equal(choice.settle(others, local), true);
  assert.equal(choice.source('local'), 'target:local');
});

test('a target is sampled when it may be, a run always, until a person says otherwise', () => {
  const choice = new GpuChoice();
  assert.equal(choice.source('local'), 'target:local');
  assert.deepEqual([choice.watches(true), choice.watches(false)], [true, false]);
  choice.on = true;
  assert.equal(choice.watches(false), true);
  choice.choose('a/1');
  assert.deepEqual([choice.source('local'), choice.watches(false)], ['a/1', true]);
  choice.on = false;
  assert.equal(choice.watches(true), false);
  choice.reveal('target:big');
  assert.deepEqual([choice.source('local'), choice.watches(false)], ['target:big', true]);
});
