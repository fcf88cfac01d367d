import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { INodeSnapshot, ITicks, NodeHistory, Ring } from '../src/charts/series';
import { columnsOf, decode, fromState, MetricStore } from '../src/widgets/frames';

const bytes = (...parts: (Float64Array | Float32Array | Uint16Array | Uint8Array)[]): DataView => {
  // As in a websocket message: somewhere inside, at an address that fits no number.
  const length = parts.reduce((n, part) => n + part.byteLength, 0);
  const memory = new Uint8Array(length + 3);
  let at = 3;
  for (const part of parts) {
    memory.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), at);
    at += part.byteLength;
  }
  return new DataView(memory.buffer, 3, length);
};
/** A message of samples: node, first tick, times and values of each part. */
function message(...parts: [node: number, first: number, t: number[], y: number[]][]): DataView {
  const heads = new Uint8Array(8 * parts.length);
  parts.forEach(([node, first, t], p) => {
    const head = new DataView(heads.buffer, 8 * p);
    head.setUint16(0, node, true);
    head.setUint16(2, t.length, true);
    head.setUint32(4, first, true);
  });
  return bytes(heads, f8(...parts.flatMap(([, , t]) => t)), f4(...parts.flatMap(([, , , y]) => y)));
}
const f8 = (...x: number[]) => Float64Array.from(x);
const f4 = (...x: number[]) => Float32Array.from(x);

test('a ring keeps the newest in their order', () => {
  const ring = new Ring(2, 4);
  for (let i = 0; i < 11; i++) {
    ring.push(100 + i, f4(i, -i));
  }
  assert.deepEqual([ring.length, ring.first, ring.next], [4, 7, 11]);
  assert.deepEqual([0, 1, 2, 3].map(i => ring.t(i)), [107, 108, 109, 110]);
  assert.deepEqual([0, 1, 2, 3].map(i => ring.value(1, i)), [-7, -8, -9, -10]);
});

/** The parts of a message whose nodes have `width` series. */
const parts = (sent: DataView, count = 1, width = 1): ITicks[] =>
  (decode({ n: count }, [sent], () => width) as { parts: ITicks[] }).parts;

test('a tick is one buffer at any address', () => {
  const [frame] = parts(message([2, 7, [1700000000.25], [1, NaN, 3]]), 1, 3);
  assert.deepEqual([frame.node, frame.first, frame.count], [2, 7, 1]);
  assert.deepEqual([...frame.t], [1700000000.25]);
  assert.deepEqual([...frame.y], [1, NaN, 3]);
});

test('several ticks are columns one after the other', () => {
  const history = new NodeHistory(2, 8, 4, 1);
  assert.ok(history.take(parts(message([0, 0, [1, 2, 3], [10, 11, 12, 20, 21, 22]]), 1, 2)[0]));
  const rows = history.rows(0);
  assert.deepEqual([0, 1, 2].map(i => [rows.t(i), rows.mean(0, i), rows.mean(1, i)]), [[1, 10, 20], [2, 11, 21], [3, 12, 22]]);
});

const tick = (s: number): ITicks => parts(message([0, s, [100 + s], [s]]))[0];

test('what is known is passed over, a gap is not', () => {
  const history = new NodeHistory(1, 8, 4, 1);
  assert.ok(history.take(tick(0)) && history.take(tick(1)));
  assert.ok(history.take(tick(0)));
  assert.equal(history.ring.length, 2);
  assert.equal(history.take(tick(4)), false);
  assert.equal(history.ring.next, 2);
  assert.ok(history.take(parts(message([0, 1, [101, 102, 103, 104], [1, 2, 3, 4]]))[0]));
  assert.deepEqual([history.ring.next, history.ring.length, history.last], [5, 5, 104]);
  assert.ok(history.take(tick(9), true), 'who has waited long enough goes on after the hole');
  assert.equal(history.last, 109);
});

test('a snapshot is the same by message and by state', () => {
  const buffers = [bytes(f8(5, 6)), bytes(f4(50, 60)), bytes(f8(1, 3, 5), f4(10, 30, 50), f4(15, 35, 55), f4(20, 40, 60))];
  const keys = { n: 0, s: 6, k: 2, b: 3, w: 2, p: 2 };
  const [x, y, buckets] = buffers;
  const sent = decode({ snap: [keys] }, buffers);
  assert.deepEqual(sent, fromState({ nodes: [{ ...keys, x, y, buckets }] }));
  const history = new NodeHistory(1, 8, 4, 1);
  history.load((sent as { nodes: INodeSnapshot[] }).nodes[0]);
  assert.deepEqual([history.ring.next, history.ring.first, history.start], [6, 4, 1]);
  const all = history.rows(1);
  assert.deepEqual([all.raw, all.length, all.low(0, 1), all.mean(0, 1), all.high(0, 1)], [false, 3, 30, 35, 40]);
  assert.equal(history.rows(5.5).raw, true);
});

