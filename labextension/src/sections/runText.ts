/** Texts of runs in the list, and the filter of the list. Independent of the DOM. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { ago, duration, number } from '../format';
import { isLive } from '../kernel/rows';
import type { IRunRow } from '../protocol';

/** Elapsed time without fractions of a second, which would flicker. */
export function elapsed(seconds: number): string {
  return seconds < 59.5 ? `${Math.max(0, Math.round(seconds))} s` : duration(seconds);
}

/** Seconds since the start, or duration of an ended run; `null` before the start. */
export function secondsOf(row: IRunRow, now: number): number | null {
  const start = row.started ?? (isLive(row) ? row.created : null);
  if (start === null || start === 0) {
    return null;
  }
  return Math.max(0, (row.ended ?? now) - start);
}

/** Translated word for the state. */
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

/** State or phase, and elapsed time: `running` and `3 min 05 s`; no time before the start. */
export function progressParts(row: IRunRow, now: number, trans: TranslationBundle): [phase: string, time: string] {
  const word = stateWord(row, trans);
  const seconds = secondsOf(row, now);
  const phase = row.phase && row.phase !== row.state && isLive(row) ? `${word} · ${row.phase}` : word;
  const attempt = row.attempt > 1 ? trans.__('%1 · attempt %2', phase, row.attempt) : phase;
  return [attempt, seconds === null ? '' : elapsed(seconds)];
}

/** State or phase with its time: `running 3 min 05 s`. */
export function progress(row: IRunRow, now: number, trans: TranslationBundle): string {
  return progressParts(row, now, trans).filter(Boolean).join(' ');
}

/** Time since the end, or since the creation without one: `3 min ago`. */
export function when(row: IRunRow, now: number, trans: TranslationBundle): string {
  return trans.__('%1 ago', ago(now - (row.ended ?? row.created)));
}

export function metric(row: IRunRow): string {
  return row.metric ? `${row.metric} ${number(row.value)}` : '';
}

/** Names of the parameters whose values differ between the runs, or that only some of them have. */
export function differing(rows: readonly IRunRow[]): ReadonlySet<string> {
  const values = new Map<string, string>();
  const counts = new Map<string, number>();
  const differ = new Set<string>();
  for (const { params } of rows) {
    for (const [name, value] of Object.entries(params)) {
      counts.set(name, (counts.get(name) ?? 0) + 1);
      if ((values.get(name) ?? value) !== value) {
        differ.add(name);
      }
      values.set(name, value);
    }
  }
  for (const [name, count] of counts) {
    if (count < rows.length) {
      differ.add(name);
    }
  }
  return differ;
}

/** Parameters as text: `lr=0.1 epochs=3`. */
function paramsText(row: IRunRow): string {
  return Object.entries(row.params)
    .map(([name, value]) => `${name}=${value}`)
    .join(' ');
}

/** Description of the row in one sentence, for screen readers. */
export function spoken(row: IRunRow, now: number, trans: TranslationBundle): string {
  return [row.name, progress(row, now, trans), trans.__('on %1', row.target), metric(row), paramsText(row), row.attention]
    .filter(Boolean)
    .join(', ');
}

export type StateFilter = 'all' | 'live' | 'failed';

const FAILED: ReadonlySet<string> = new Set(['failed', 'lost']);

/** Searchable text of a row, in lower case; cached for each row, because rows are frozen. */
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

/** Rows that contain all words; `lr=0.1` matches a parameter. */
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

/** Range of rows of equal height in view, with `around` rows on both sides: from, to (excluded). */
export function windowOf(top: number, height: number, rowHeight: number, count: number, around = 6): [number, number] {
  const first = Math.floor(top / rowHeight) - around;
  const last = Math.ceil((top + height) / rowHeight) + around;
  const to = Math.max(0, Math.min(count, last));
  return [Math.max(0, Math.min(first, to)), to];
}

/**
 * Selection after a click or a key press.
 *
 * `range` selects all rows from the anchor to this row, `toggle` adds or removes this row.
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
