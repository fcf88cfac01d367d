/** Decoder of feed messages: ticks, layout and points of the marks. */

import { Bytes, decodeTicks, own } from '../charts/samples';
import { band, INodeSnapshot, IPoints, IRows, ITicks, lines, NodeHistory } from '../charts/series';
import { duration } from '../format';
import type { IChartMark } from '../protocol';
import { complete } from '../untyped';
import type { IReadings } from './gpuTable';

export interface IStateSnapshot {
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

/** New ticks of nodes. */
export interface INewTicks {
  kind: 'ticks';
  parts: ITicks[];
}

export type Frame = INewTicks | IStateSnapshot | IMetrics | IChanged;

type Untyped = Record<string, any>;

const whole = (x: unknown): number => (typeof x === 'number' && Number.isInteger(x) && x >= 0 ? x : 0);

function node(keys: Untyped, x: Bytes, y: Bytes, buckets: Bytes): INodeSnapshot {
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

/** The readings of the tables in a message of ticks, and its other buffers. */
export function takeReadings(content: Untyped, buffers: readonly Bytes[]): [readings: IReadings | null, rest: readonly Bytes[]] {
  if (typeof content.v !== 'number' || !buffers.length) {
    return [null, buffers];
  }
  const words = Array.isArray(content.w) ? content.w.map(String) : null;
  return [{ version: content.v, values: new Float32Array(own(buffers[buffers.length - 1])), words }, buffers.slice(0, -1)];
}

/**
 * A custom message of the feed's comm, or null for one that this version does not know.
 *
 * @param columns number of series of a node
 */
export function decode(content: Untyped, buffers: readonly Bytes[], columns: (node: number) => number = () => 0): Frame | null {
  if (Array.isArray(content.snap)) {
    const nodes = content.snap.map((keys: Untyped, i: number) =>
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
  if (!whole(content.n) || !buffers.length) {
    return null;
  }
  return { kind: 'ticks', parts: decodeTicks(buffers[0], content.n, columns, content.halves === true) };
}

/** The synced trait `snapshot`: content of the feed when its model was opened. */
export function fromState(state: unknown): IStateSnapshot | null {
  const nodes = (state as Untyped | null)?.nodes;
  if (!Array.isArray(nodes)) {
    return null;
  }
  return { kind: 'snapshot', nodes: nodes.map((keys: Untyped) => node(keys, keys.x, keys.y, keys.buckets)) };
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
  | { kind: 'marks'; steps: boolean; marks: IChartMark[] }
  | { kind: 'static' };

const list = (x: unknown): any[] => (Array.isArray(x) ? x : []);
const numberOr = (x: unknown, fallback: number): number =>
  typeof x === 'number' && Number.isFinite(x) ? x : fallback;
const text = (x: unknown): string => (typeof x === 'string' ? x : '');

export function layoutOf(raw: unknown): ILayout {
  const l = (raw ?? {}) as Untyped;
  const buckets = Math.max(2, numberOr(l.buckets, 1024));
  return {
    nodes: list(l.nodes).map((n: Untyped, i) => ({
      node: numberOr(n?.node, i),
      host: text(n?.host),
      columns: list(n?.columns).map(String)
    })),
    gpus: list(l.gpus).map((g: Untyped) => {
      const index = numberOr(g?.index, 0);
      return { node: numberOr(g?.node, 0), index, name: text(g?.name), label: text(g?.label) || `GPU ${index}` };
    }),
    period: numberOr(l.period, 1) || 1,
    capacity: Math.max(1, numberOr(l.capacity, 3600)),
    buckets: buckets + (buckets % 2),
    start: numberOr(l.start, 0),
    windows: Array.isArray(l.windows) ? l.windows.map(w => numberOr(w, 0)) : null,
    views: list(l.views).map(text)
  };
}

export function specOf(raw: unknown): MarkSpec {
  const s = (raw ?? {}) as Untyped;
  if (s.kind === 'lines') {
    return { kind: 'lines', node: numberOr(s.node, 0), columns: list(s.columns).map(c => numberOr(c, 0)) };
  }
  if (s.kind === 'band') {
    return { kind: 'band', field: text(s.field), high: text(s.high) || text(s.field) };
  }
  if (s.kind === 'span') {
    return { kind: 'span', start: numberOr(s.start, 0), end: numberOr(s.end, 0) };
  }
  if (s.kind === 'marks') {
    return { kind: 'marks', steps: s.steps === true, marks: list(s.marks).map(mark => complete<IChartMark>('IChartMark', mark)) };
  }
  return s.kind === 'metric' ? { kind: 'metric', name: text(s.name) } : { kind: 'static' };
}

/** Beginning of a band's field that names a series of the hosts. */
const HOST = 'host.';

const columnsOfFields = new WeakMap<INode, Map<string, number[]>>();

/** Column numbers of one field of every GPU (`util` -> `gpu0.util`, `gpu1.util`, ...), or of the host (`host.cpu` -> `cpu`). */
export function columnsOf(node: INode, field: string): number[] {
  const known = columnsOfFields.get(node) ?? new Map<string, number[]>();
  columnsOfFields.set(node, known);
  let found = known.get(field);
  if (!found) {
    const own = isOfHost(field) ? field.slice(HOST.length) : null;
    const chosen = (name: string) => (own === null ? /^gpu\d+\./.test(name) && name.endsWith(`.${field}`) : name === own);
    known.set(field, (found = node.columns.flatMap((name, c) => (chosen(name) ? [c] : []))));
  }
  return found;
}

/** Whether the field of a band is a series of the hosts. */
export const isOfHost = (field: string): boolean => field.startsWith(HOST);

/** Part of the shown time that a value without neighbors takes: a line through it alone has no length. */
const DASH_SHARE = 0.008;

const isKnown = (value: number | undefined): boolean => value !== undefined && Number.isFinite(value);

/** Values of a line that have neither a neighbor before nor one behind. */
function lone(row: Float32Array, i: number): boolean {
  return isKnown(row[i]) && !isKnown(row[i - 1]) && !isKnown(row[i + 1]);
}

/** Whether there is a value without neighbors. */
export function hasLone({ x, y }: IPoints): boolean {
  return y.some(row => x.some((_, i) => lone(row, i)));
}

/**
 * The points, each lone value stretched to a dash.
 *
 * @param span seconds that are shown
 */
export function dashed({ x, y }: IPoints, span: number): IPoints {
  const at = Array.from(x.keys()).filter(i => y.some(row => lone(row, i)));
  if (!at.length) {
    return { x, y };
  }
  const selected = new Set(at);
  const order = Array.from(x.keys()).flatMap(i => (selected.has(i) ? [i, -1 - i] : [i]));
  const end = (i: number) => x[i] + Math.min(DASH_SHARE * span, i + 1 < x.length ? (x[i + 1] - x[i]) / 2 : Infinity);
  return {
    x: Float64Array.from(order, i => (i < 0 ? end(-1 - i) : x[i])),
    y: y.map(row => Float32Array.from(order, i => row[i < 0 ? -1 - i : i]))
  };
}

/** Points of metrics: times (unix seconds), steps, numbers of the points, values; and the value of each metric. */
export interface IMetricPoints {
  values: Record<string, { t: number[]; s: number[]; i: number[]; v: (number | null)[]; last?: number | string | null }>;
  /** nothing that was known before is kept */
  all: boolean;
}

/** Points kept of one metric; when there are more, pairs become their low and high. */
const MAX_POINTS = 8192;

interface IPoint {
  step: number;
  /** unix seconds */
  time: number;
  /** how many points of the metric were logged before */
  index: number;
  value: number;
}

class Metric {
  add(steps: readonly number[], times: readonly number[], indices: readonly number[], values: readonly (number | null)[]): void {
    for (let i = 0; i < Math.min(steps.length, values.length); i++) {
      const last = this._points[this._points.length - 1];
      const point = { step: steps[i], time: times[i] ?? NaN, index: indices[i] ?? (last ? last.index + 1 : 0), value: values[i] ?? NaN };
      this._stepless = this._stepless && (!last || point.step === last.step);
      this._ordered = this._ordered && (!last || point.step >= last.step);
      this._points.push(point);
    }
    while (this._points.length > MAX_POINTS) {
      this._thin();
    }
  }

  /** Number of points. */
  get length(): number {
    return this._points.length;
  }

  /** Number of points whose value is NaN or infinite. */
  get missing(): number {
    return this._points.filter(({ value }) => !Number.isFinite(value)).length;
  }

  /** Value of the metric, which the kernel chooses; NaN before the first point. */
  last: number | string = NaN;

  /** Along the x axis: by step, or by order where none was given; or by time, in unix seconds. */
  rows(byTime = false): IRows {
    if (!this._ordered) {
      // A script may go back to an earlier step: a line that turns around says nothing.
      this._points.sort((a, b) => a.step - b.step || a.index - b.index);
      this._ordered = true;
    }
    const points = this._points;
    const by = byTime && points.every(({ time }) => Number.isFinite(time));
    const order = this._stepless && points.length > 1 ? (i: number) => points[i].index : (i: number) => points[i].step;
    const x = by ? (i: number) => points[i].time : order;
    const value = (_: number, i: number) => points[i].value;
    // Steps may lie far apart: no distance is long enough to be a hole.
    return { length: points.length, base: 0, raw: true, step: Infinity, t: x, low: value, mean: value, high: value };
  }

  /** Of every four points, the lowest and the highest stay. */
  private _thin(): void {
    const all = this._points;
    const retained: IPoint[] = [];
    for (let i = 0; i < all.length; i += 4) {
      let [low, high] = [i, i];
      for (let j = i; j < Math.min(i + 4, all.length); j++) {
        low = all[j].value < all[low].value ? j : low;
        high = all[j].value > all[high].value ? j : high;
      }
      retained.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]).map(j => all[j]));
    }
    this._points = retained;
  }

  private _points: IPoint[] = [];
  /** all points have the same step */
  private _stepless = true;
  private _ordered = true;
}

/** Points of the script's own metrics, in fixed memory. */
export class MetricStore {
  take(message: IMetricPoints): void {
    if (message.all) {
      this._metrics.clear();
    }
    for (const [name, points] of Object.entries(message.values)) {
      let metric = this._metrics.get(name);
      if (!metric) {
        this._metrics.set(name, (metric = new Metric()));
      }
      metric.add(points.s ?? [], points.t ?? [], points.i ?? [], points.v ?? []);
      metric.last = points.last ?? NaN;
    }
  }

  /** Whether the x axis is time. */
  byTime = false;

  /** Rows of one column, whose `t` is the step or the time; null for a metric that has not come. */
  rows(name: string): IRows | null {
    return this._metrics.get(name)?.rows(this.byTime) ?? null;
  }

  /** Number of points of a metric, of those that are not finite, and the newest value. */
  facts(name: string): { length: number; missing: number; last: number | string } {
    const metric = this._metrics.get(name);
    return metric ? { length: metric.length, missing: metric.missing, last: metric.last } : { length: 0, missing: 0, last: NaN };
  }

  private readonly _metrics = new Map<string, Metric>();
}

/** Places and texts of marks on the x axis of their chart; a chart by step has only those with a step. */
export function placed(spec: MarkSpec & { kind: 'marks' }, byTime: boolean): [place: number, label: string][] {
  return spec.marks.flatMap(({ time, step, label }): [number, string][] => {
    const place = spec.steps && !byTime ? step : time;
    return place === null ? [] : [[place, label]];
  });
}

/** Points of a line in one drawing. */
const MAX_DRAWN_POINTS = 300;

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
    return i < 0 ? null : lines({ rows: nodes[i].rows(t0), columns: spec.columns }, t0, t1, MAX_DRAWN_POINTS);
  }
  if (spec.kind === 'band') {
    const parts = nodes
      .map((node, i) => ({
        rows: node.rows(t0),
        columns: columnsOf(layout.nodes[i], spec.field),
        tops: columnsOf(layout.nodes[i], spec.high)
      }))
      .filter(part => part.columns.length);
    return parts.length ? band(parts, t0, t1, MAX_DRAWN_POINTS) : null;
  }
  if (spec.kind === 'span') {
    const x = Float64Array.of(spec.start, spec.end);
    return { x, y: [Float32Array.of(1, 1)] };
  }
  if (spec.kind === 'marks') {
    // One line for all of them, with a gap behind each.
    const places = placed(spec, metrics.byTime).map(([place]) => place);
    return {
      x: Float64Array.from(places.flatMap(place => [place, place, place])),
      y: [Float32Array.from(places.flatMap(() => [0, 1, NaN]))]
    };
  }
  if (spec.kind === 'metric') {
    const rows = metrics.rows(spec.name);
    return rows && lines({ rows, columns: [0] }, t0, t1, MAX_DRAWN_POINTS);
  }
  return null;
}
/** Seconds by which a clock may differ before the difference is taken for the clocks' and not for a delay. */
const MAX_CLOCK_SKEW_S = 5;

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
    const skew = least < 0 || least > MAX_CLOCK_SKEW_S ? least : 0;
    return Math.max(0, now - this._taken - skew);
  }

  private _taken = NaN;
  private readonly _delays: number[] = [];
}

/** `1.2 s`, `45 s`, `3 min 05 s`. */
export function ageText(seconds: number): string {
  return seconds < 9.95 ? `${seconds.toFixed(1)} s` : seconds < 59.5 ? `${Math.round(seconds)} s` : duration(seconds);
}
