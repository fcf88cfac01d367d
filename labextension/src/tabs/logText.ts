/** Log as bounded lines for display: progress bars collapsed and colors as classes. Pure functions. */

/** Maximum number of lines kept. */
export const MAX_LINES = 5000;

/** Maximum number of characters shown of a line. */
export const MAX_LINE_CHARS = 4000;

/** Maximum number of characters kept of an unfinished line: a progress bar never ends its line. */
const MAX_OPEN_LINE_CHARS = 64 * 1024;

export interface ISpan {
  readonly text: string;
  /** Class names of JupyterLab for ANSI colors; may be empty. */
  readonly classes: readonly string[];
  /** CSS colors outside the palette; may be empty. */
  readonly color: string;
  readonly background: string;
}

export interface ILine {
  /** Increasing number; a changed line has a new key. */
  readonly key: number;
  /** Text with escape codes, without the parts that a carriage return has overwritten. */
  readonly text: string;
  /** Size of the line in the file, in bytes. */
  readonly bytes: number;
}

const encoder = new TextEncoder();
const sizeOf = (text: string): number => encoder.encode(text).length;

/** Visible part of a line with carriage returns on a terminal: the text after the last one. */
export function collapse(line: string): string {
  let end = line.length;
  while (end > 0 && line[end - 1] === '\r') {
    end -= 1;
  }
  return line.slice(line.lastIndexOf('\r', end - 1) + 1, end);
}

