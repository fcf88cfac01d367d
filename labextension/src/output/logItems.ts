/** What a log shows in which order: its lines, and the displayed values that stand in place of their text. Pure. */

import type { IRunDisplay } from '../protocol';

/** A line of text, or the number of a display. */
export type LogItem = string | number;

/**
 * Put displays between the lines of a log.
 *
 * @param lines the last lines of the log
 * @param displays those that are drawn, in the order of the log
 * @param cut number of lines at the begin of the log's tail that `lines` has not
 */
export function logItems(lines: readonly string[], displays: readonly IRunDisplay[], cut = 0): LogItem[] {
  const before = new Map<number, number[]>();
  const replaced = new Set<number>();
  for (const { number, line, blocks } of displays) {
    const at = Math.max(-1, Math.min(line - cut, lines.length));
    before.set(at, [...(before.get(at) ?? []), number]);
    for (const [start, count] of blocks) {
      const end = Math.min(start - cut + count, lines.length);
      for (let i = Math.max(0, start - cut); i < end; i++) {
        replaced.add(i);
      }
    }
  }
  const items: LogItem[] = [...(before.get(-1) ?? [])];
  for (let i = 0; i <= lines.length; i++) {
    items.push(...(before.get(i) ?? []));
    if (i < lines.length && !replaced.has(i)) {
      items.push(lines[i]);
    }
  }
  return items;
}

/** Number of items at the begin of `old` that are no longer in `now`. */
export function goneItems(old: readonly LogItem[], now: readonly LogItem[]): number {
  for (let gone = 0; gone < old.length; gone++) {
    // The last lines may have changed, as bars do; the first ones tell.
    if (old.slice(gone, gone + 3).every((item, i) => item === now[i])) {
      return gone;
    }
  }
  return 0;
}

const DRAWN = /^application\/vnd\.[\w.+-]+\+json$/;
const IMAGES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp', 'image/svg+xml'];
const TEXTS = ['text/html', 'text/markdown', 'text/latex', 'application/json'];

/**
 * The form of a display that is drawn; empty if only its text can be.
 *
 * @param canDraw whether JupyterLab has a renderer that is safe for data of anybody
 */
export function preferredForm(data: Readonly<Record<string, unknown>>, canDraw: (mime: string) => boolean): string {
  const special = Object.keys(data).filter(mime => DRAWN.test(mime));
  const image = IMAGES.filter(mime => typeof data[mime] === 'string' && data[mime]);
  const found = [...special.filter(canDraw), ...image, ...TEXTS.filter(mime => mime in data && canDraw(mime))];
  return found[0] ?? (typeof data['text/plain'] === 'string' ? 'text/plain' : '');
}

/** URL of an image of a display, whose data are base64, or the text of an SVG file. */
export function imageData(mime: string, data: string): string {
  return `data:${mime};base64,${mime === 'image/svg+xml' ? base64(data) : data}`;
}

function base64(text: string): string {
  return btoa(Array.from(new TextEncoder().encode(text), byte => String.fromCharCode(byte)).join(''));
}
