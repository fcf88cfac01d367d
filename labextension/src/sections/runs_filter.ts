/** Which runs are listed, and which of them are in the window. No DOM. */

import { isLive } from '../kernel/rows';
import type { IRunRow } from '../protocol';

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
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length === 0 && state === 'all') {
    return rows;
  }
  return rows.filter(
    row =>
      (state === 'all' || (state === 'live' ? isLive(row) : FAILED.has(row.state) || row.attention !== '')) &&
      wanted.every(part => textOf(row).includes(part))
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
