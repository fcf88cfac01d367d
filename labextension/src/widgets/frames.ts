/** Messages of a feed, as they lie in the websocket, to ticks in order. Pure functions. */

export type Bytes = ArrayBuffer | ArrayBufferView;

/** Ticks of one node: `t[j]` and `y[c * stride + j]`. */
export interface ITicks {
  kind: 'ticks';
  node: number;
  first: number;
  count: number;
  t: Float64Array;
  y: Float32Array;
}

/** All that the kernel keeps of one node. */
export interface INodeSnapshot {
  node: number;
  next: number;
  ring: number;
  buckets: number;
  width: number;
  partial: number;
  t: Float64Array;
  y: Float32Array;
  bucketT: Float64Array;
  bucketY: Float32Array;
}

export interface ISnapshot {
  kind: 'snapshot';
  nodes: INodeSnapshot[];
}

export interface IMetrics {
  kind: 'metrics';
  /** times (unix seconds), steps, numbers of the points, values */
  values: Record<string, { t: number[]; s: number[]; i: number[]; v: (number | null)[] }>;
  all: boolean;
}

/** The kernel knows more of the run than its ticks: the record is worth asking for. */
export interface IChanged {
  kind: 'changed';
}

export type Frame = ITicks | ISnapshot | IMetrics | IChanged;

type Loose = Record<string, any>;

/** Own, aligned memory: a buffer is a view into the whole websocket message. */
function own(bytes: Bytes): ArrayBuffer {
  return bytes instanceof ArrayBuffer
    ? bytes.slice(0)
    : (bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer);
}

const whole = (x: unknown): number => (typeof x === 'number' && Number.isInteger(x) && x >= 0 ? x : 0);

function node(keys: Loose, x: Bytes, y: Bytes, buckets: Bytes): INodeSnapshot {
  const count = whole(keys.b);
  const memory = own(buckets);
  return {
    node: whole(keys.n),
    next: whole(keys.s),
    ring: whole(keys.k),
    buckets: count,
    width: Math.max(1, whole(keys.w)),
    partial: whole(keys.p),
    t: new Float64Array(own(x)),
    y: new Float32Array(own(y)),
    bucketT: new Float64Array(memory, 0, count),
    bucketY: new Float32Array(memory, 8 * count)
  };
}

/** A custom message of the feed's comm, or null for one that this version does not know. */
export function decode(content: Loose, buffers: readonly Bytes[]): Frame | null {
  if (Array.isArray(content.snap)) {
    const nodes = content.snap.map((keys: Loose, i: number) =>
      node(keys, buffers[3 * i], buffers[3 * i + 1], buffers[3 * i + 2])
    );
    return { kind: 'snapshot', nodes };
  }
  if (content.m && typeof content.m === 'object') {
    return { kind: 'metrics', values: content.m, all: content.all === true };
  }
  if (content.changed === true) {
    return { kind: 'changed' };
  }
  if (typeof content.s !== 'number' || !buffers.length) {
    return null;
  }
  const count = content.k === undefined ? 1 : whole(content.k);
  const head = { kind: 'ticks' as const, node: whole(content.n), first: content.s, count };
  if (buffers.length > 1) {
    return { ...head, t: new Float64Array(own(buffers[0])), y: new Float32Array(own(buffers[1])) };
  }
  const memory = own(buffers[0]);
  return { ...head, t: new Float64Array(memory, 0, count), y: new Float32Array(memory, 8 * count) };
}

/** The synced trait `snapshot`: what the feed held when its model was opened. */
export function fromState(state: unknown): ISnapshot | null {
  const nodes = (state as Loose | null)?.nodes;
  if (!Array.isArray(nodes)) {
    return null;
  }
  return { kind: 'snapshot', nodes: nodes.map((keys: Loose) => node(keys, keys.x, keys.y, keys.buckets)) };
}
