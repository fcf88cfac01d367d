/** The texts of runs in the list, and which of them are listed. No DOM. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { ago, duration, number } from '../format';
import { isLive } from '../kernel/rows';
import type { IRunRow } from '../protocol';

/** Elapsed time without the hundredths that would flicker. */
export function elapsed(seconds: number): string {
  return seconds < 59.5 ? `${Math.max(0, Math.round(seconds))} s` : duration(seconds);
}

/** Seconds since it began, or that it took; `null` while it has not. */
export function secondsOf(row: IRunRow, now: number): number | null {
  const start = row.started ?? (isLive(row) ? row.created : null);
  if (start === null || start === 0) {
    return null;
  }
  return Math.max(0, (row.ended ?? now) - start);
}

/** The state in a word of the language. */
export function stateWord(row: IRunRow, trans: TranslationBundle): string {
  if (isLive(row) && row.cancel_requested) {
    return trans.__('canceling');
  }
  switch (row.state) {
    case 'preparing':
      return trans.__('preparing');
    case 'queued':
      return trans.__('queued');
    case 'running':
      return trans.__('running');
    case 'finalizing':
      return trans.__('finalizing');
    case 'completed':
      return trans.__('completed');
    case 'failed':
      return trans.__('failed');
    case 'canceled':
      return trans.__('canceled');
    case 'lost':
      return trans.__('lost');
  }
}

/** State or phase, and its time: `running` and `3 min 05 s`; no time while it has not begun. */
export function progressParts(row: IRunRow, now: number, trans: TranslationBundle): [phase: string, time: string] {
  const word = stateWord(row, trans);
  const seconds = secondsOf(row, now);
  const phase = row.phase && row.phase !== row.state && isLive(row) ? `${word} · ${row.phase}` : word;
  return [phase, seconds === null ? '' : elapsed(seconds)];
}

/** State or phase with its time: `running 3 min 05 s`. */
export function progress(row: IRunRow, now: number, trans: TranslationBundle): string {
  return progressParts(row, now, trans).filter(Boolean).join(' ');
}

/** `3 min ago`, of the end or else of the beginning. */
export function when(row: IRunRow, now: number, trans: TranslationBundle): string {
  return trans.__('%1 ago', ago(now - (row.ended ?? row.created)));
}

/** A sentence about the run without its name and the magic that shows its log: both stand beside it. */
export function bare(row: IRunRow, sentence: string): string {
  const named = `${row.handle} failed: `;
  const hint = ` See: %aml_runs logs ${row.handle}`;
  const rest = sentence.startsWith(named) ? sentence.slice(named.length) : sentence;
  return rest.endsWith(hint) ? rest.slice(0, -hint.length) : rest;
}

/** Problem of the run, or an empty string. */
export function attention(row: IRunRow): string {
  return bare(row, row.attention);
}

export function metric(row: IRunRow): string {
  return row.metric ? `${row.metric} ${number(row.value)}` : '';
}

/** The row in one sentence, for screen readers. */
export function spoken(row: IRunRow, now: number, trans: TranslationBundle): string {
  return [row.name, progress(row, now, trans), trans.__('on %1', row.target), metric(row), attention(row)]
    .filter(Boolean)
    .join(', ');
}

/** Points of a polyline of utilization in a box, one string for each stretch without a hole. */
export function sparkPoints(spark: readonly number[], width: number, height: number): string[] {
  const step = spark.length > 1 ? width / (spark.length - 1) : 0;
  const lines: string[] = [];
  let line: string[] = [];
  spark.forEach((value, k) => {
    if (value < 0) {
      if (line.length) {
        lines.push(line.join(' '));
      }
      line = [];
    } else {
      const y = height - 1 - (Math.min(100, value) / 100) * (height - 2);
      line.push(`${(k * step).toFixed(1)},${y.toFixed(1)}`);
    }
  });
  if (line.length) {
    lines.push(line.join(' '));
  }
  return lines;
}

export type StateFilter = 'all' | 'live' | 'failed';

const FAILED: ReadonlySet<string> = new Set(['failed', 'lost']);

/** What of a row is searched, in lower case; rows are frozen, so it is made once for each. */
const texts = new WeakMap<IRunRow, string>();

function textOf(row: IRunRow): string {
  let text = texts.get(row);
  if (text === undefined) {
    const params = Object.entries(row.params).map(([name, value]) => `${name}=${value}`);
    text = [row.name, row.handle, row.target, row.state, row.experiment, ...params].join('\n').toLowerCase();
    texts.set(row, text);
  }
  return text;
}

/** Every word must be found; `lr=0.1` finds a parameter. */
export function filterRuns(rows: readonly IRunRow[], words: string, state: StateFilter): readonly IRunRow[] {
  const terms = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (terms.length === 0 && state === 'all') {
    return rows;
  }
  return rows.filter(
    row =>
      (state === 'all' || (state === 'live' ? isLive(row) : FAILED.has(row.state) || row.attention !== '')) &&
      terms.every(part => textOf(row).includes(part))
  );
}

/** Rows of a list of equal heights that are in view, with some around them: from, to (not included). */
export function windowOf(top: number, height: number, rowHeight: number, count: number, around = 6): [number, number] {
  const first = Math.floor(top / rowHeight) - around;
  const last = Math.ceil((top + height) / rowHeight) + around;
  const to = Math.max(0, Math.min(count, last));
  return [Math.max(0, Math.min(first, to)), to];
}

/**
 * The selection after a click or a key.
 *
 * With `range` everything from the anchor to the row, with `toggle` this row too or no longer.
 */
export function select(
  handles: readonly string[],
  before: readonly string[],
  anchor: string,
  handle: string,
  how: 'one' | 'range' | 'toggle'
): readonly string[] {
  if (how === 'toggle') {
    return before.includes(handle) ? before.filter(other => other !== handle) : [...before, handle];
  }
  const from = handles.indexOf(anchor);
  const to = handles.indexOf(handle);
  if (how === 'one' || from < 0 || to < 0) {
    return [handle];
  }
  const range = handles.slice(Math.min(from, to), Math.max(from, to) + 1);
  return from <= to ? range : range.reverse();
}
