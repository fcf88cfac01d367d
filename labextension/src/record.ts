/** Normalization of records from saved notebooks: fills in every field. Pure functions. */

import { count, list, object, text } from './untyped';
import {
  IChildRun,
  ICodeExcerpt,
  IRunLink,
  IRunPicture,
  IGpuBand,
  IGpuHeat,
  IGpuProcess,
  IGpuSeries,
  IGpuTelemetry,
  IGpuTruth,
  IMetricSeries,
  IPhase,
  IRunRecord,
  ISweepBoard,
  RunState
} from './protocol';

const STATES: readonly string[] = [
  'preparing',
  'queued',
  'running',
  'finalizing',
  'completed',
  'failed',
  'canceled',
  'lost'
];

/** The state of a saved run; one that is unknown counts as the first. */
export const stateOf = (x: unknown): RunState => (STATES.includes(text(x)) ? x : 'preparing') as RunState;

export const TERMINAL: ReadonlySet<RunState> = new Set<RunState>(['completed', 'failed', 'canceled', 'lost']);

function phase(x: unknown): IPhase {
  const p = object(x);
  return { name: text(p.name, '?'), start: count(p.start) ?? 0, end: count(p.end), seconds: count(p.seconds) };
}

/** Values of a metric for which JSON has no number. */
const NOT_FINITE: ReadonlySet<unknown> = new Set(['nan', 'inf', '-inf']);

function metric(x: unknown): IMetricSeries {
  const m = object(x);
  const value = list(m.value).map(count);
  const step = list(m.step).map((s, i) => count(s) ?? i);
  const n = Math.min(step.length, value.length);
  const seconds = list(m.seconds).map(count).filter((at): at is number => at !== null);
  const last = NOT_FINITE.has(m.last) ? (m.last as string) : (count(m.last) ?? value[n - 1] ?? null);
  return { step: step.slice(0, n), value: value.slice(0, n), seconds: seconds.slice(0, n), last, n: count(m.n) ?? n, rank: count(m.rank) ?? 0 };
}

function door(x: unknown): IRunLink {
  const d = object(x);
  return { kind: text(d.kind), title: text(d.title, '?'), url: text(d.url), hint: text(d.hint) };
}

function child(x: unknown): IChildRun {
  const c = object(x);
  const id = text(c.id);
  return {
    id,
    name: text(c.name) || id || '?',
    kind: text(c.kind, 'step'),
    state: text(c.state),
    detail: text(c.detail),
    metric: text(c.metric),
    value: count(c.value),
    best: c.best === true,
    created: count(c.created),
    started: count(c.started),
    ended: count(c.ended),
    url: text(c.url),
    number: count(c.number),
    params: object(c.params),
    handle: text(c.handle),
    early: c.early === true,
    steps: list(c.steps).map((s, i) => count(s) ?? i),
    values: list(c.values).map(count)
  };
}

/**
 * An image as a URL. Only these: a page draws them in an `img`, where no script of an SVG file runs. Not `blob:`,
 * because a browser opens that in a tab with the rights of this page.
 */
const IMAGE_URL = /^data:image\/(png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/]*={0,2}$/;

export function imageUrl(url: string): string {
  return IMAGE_URL.test(url) ? url : '';
}

function picture(raw: unknown): IRunPicture {
  const p = object(raw);
  const path = text(p.path);
  return {
    path,
    name: text(p.name) || path || '?',
    kind: text(p.kind, 'artifact'),
    width: count(p.width) ?? 0,
    height: count(p.height) ?? 0,
    bytes: count(p.bytes) ?? 0,
    time: count(p.time) ?? 0,
    title: text(p.title),
    thumbnail: imageUrl(text(p.thumbnail))
  };
}

/** Pictures of a record or a reply, without thumbnails that a page may not draw. */
export function pictures(raw: unknown): IRunPicture[] {
  return list(raw).map(picture);
}

/** Values of a row, padded with null to the number of common times. */
function row(x: unknown, n: number): (number | null)[] {
  const values = list(x).slice(0, n).map(count);
  return values.length ? [...values, ...new Array<null>(n - values.length).fill(null)] : [];
}

function gpu(x: unknown, i: number, n: number): IGpuSeries {
  const g = object(x);
  return {
    node: count(g.node) ?? 0,
    index: count(g.index) ?? i,
    label: text(g.label),
    name: text(g.name),
    uuid: text(g.uuid),
    memory_total: count(g.memory_total),
    power_limit: count(g.power_limit),
    util: row(g.util, n),
    peak: row(g.peak, n),
    memory: row(g.memory, n),
    power: row(g.power, n),
    lost: g.lost === true,
    sm_activity: row(g.sm_activity, n)
  };
}

function gpuBand(x: unknown, n: number): IGpuBand | null {
  const b = object(x);
  const mean = row(b.mean, n);
  return mean.length ? { mean, low: row(b.low, n), high: row(b.high, n) } : null;
}