test('a message nobody knows is nothing', () => {
  assert.equal(decode({}, []), null);
  assert.equal(decode({ hello: 1 }, []), null);
  assert.equal(fromState(null), null);
  assert.equal(fromState({}), null);
});

test('metrics stay in bounds and keep their highs and lows', () => {
  const store = new MetricStore();
  for (let part = 0; part < 50; part++) {
    const t = Array.from({ length: 1000 }, (_, i) => 1000 * part + i);
    const v = t.map(x => (x === 12345 ? 99 : x === 23456 ? -99 : x % 7));
    store.take({ values: { loss: { t, s: t, i: t, v } }, all: false });
  }
  const rows = store.rows('loss');
  assert.ok(rows && rows.length <= 8192);
  const values = Array.from({ length: rows.length }, (_, i) => rows.mean(0, i));
  assert.deepEqual([Math.max(...values), Math.min(...values)], [99, -99]);
  const times = Array.from({ length: rows.length }, (_, i) => rows.t(i));
  assert.deepEqual(times, [...times].sort((a, b) => a - b));
  store.take({ values: { acc: { t: [1], s: [1], i: [0], v: [2] } }, all: true });
  assert.equal(store.rows('loss'), null);
});

/** Steps and values of the points of a metric that was logged so. */
function logged(...points: [step: number, value: number][]): [number, number][] {
  const store = new MetricStore();
  points.forEach(([step, value], i) => {
    store.take({ values: { m: { t: [i], s: [step], i: [i], v: [value] } }, all: i === 0 });
  });
  const rows = store.rows('m');
  return Array.from({ length: rows?.length ?? 0 }, (_, i) => [rows?.t(i) ?? NaN, rows?.mean(0, i) ?? NaN]);
}

test('a metric lies along its steps, whatever the clock said', () => {
  assert.deepEqual(logged([0, 5], [10, 4], [30, 3]), [[0, 5], [10, 4], [30, 3]]);
  assert.deepEqual(logged([7, 5]), [[7, 5]]);
});

test('a metric without steps lies along the order of its points', () => {
  assert.deepEqual(logged([0, 5], [0, 4], [0, 3]), [[0, 5], [1, 4], [2, 3]]);
  assert.deepEqual(logged([0, 5], [0, 4], [1, 3]), [[0, 5], [0, 4], [1, 3]], 'until one has a step');
});

test('a metric that goes back to an earlier step is drawn from left to right', () => {
  assert.deepEqual(logged([0, 5], [2, 4], [1, 3], [3, 2]), [[0, 5], [1, 3], [2, 4], [3, 2]]);
});

test('a message has the ticks of several nodes, each with columns of its own', () => {
  const columns = (node: number) => (node === 3 ? 2 : 1);
  const sent = message([3, 70000, [1, 2], [10, 11, 20, 21]], [300, 5, [9], [1.5]]);
  const all = (decode({ n: 2 }, [sent], columns) as { parts: ITicks[] }).parts;
  assert.deepEqual(all.map(({ node, first, count }) => [node, first, count]), [[3, 70000, 2], [300, 5, 1]]);
  assert.deepEqual(all.map(({ t, y }) => [[...t], [...y]]), [[[1, 2], [10, 11, 20, 21]], [[9], [1.5]]]);
  const halves = Uint16Array.of(0x4120, 0x7fc0, 0x41a0, 0x41a8, 0x3fc0); // 10, NaN, 20, 21, 1.5
  const start = bytes(new Uint8Array(sent.buffer, sent.byteOffset, 2 * 8 + 3 * 8), halves);
  const rough = decode({ n: 2, halves: true }, [start], columns) as { parts: ITicks[] };
  assert.deepEqual(rough.parts.map(({ y }) => [...y]), [[10, NaN, 20, 21], [1.5]]);
});

test('columns of a field are those of the GPUs, or the one of the host', () => {
  const node = { node: 0, host: 'a', columns: ['cpu', 'memory', 'gpu0.util', 'gpu0.memory', 'gpu1.util', 'gpu1.memory'] };
  assert.deepEqual(columnsOf(node, 'memory'), [3, 5]);
  assert.deepEqual(columnsOf(node, 'host.memory'), [1]);
  assert.deepEqual(columnsOf(node, 'util'), [2, 4]);
});
