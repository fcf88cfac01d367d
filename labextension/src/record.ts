/** Normalization of records from saved notebooks: fills in every field. Pure functions. */

import { complete, list, text } from './untyped';
import { IGpuHeat, IGpuTelemetry, IRunDisplay, IRunPicture, IRunRecord, ISweepBoard, RunState } from './protocol';

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

/**
 * An image as a URL. Only these: a page draws them in an `img`, where no script of an SVG file runs. Not `blob:`,
 * because a browser opens that in a tab with the rights of this page.
 */
const IMAGE_URL = /^data:image\/(png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/]*={0,2}$/;

export function imageUrl(url: string): string {
  return IMAGE_URL.test(url) ? url : '';
}

/** Pictures of a record or a reply, without thumbnails that a page may not draw. */
export function pictures(raw: unknown): IRunPicture[] {
  return list(raw).map(x => {
    const found = complete<IRunPicture>('IRunPicture', x);
    return { ...found, name: found.name || found.path || '?', thumbnail: imageUrl(found.thumbnail) };
  });
}

/** Displayed values of a record or a reply, each number once. */
export function displays(raw: unknown): IRunDisplay[] {
  const found = list(raw).map(x => complete<IRunDisplay>('IRunDisplay', x));
  return found.filter(({ number }, at) => found.findIndex(other => other.number === number) === at);
}

/** The heat map, if it has all its cells. */
function wholeHeat({ heat, gpus }: IGpuTelemetry): IGpuHeat | null {
  const cells = heat && heat.labels.length === gpus.length && heat.labels.length * heat.columns;
  return cells && heat.cells.length >= 2 * cells ? heat : null;
}

/** The board of a sweep, whose columns all have a value for each trial. */
function wholeBoard(board: ISweepBoard): ISweepBoard {
  const n = board.number.length;
  const column = <T>(values: readonly T[], absent: T): T[] => Array.from({ length: n }, (_, at) => values[at] ?? absent);
  return {
    ...board,
    metric: board.metric || '?',
    goal: board.goal === 'minimize' ? 'minimize' : 'maximize',
    state: column(board.state, 'queued'),
    value: column(board.value, null),
    seconds: column(board.seconds, null),
    handle: column(board.handle, ''),
    params: Object.fromEntries(Object.entries(board.params).map(([name, values]) => [name, column(values, null)])),
    curves: board.curves.filter(({ trial }) => trial in board.number),
    best: board.best !== null && board.best in board.number ? board.best : null
  };
}

/** Percentage of each cell in row-major order; NaN for a missing value. */
export function heatCells(map: IGpuHeat): Float32Array {
  return Float32Array.from({ length: map.labels.length * map.columns }, (_, i) => {
    const value = parseInt(map.cells.slice(2 * i, 2 * i + 2), 16);
    return value <= 100 ? value : NaN;
  });
}

/** Fill in missing fields and drop values of the wrong type; never throws. */
export function normalise(raw: unknown): IRunRecord {
  const r = complete<IRunRecord>('IRunRecord', raw);
  const runId = r.run_id || (r.handle.split('/').pop() ?? '');
  return {
    ...r,
    run_id: runId,
    name: r.name || runId || 'run',
    target: r.target || r.handle.split('/')[0],
    state: stateOf(r.state),
    metrics: Object.fromEntries(Object.entries(r.metrics).sort(([, a], [, b]) => a.rank - b.rank)),
    gpu: r.gpu && { ...r.gpu, heat: wholeHeat(r.gpu) },
    sweep: r.sweep && wholeBoard(r.sweep),
    children: r.children.map(child => ({ ...child, name: child.name || child.id || '?' })),
    pictures: pictures(r.pictures),
    displays: displays(r.displays)
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
