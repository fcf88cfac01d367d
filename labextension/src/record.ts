/** A record as it may lie in a saved notebook -> one with every field. Pure functions. */

import { gpuTelemetry, gpuTruth } from './gpu_record';
import { count, list, object, text } from './loose';
import { IChildRun, IDoor, IMetricSeries, IPhase, IRunRecord, RunState } from './protocol';

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

export const TERMINAL: ReadonlySet<RunState> = new Set<RunState>(['completed', 'failed', 'canceled', 'lost']);

function phase(x: unknown): IPhase {
  const p = object(x);
  return { name: text(p.name, '?'), start: count(p.start) ?? 0, end: count(p.end), seconds: count(p.seconds) };
}

function metric(x: unknown): IMetricSeries {
  const m = object(x);
  const value = list(m.value).map(count);
  const step = list(m.step).map((s, i) => count(s) ?? i);
  const n = Math.min(step.length, value.length);
  const last = count(m.last) ?? value[n - 1] ?? null;
  return { step: step.slice(0, n), value: value.slice(0, n), last, n: count(m.n) ?? n };
}

function door(x: unknown): IDoor {
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
    url: text(c.url)
  };
}

/** Fill what is missing and drop what has the wrong type; never throws. */
export function normalise(raw: unknown): IRunRecord {
  const r = object(raw);
  const t = object(r.telemetry);
  const log = object(r.log);
  const handle = text(r.handle);
  const runId = text(r.run_id, handle.split('/').pop() ?? '');
  const state = (STATES.includes(text(r.state)) ? r.state : 'preparing') as RunState;
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
    metrics: Object.fromEntries(Object.entries(object(r.metrics)).map(([name, m]) => [name, metric(m)])),
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
    tracking: object(r.tracking) as Record<string, string>,
    source_sha256: text(r.source_sha256),
    notes: list(r.notes).map(note => text(note)),
    doors: list(r.doors).map(door),
    children: list(r.children).map(child),
    children_hidden: Math.max(0, count(r.children_hidden) ?? 0),
    parent: text(r.parent)
  };
}

/** Whether a handle can name one run: ``last`` and beginnings of handles mean whatever ran last. */
export function isWhole(handle: string): boolean {
  return /^[^/\s]+\/[^/\s]+$/.test(handle);
}

export interface ISpan {
  name: string;
  seconds: number;
  /** true for the phase that still lasts */
  open: boolean;
}

/**
 * Lengths of the phases `since` seconds after the record was made.
 *
 * Only differences within the record's own clock enter, so a browser whose clock is wrong shows
 * the right length.
 */
export function spans(record: IRunRecord, since = 0): ISpan[] {
  const over = TERMINAL.has(record.state);
  return record.phases
    .filter(p => !STATES.slice(4).includes(p.name))
    .map(p => {
      const open = p.end === null && p.seconds === null && !over;
      const end = p.end ?? record.seen_at + (open ? since : 0);
      return { name: p.name, seconds: Math.max(0, p.seconds ?? end - p.start), open };
    });
}

/** One line for front ends that show text only. */
export function summary(record: IRunRecord): string {
  const values = Object.entries(record.metrics)
    .slice(0, 4)
    .map(([name, series]) => `${name} ${series.last ?? '-'}`);
  return [`${record.handle}: ${record.state}`, record.error, ...values].filter(Boolean).join(', ');
}
