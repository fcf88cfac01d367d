/** What the kernel sends on a feed, and what it means: messages to ticks, layout, points of the marks. Pure. */

import { band, IMetricPoints, INodeSnapshot, IPoints, ITicks, lines, MetricStore, NodeHistory } from '../charts/series';
import { duration } from '../format';

export type Bytes = ArrayBuffer | ArrayBufferView;

export interface ISnapshot {
  kind: 'snapshot';
  nodes: INodeSnapshot[];
}

export interface IMetrics extends IMetricPoints {
  kind: 'metrics';
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

export interface INode {
  node: number;
  host: string;
  columns: string[];
}

export interface IGpu {
  node: number;
  index: number;
  name: string;
  label: string;
}

export interface ILayout {
  nodes: INode[];
  gpus: IGpu[];
  period: number;
  capacity: number;
  buckets: number;
  units: Record<string, string>;
  /** unix seconds, or 0 when unknown */
  start: number;
  /** seconds of each choice of the window control, where the kernel gives them */
  windows: number[] | null;
  /** names of the GPU charts that can be chosen, in the order of the view control */
  views: string[];
}

export type MarkSpec =
  | { kind: 'lines'; node: number; columns: number[] }
  | { kind: 'band'; field: string; high: string }
  | { kind: 'span'; start: number; end: number }
  | { kind: 'metric'; name: string }
  | { kind: 'static' };

const list = (x: unknown): any[] => (Array.isArray(x) ? x : []);
const numberOr = (x: unknown, fallback: number): number =>
  typeof x === 'number' && Number.isFinite(x) ? x : fallback;
const text = (x: unknown): string => (typeof x === 'string' ? x : '');

export function layoutOf(raw: unknown): ILayout {
  const l = (raw ?? {}) as Loose;
  const buckets = Math.max(2, numberOr(l.buckets, 1024));
  return {
    nodes: list(l.nodes).map((n: Loose, i) => ({
      node: numberOr(n?.node, i),
      host: text(n?.host),
      columns: list(n?.columns).map(String)
    })),
    gpus: list(l.gpus).map((g: Loose) => {
      const index = numberOr(g?.index, 0);
      return { node: numberOr(g?.node, 0), index, name: text(g?.name), label: text(g?.label) || `GPU ${index}` };
    }),
    period: numberOr(l.period, 1) || 1,
    capacity: Math.max(1, numberOr(l.capacity, 3600)),
    buckets: buckets + (buckets % 2),
    units: (l.units ?? {}) as Record<string, string>,
    start: numberOr(l.start, 0),
    windows: Array.isArray(l.windows) ? l.windows.map(w => numberOr(w, 0)) : null,
    views: list(l.views).map(text)
  };
}

export function specOf(raw: unknown): MarkSpec {
  const s = (raw ?? {}) as Loose;
  if (s.kind === 'lines') {
    return { kind: 'lines', node: numberOr(s.node, 0), columns: list(s.columns).map(c => numberOr(c, 0)) };
  }
  if (s.kind === 'band') {
    return { kind: 'band', field: text(s.field), high: text(s.high) || text(s.field) };
  }
  if (s.kind === 'span') {
    return { kind: 'span', start: numberOr(s.start, 0), end: numberOr(s.end, 0) };
  }
  return s.kind === 'metric' ? { kind: 'metric', name: text(s.name) } : { kind: 'static' };
}

/** Column numbers of one field of every GPU of a node: `util` -> those of `gpu0.util`, `gpu1.util`, ... */
export function columnsOf(node: INode, field: string): number[] {
  return node.columns.flatMap((name, c) => (/^gpu\d+\./.test(name) && name.endsWith(`.${field}`) ? [c] : []));
}

/** Unit of a column: a GPU's by its field, a host's by its own name. */
export function unitOf(layout: ILayout, column: string): string {
  const [first, field] = column.split('.');
  if (field === undefined && first.endsWith('memory')) {
    // The host's comes in bytes, also where the GPUs' field of the same name is in MiB.
    return 'bytes';
  }
  return layout.units[column] ?? layout.units[field ?? first] ?? '';
}

/** Points of a line in one drawing. */
const POINTS = 300;

/** What a feed has stored. */
export interface IStored {
  readonly layout: ILayout;
  /** In the order of the layout's nodes. */
  readonly nodes: readonly NodeHistory[];
  readonly metrics: MetricStore;
}

/** Points of one mark in the shown time (a metric's: in the shown steps); null for a mark that the kernel alone draws. */
export function pointsOf({ layout, nodes, metrics }: IStored, spec: MarkSpec, [t0, t1]: readonly [number, number]): IPoints | null {
  if (spec.kind === 'lines') {
    const i = layout.nodes.findIndex(node => node.node === spec.node);
    return i < 0 ? null : lines({ rows: nodes[i].rows(t0), columns: spec.columns }, t0, t1, POINTS);
  }
  if (spec.kind === 'band') {
    const parts = nodes
      .map((node, i) => ({
        rows: node.rows(t0),
        columns: columnsOf(layout.nodes[i], spec.field),
        tops: columnsOf(layout.nodes[i], spec.high)
      }))
      .filter(part => part.columns.length);
    return parts.length ? band(parts, t0, t1, POINTS) : null;
  }
  if (spec.kind === 'span') {
    const x = Float64Array.of(spec.start * 1000, spec.end * 1000);
    return { x, y: [Float32Array.of(1, 1)] };
  }
  if (spec.kind === 'metric') {
    const rows = metrics.rows(spec.name);
    return rows && lines({ rows, columns: [0] }, t0, t1, POINTS, 1);
  }
  return null;
}
/** Seconds by which a clock may differ before the difference is taken for the clocks' and not for a delay. */
const CLOCKS_AGREE = 5;

export class SampleAge {
  /**
   * A sample has arrived.
   *
   * @param taken unix seconds by the target's clock
   * @param now unix seconds by the page's clock
   */
  arrived(taken: number, now: number): void {
    this._taken = taken;
    this._delays.push(now - taken);
    if (this._delays.length > 60) {
      this._delays.shift();
    }
  }

  /** Seconds; NaN before the first sample. */
  at(now: number): number {
    if (!this._delays.length) {
      return NaN;
    }
    // The least delay is the difference of the clocks plus the way here.
    const least = Math.min(...this._delays);
    const skew = least < 0 || least > CLOCKS_AGREE ? least : 0;
    return Math.max(0, now - this._taken - skew);
  }

  private _taken = NaN;
  private readonly _delays: number[] = [];
}

/** `1.2 s`, `45 s`, `3 min 05 s`. */
export function ageText(seconds: number): string {
  return seconds < 9.95 ? `${seconds.toFixed(1)} s` : seconds < 59.5 ? `${Math.round(seconds)} s` : duration(seconds);
}