function gpuHeat(x: unknown): IGpuHeat | null {
  const h = object(x);
  const labels = list(h.labels).map(label => text(label, '?'));
  const columns = count(h.columns) ?? 0;
  const cells = text(h.cells);
  const whole = labels.length > 0 && columns > 0 && cells.length >= 2 * labels.length * columns;
  return whole ? { labels, columns, cells } : null;
}

function gpuProcess(x: unknown): IGpuProcess {
  const p = object(x);
  return {
    node: count(p.node) ?? 0,
    index: count(p.index) ?? 0,
    pid: count(p.pid) ?? 0,
    owner: text(p.owner, 'unknown'),
    memory: count(p.memory),
    name: text(p.name),
    label: text(p.label),
    user: text(p.user),
    sm: count(p.sm)
  };
}

function gpuTelemetry(raw: unknown): IGpuTelemetry | null {
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw)) {
    return null;
  }
  const g = object(raw);
  const t = list(g.t).map(x => count(x) ?? 0);
  return {
    t,
    gpus: list(g.gpus).map((x, i) => gpu(x, i, t.length)),
    util: gpuBand(g.util, t.length),
    memory: gpuBand(g.memory, t.length),
    power: gpuBand(g.power, t.length),
    heat: gpuHeat(g.heat),
    nodes: list(g.nodes).map(name => text(name)),
    processes: list(g.processes).map(gpuProcess),
    source: text(g.source),
    age: count(g.age),
    note: text(g.note),
    now: list(g.now).map(object)
  };
}

function gpuTruth(raw: unknown): IGpuTruth | null {
  const t = object(raw);
  const verdict = text(t.verdict);
  return verdict ? { verdict, detail: text(t.detail), cause: text(t.cause) } : null;
}

function excerpt(raw: unknown): ICodeExcerpt | null {
  const e = object(raw);
  const lines = list(e.lines).map(line => text(line));
  const first = count(e.first);
  const line = count(e.line);
  return lines.length && first !== null && line !== null ? { first, lines, line } : null;
}

/** The board of a sweep; null for another run. */
function board(raw: unknown): ISweepBoard | null {
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw)) {
    return null;
  }
  const b = object(raw);
  const numbers = list(b.number).map((x, i) => count(x) ?? i);
  const n = numbers.length;
  const column = <T>(x: unknown, item: (value: unknown) => T): T[] => {
    const values = list(x);
    return Array.from({ length: n }, (_, i) => item(values[i]));
  };
  const position = (x: unknown): number | null => {
    const at = count(x);
    return at !== null && Number.isInteger(at) && at >= 0 && at < n ? at : null;
  };
  const texts = (x: unknown) => Object.fromEntries(Object.entries(object(x)).map(([name, value]) => [name, text(value)]));
  const shares = Object.entries(object(b.importance)).flatMap(([name, x]) => {
    const share = count(x);
    return share === null ? [] : [[name, Math.max(0, Math.min(1, share))] as const];
  });
  return {
    metric: text(b.metric, '?'),
    goal: text(b.goal) === 'minimize' ? 'minimize' : 'maximize',
    sampler: text(b.sampler),
    policy: text(b.policy),
    space: texts(b.space),
    max_trials: count(b.max_trials),
    max_concurrent: count(b.max_concurrent) ?? 1,
    number: numbers,
    state: column(b.state, value => text(value, 'queued')),
    value: column(b.value, count),
    seconds: column(b.seconds, count),
    handle: column(b.handle, value => text(value)),
    params: Object.fromEntries(Object.entries(object(b.params)).map(([name, x]) => [name, column(x, value => value ?? null)])),
    nulls: Object.fromEntries(Object.entries(object(b.nulls)).map(([name, x]) => [name, list(x).flatMap(at => position(at) ?? [])])),
    early: list(b.early).flatMap(x => position(x) ?? []),
    reason: texts(b.reason),
    curves: list(b.curves).flatMap(raw => {
      const curve = object(raw);
      const trial = position(curve.trial);
      const value = list(curve.value).map(count);
      const step = list(curve.step).map((s, i) => count(s) ?? i);
      const length = Math.min(step.length, value.length);
      return trial === null ? [] : [{ trial, step: step.slice(0, length), value: value.slice(0, length) }];
    }),
    best: position(b.best),
    importance: Object.fromEntries(shares),
    hidden: Math.max(0, count(b.hidden) ?? 0),
    message: text(b.message)
  };
}

/** Percentage of each cell in row-major order; NaN for a missing value. */
export function heatCells(map: IGpuHeat): Float32Array {
  return Float32Array.from({ length: map.labels.length * map.columns }, (_, i) => {
    const value = parseInt(map.cells.slice(2 * i, 2 * i + 2), 16);
    return value <= 100 ? value : NaN;
  });
}

/** Parse a row label: `0:3` -> node 0, index 3. */
export function heatRow(label: string): { node: number; index: number } {
  const [node, index] = label.split(':').map(Number);
  return { node: node || 0, index: index || 0 };
}

