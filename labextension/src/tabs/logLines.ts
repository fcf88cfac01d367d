/** Lines of a part of a log, as the kernel's screen of it says: bounded, each with a key. Pure. */

/** Maximum number of lines kept, if a screen can begin where they would be cut. */
export const MAX_LINES = 5000;

/** Maximum number of characters shown of a line. */
export const MAX_LINE_CHARS = 4000;

export interface ILine {
  /** Increasing number; a changed line has a new key. */
  readonly key: number;
  /** Text with codes of colors. */
  readonly text: string;
}

/** Number of a line, and the byte of the log at which it begins. */
type Mark = readonly [line: number, at: number];

interface IPoint {
  readonly line: number;
  readonly at: number;
  /** Whether a new screen that begins here shows the same lines. */
  readonly clean: boolean;
}

/** Cut a text without splitting a surrogate pair; `rest` is the number of omitted characters. */
export function cut(text: string, most = MAX_LINE_CHARS): { text: string; rest: number } {
  if (text.length <= most) {
    return { text, rest: 0 };
  }
  const code = text.charCodeAt(most - 1);
  const end = code >= 0xd800 && code <= 0xdbff ? most - 1 : most;
  return { text: text.slice(0, end), rest: text.length - end };
}

/** Lines of a part of a log, from byte `start` to byte `end`. */
export class LogLines {
  constructor(private readonly _maxLines = MAX_LINES) {
    this.reset();
  }

  start = 0;
  end = 0;

  /** The lines, without an empty one at the end: nothing has been written to it yet. */
  get lines(): readonly ILine[] {
    const last = this._lines.length - 1;
    return last >= 0 && !this._lines[last].text && !this._isCut ? this._lines.slice(0, last) : this._lines;
  }

  /** Number of earlier lines to ask for. */
  get room(): number {
    return Math.max(this._maxLines - this._lines.length, this._maxLines >> 1);
  }

  reset(at = 0): void {
    this._lines = [];
    this._isCut = false;
    this._number = this._base = 0;
    this._points = [{ line: 0, at, clean: true }];
    this.start = this.end = at;
  }

  /** Let another screen begin at the last byte where it shows the same; returns that byte, which is the next to read. */
  resume(): number {
    const points = this._points.filter(point => point.clean);
    const { line, at } = points[points.length - 1];
    this._base = line;
    this.end = at;
    return at;
  }

  /**
   * Replace all lines from a number of the screen on; those that have not changed stay the same objects.
   *
   * @param end - offset of the byte after them
   * @param marks - where another screen may begin
   */
  replace(first: number, texts: readonly string[], end: number, marks: readonly Mark[] = []): void {
    const from = this._base + first;
    const index = Math.max(0, from - this._number);
    const old = this._lines.slice(index);
    // Lines before the first kept one were dropped.
    const kept = texts.slice(Math.max(0, this._number - from));
    const now = kept.map((text, i) => (old[i]?.text === text ? old[i] : this._line(text)));
    this._lines = [...this._lines.slice(0, index), ...now];
    this._points = this._points.filter((point, i) => !i || point.line <= from);
    marks.forEach(([line, at]) => this._point({ line: this._base + line, at, clean: true }));
    if (end > this.end) {
      this._point({ line: this._number + this._lines.length - 1, at: end, clean: false });
    }
    this.end = end;
    this._drop();
  }

  /** Add lines that never change; `end` counts their characters. */
  append(texts: readonly string[]): void {
    const first = this._number + this._lines.length - this._base;
    let end = this.end;
    const marks = texts.map((text, i): Mark => [first + i + 1, (end += text.length + 1)]);
    this.replace(first, texts, end, marks);
  }

  /**
   * Insert lines before the first one; `start` is the offset of their first byte.
   *
   * @returns false if the newest lines were dropped
   */
  prepend(texts: readonly string[], start: number): boolean {
    this._lines = [...texts.map(text => this._line(text)), ...this._lines];
    this._number -= texts.length;
    this._points.unshift({ line: this._number, at: start, clean: true });
    this.start = start;
    this._isCut = this._isCut || this._lines.length > this._maxLines;
    this._lines = this._lines.slice(0, this._maxLines);
    return !this._isCut;
  }

  private _line(text: string): ILine {
    return { key: ++this._keys, text };
  }

  private _point(point: IPoint): void {
    const points = this._points;
    const last = points[points.length - 1];
    if (point.line < last.line || (last.line === point.line && last.clean && !point.clean)) {
      return;
    }
    if (last.line === point.line && points.length > 1) {
      points.pop();
    }
    points.push(point);
  }

  /** Drop the first lines, up to a point whose byte is known: from there earlier lines have no gap. */
  private _drop(): void {
    const most = this._maxLines;
    const end = this._number + this._lines.length;
    const least = end - most;
    if (least <= this._number) {
      return;
    }
    const choose = (points: readonly IPoint[]) =>
      points.find(({ line }) => line >= least && line <= least + (most >> 1)) ?? points.filter(({ line }) => line < least).pop();
    let to = choose(this._points.filter(point => point.clean));
    if (!to || end - to.line > 2 * most) {
      // A style or a bar that never ends: a few lines may be missing or double where earlier ones are put before.
      to = choose(this._points) ?? to;
    }
    if (to && to.line > this._number) {
      this._lines = this._lines.slice(to.line - this._number);
      this._points = [{ ...to, clean: true }, ...this._points.slice(this._points.indexOf(to) + 1)];
      this._number = to.line;
      this.start = to.at;
    }
  }

  private _lines: readonly ILine[] = [];
  /** Whether the newest lines were dropped. */
  private _isCut = false;
  /** Number of the first kept line. */
  private _number = 0;
  /** Number of the screen's line 0. */
  private _base = 0;
  /** Lines whose first byte is known, in order; the first is the first kept line. */
  private _points: IPoint[] = [];
  private _keys = 0;
}