/** Part of an unfinished line to keep: without the text that a carriage return has overwritten, and bounded. */
export function openEnd(line: string): string {
  const bare = line.replace(/\r+$/, '');
  const dropped = line.length > 2 * MAX_OPEN_LINE_CHARS ? line.length - MAX_OPEN_LINE_CHARS : 0;
  return line.slice(Math.max(bare.lastIndexOf('\r') + 1, dropped));
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

/**
 * Lines of a part of a log, from byte `start` to byte `end`.
 *
 * After lines were dropped, `start` is computed from the text shown: characters that were invalid
 * in the original log make it a few bytes wrong.
 */
export class LogLines {
  constructor(private readonly _maxLines = MAX_LINES) {}

  lines: readonly ILine[] = [];
  start = 0;
  end = 0;

  reset(at = 0): void {
    this.lines = [];
    this._open = '';
    this.start = this.end = at;
  }

  /** Append text; `end` is the offset of the byte after it. */
  append(text: string, end: number): void {
    if (!text) {
      this.end = end;
      return;
    }
    const lines = this._open ? this.lines.slice(0, -1) : [...this.lines];
    const before = this._open ? this.lines[this.lines.length - 1].bytes : 0;
    const parts = (this._open + text).split('\n');
    const already = sizeOf(this._open);
    const open = parts.pop() as string;
    parts.forEach((part, i) => lines.push(this._line(part, sizeOf(part) + 1 + (i ? 0 : before - already))));
    const bytes = open ? sizeOf(open) + (parts.length ? 0 : before - already) : 0;
    this._open = openEnd(open);
    if (this._open) {
      lines.push(this._line(this._open, bytes));
    }
    this.lines = lines;
    this.end = end;
    this._drop();
  }

  /**
   * Insert text before the first line; `start` is the offset of its first byte.
   *
   * Where not all of it fits, the lines next to the old beginning are kept, because the user reads there.
   *
   * @returns false if the newest lines were dropped
   */
  prepend(text: string, start: number): boolean {
    const whole = text.split('\n');
    const last = whole.pop() as string;
    let early = whole.map(part => this._line(part, sizeOf(part) + 1));
    const [first, ...rest] = this.lines;
    const old = last && first ? [this._line(last + first.text, sizeOf(last) + first.bytes), ...rest] : this.lines;
    const room = Math.max(this._maxLines - old.length, this._maxLines >> 1);
    const dropped = Math.max(0, early.length - room);
    this.start = start + early.slice(0, dropped).reduce((sum, line) => sum + line.bytes, 0);
    early = early.slice(dropped);
    const lines = [...early, ...old];
    this.lines = lines.slice(0, this._maxLines);
    if (this.lines.length < lines.length) {
      this._open = '';
      this.end = this.start + this.lines.reduce((sum, line) => sum + line.bytes, 0);
      return false;
    }
    return true;
  }

  private _line(raw: string, bytes: number): ILine {
    return { key: ++this._keys, text: collapse(raw), bytes };
  }

  private _drop(): void {
    const many = this.lines.length - this._maxLines;
    if (many > 0) {
      this.start += this.lines.slice(0, many).reduce((sum, line) => sum + line.bytes, 0);
      this.lines = this.lines.slice(many);
    }
  }

  /** Content of the last line, which has no end yet. */
  private _open = '';
  private _keys = 0;
}

const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

/** Terminal color: one of the sixteen named ones or any other. */
type Color = number | string | null;

interface IStyle {
  fg: Color;
  bg: Color;
  bold: boolean;
  underline: boolean;
  inverse: boolean;
}

const PLAIN: IStyle = { fg: null, bg: null, bold: false, underline: false, inverse: false };

/** CSS color of a code of the 256-color palette, after the first sixteen. */
function cube(n: number): string {
  if (n >= 232) {
    const gray = 8 + 10 * (n - 232);
    return `rgb(${gray}, ${gray}, ${gray})`;
  }
  const level = (k: number) => (k ? 55 + 40 * k : 0);
  const i = n - 16;
  return `rgb(${level(Math.floor(i / 36))}, ${level(Math.floor(i / 6) % 6)}, ${level(i % 6)})`;
}

/** Color after code 38 or 48, and the number of its parameters. */
function extended(codes: readonly number[], at: number): [Color, number] {
  const byte = (x: number | undefined) => Math.max(0, Math.min(255, x || 0));
  if (codes[at] === 5) {
    const n = byte(codes[at + 1]);
    return [n < 16 ? n : cube(n), 2];
  }
  if (codes[at] === 2) {
    return [`rgb(${byte(codes[at + 1])}, ${byte(codes[at + 2])}, ${byte(codes[at + 3])})`, 4];
  }
  return [null, 0];
}

function apply(style: IStyle, codes: readonly number[]): IStyle {
  let s = { ...style };
  for (let i = 0; i < codes.length; i++) {
    const c = codes[i];
    if (c === 0) {
      s = { ...PLAIN };
    } else if (c === 1) {
      s.bold = true;
    } else if (c === 4) {
      s.underline = true;
    } else if (c === 7) {
      s.inverse = true;
    } else if (c === 21 || c === 22) {
      s.bold = false;
    } else if (c === 24) {
      s.underline = false;
    } else if (c === 27) {
      s.inverse = false;
    } else if ((c >= 30 && c <= 37) || (c >= 90 && c <= 97)) {
      s.fg = c < 90 ? c - 30 : c - 82;
    } else if ((c >= 40 && c <= 47) || (c >= 100 && c <= 107)) {
      s.bg = c < 100 ? c - 40 : c - 92;
    } else if (c === 38 || c === 48) {
      const [color, used] = extended(codes, i + 1);
      s[c === 38 ? 'fg' : 'bg'] = color;
      i += used;
    } else if (c === 39) {
      s.fg = null;
    } else if (c === 49) {
      s.bg = null;
    }
  }
  return s;
}

function span(text: string, style: IStyle): ISpan {
  const [fg, bg] = style.inverse ? [style.bg, style.fg] : [style.fg, style.bg];
  const classes: string[] = [];
  const name = (n: number) => `${NAMES[n % 8]}${n >= 8 ? '-intense' : ''}`;
  if (typeof fg === 'number') {
    // Terminals show bold text in bright colors.
    classes.push(`ansi-${name(style.bold && fg < 8 && !style.inverse ? fg + 8 : fg)}-fg`);
  } else if (fg === null && style.inverse) {
    classes.push('ansi-default-inverse-fg');
  }
  if (typeof bg === 'number') {
    classes.push(`ansi-${name(bg)}-bg`);
  } else if (bg === null && style.inverse) {
    classes.push('ansi-default-inverse-bg');
  }
  if (style.bold) {
    classes.push('ansi-bold');
  }
  if (style.underline) {
    classes.push('ansi-underline');
  }
  return { text, classes, color: typeof fg === 'string' ? fg : '', background: typeof bg === 'string' ? bg : '' };
}

// eslint-disable-next-line no-control-regex
const CODES = /\u001b(?:\[([0-9;:?]*)[ -/]*([@-~])|\[[0-9;:?]*$|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\^_])/g;

/** Split a line into spans of one style, without escape codes. A line begins in the default style. */
export function spans(line: string): ISpan[] {
  const result: ISpan[] = [];
  let style = PLAIN;
  let from = 0;
  const push = (to: number) => {
    // eslint-disable-next-line no-control-regex
    const text = line.slice(from, to).replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, '');
    if (text) {
      result.push(span(text, style));
    }
  };
  for (const match of line.matchAll(CODES)) {
    push(match.index as number);
    from = (match.index as number) + match[0].length;
    if (match[2] === 'm') {
      style = apply(style, (match[1] || '0').split(/[;:]/).map(Number));
    }
  }
  push(line.length);
  return result;
}