/** Name of a GPU from the kernel, e.g. `GPU 3` or `GPU 0 MIG 1`. Records of earlier versions contain only a number. */
export function gpuName(index: number, label = ''): string {
  return label || (index < 100 ? `GPU ${index}` : `GPU ${Math.floor(index / 100) - 1} MIG ${index % 100}`);
}

/** Fill in missing fields and drop values of the wrong type; never throws. */
export function normalise(raw: unknown): IRunRecord {
  const r = object(raw);
  const t = object(r.telemetry);
  const log = object(r.log);
  const handle = text(r.handle);
  const runId = text(r.run_id, handle.split('/').pop() ?? '');
  const state = stateOf(r.state);
  return {
    schema: count(r.schema) ?? 1,
    handle,
    run_id: runId,
    name: text(r.name) || runId || 'run',
    target: text(r.target, handle.split('/')[0]),
    experiment: text(r.experiment),
    state,
    detail: text(r.detail),
    reason: typeof r.reason === 'string' ? r.reason : null,
    exit_code: count(r.exit_code),
    done: r.done === true,
    cancel_requested: r.cancel_requested === true,
    reachable: r.reachable !== false,
    created: count(r.created) ?? 0,
    seen_at: count(r.seen_at) ?? 0,
    phases: list(r.phases).map(phase),
    params: object(r.params),
    tags: object(r.tags) as Record<string, string>,
    metrics: Object.fromEntries(
      Object.entries(object(r.metrics))
        .map(([name, m]) => [name, metric(m)] as const)
        .sort(([, a], [, b]) => a.rank - b.rank)
    ),
    metrics_hidden: Math.max(0, count(r.metrics_hidden) ?? 0),
    telemetry: {
      t: list(t.t).map(x => count(x) ?? 0),
      cpu: list(t.cpu).map(count),
      memory: list(t.memory).map(count),
      memory_total: count(t.memory_total),
      cpus: count(t.cpus),
      age: count(t.age)
    },
    gpu: gpuTelemetry(r.gpu),
    truth: gpuTruth(r.truth),
    summary: object(r.summary),
    kind: text(r.kind) || 'run',
    view: text(r.view) || 'run',
    window: Math.max(0, count(r.window) ?? 600),
    log: {
      tail: text(log.tail),
      bytes: count(log.bytes) ?? 0,
      lines_hidden: count(log.lines_hidden) ?? 0,
      path: text(log.path)
    },
    outputs: object(r.outputs),
    error: typeof r.error === 'string' && r.error ? r.error : null,
    excerpt: excerpt(r.excerpt),
    tracking: object(r.tracking) as Record<string, string>,
    source_sha256: text(r.source_sha256),
    notes: list(r.notes).map(note => text(note)),
    taken: { line: text(object(r.taken).line), items: list(object(r.taken).items).map(item => text(item)) },
    scaling: null, // compared in the table of all widths, and not shown by one run
    sweep: board(r.sweep),
    doors: list(r.doors).map(door),
    children: list(r.children).map(child),
    children_hidden: Math.max(0, count(r.children_hidden) ?? 0),
    parent: text(r.parent),
    attempt: Math.max(1, count(r.attempt) ?? 1),
    pictures: pictures(r.pictures),
    models: list(r.models).flatMap(path => text(path) || []),
    pictures_hidden: Math.max(0, count(r.pictures_hidden) ?? 0)
  };
}

/** Whether a handle identifies one run: ``last`` and prefixes of handles depend on the latest run. */
export function isWhole(handle: string): boolean {
  return /^[^/\s]+\/[^/\s]+$/.test(handle);
}

export interface ISpan {
  name: string;
  seconds: number;
  /** true for the current phase */
  open: boolean;
}

/**
 * Lengths of the phases `since` seconds after the record was created.
 *
 * The computation uses only differences within the record's own clock, so the lengths are right even
 * if the clock of the browser is wrong.
 */
export function spans(record: IRunRecord, since = 0): ISpan[] {
  const hasEnded = TERMINAL.has(record.state);
  return record.phases
    .filter(p => !STATES.slice(4).includes(p.name))
    .map(p => {
      const open = p.end === null && p.seconds === null && !hasEnded;
      const end = p.end ?? record.seen_at + (open ? since : 0);
      return { name: p.name, seconds: Math.max(0, p.seconds ?? end - p.start), open };
    });
}

/** Seconds below which a queue is not shown: a local run waits for nothing. */
const MIN_QUEUE_S = 1;

/** The phases worth a segment. */
export function shownSpans(found: readonly ISpan[]): ISpan[] {
  return found.filter(span => span.open || span.name !== 'queued' || span.seconds >= MIN_QUEUE_S);
}

/** One-line summary, for a kernel with an older package that sends none. */
export function summary(record: IRunRecord): string {
  const values = Object.entries(record.metrics)
    .slice(0, 4)
    .map(([name, series]) => `${name} ${series.last ?? '-'}`);
  return [`${record.handle}: ${record.state}`, record.error, ...values].filter(Boolean).join(', ');
}
