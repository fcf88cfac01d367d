/** A line of a terminal as spans of one style each: its colors are codes in the text. */

export interface ISpan {
  readonly text: string;
  /** Class names for the terminal's attributes and its 16 colors; may be empty. */
  readonly classes: readonly string[];
  /** CSS colors outside the palette; may be empty. */
  readonly color: string;
  readonly background: string;
}

const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

/** Terminal color: one of the sixteen named ones or any other. */
type Color = number | string | null;

interface IStyle {
  fg: Color;
  bg: Color;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  inverse: boolean;
}

const PLAIN: IStyle = { fg: null, bg: null, bold: false, dim: false, italic: false, underline: false, inverse: false };

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
    } else if (c === 2) {
      s.dim = true;
    } else if (c === 3) {
      s.italic = true;
    } else if (c === 4) {
      s.underline = true;
    } else if (c === 7) {
      s.inverse = true;
    } else if (c === 21 || c === 22) {
      s.bold = false;
      s.dim = s.dim && c !== 22;
    } else if (c === 23) {
      s.italic = false;
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
  for (const name of ['bold', 'dim', 'italic', 'underline'] as const) {
    if (style[name]) {
      classes.push(`ansi-${name}`);
    }
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

/** Elements and texts that show a line. */
export function drawn(line: string): Node[] {
  return spans(line).map(part => {
    if (!part.classes.length && !part.color && !part.background) {
      return document.createTextNode(part.text);
    }
    const node = document.createElement('span');
    node.className = part.classes.join(' ');
    node.style.color = part.color;
    node.style.backgroundColor = part.background;
    node.textContent = part.text;
    return node;
  });
}
