/** Text operations on cells and submit lines. Pure functions. */

/** Cell split into the submit line at its top and the remaining code. */
export interface ISplit {
  /** `%%aml_submit` or `%%aml_sweep` line; empty if there is none. */
  readonly line: string;
  readonly code: string;
  /** Start and end of the line in the source; both 0 if there is none. */
  readonly start: number;
  readonly end: number;
}

/** Magics of the lines, each alone or with flags after it. */
const MAGIC = /^%%aml_(?:submit|sweep)(?=[ \t]|$)/;

/** Find the first line with text: IPython drops empty lines before a cell magic. */
function firstLine(source: string): { start: number; end: number; text: string } {
  const blank = /^(?:[ \t]*\r?\n)*/.exec(source);
  const start = blank ? blank[0].length : 0;
  const newline = source.indexOf('\n', start);
  const end = newline < 0 ? source.length : newline;
  return { start, end, text: source.slice(start, end) };
}

/** Split a cell into its submit line and the code. */
export function split(source: string): ISplit {
  const first = firstLine(source);
  const line = first.text.trimEnd();
  if (!MAGIC.test(line)) {
    return { line: '', code: source, start: 0, end: 0 };
  }
  return { line, code: source.slice(first.end + 1), start: first.start, end: first.end };
}

/** Text change that puts `line` at the top of a cell. */
export function edit(source: string, line: string): { start: number; end: number; text: string } {
  const { start, end, line: old } = split(source);
  return old ? { start, end, text: line } : { start: 0, end: 0, text: `${line}\n` };
}

/** Name of another cell magic at the top, e.g. `%%bash`; empty if there is none. */
export function otherMagic(source: string): string {
  const result = /^%%\S+/.exec(firstLine(source).text);
  return result && !MAGIC.test(result[0]) ? result[0] : '';
}

/**
 * Line of a cell that consists only of `%aml_submit` or `%aml_sweep` with this script; empty for any other cell.
 *
 * Submitting the same script again replaces the content of such a cell.
 */
export function scriptLine(source: string, script: string): string {
  const line = source.trim();
  const words = line.split(/\s+/).map(word => word.replace(/^(['"])(.*)\1$/, '$2'));
  return /^%aml_(?:submit|sweep)$/.test(words[0]) && !line.includes('\n') && words.includes(script) ? line : '';
}

export interface ICellText {
  readonly type: string;
  readonly source: string;
}

/** Cells joined for one submit. */
export interface IJoined {
  readonly code: string;
  /** First submit line in the cells. */
  readonly line: string;
  /** Number of joined cells. */
  readonly used: number;
  /** Number of skipped cells, which are not code cells. */
  readonly skipped: number;
  /** Cell magic of a cell that cannot be joined; empty if there is none. */
  readonly refused: string;
}

/** Join code cells in their order, separated by an empty line. */
export function join(cells: readonly ICellText[]): IJoined {
  const codes: string[] = [];
  let line = '';
  let skipped = 0;
  let refused = '';
  for (const { type, source } of cells) {
    if (type !== 'code') {
      skipped += 1;
      continue;
    }
    refused = refused || otherMagic(source);
    const parts = split(source);
    line = line || parts.line;
    const code = parts.code.replace(/^(?:[ \t]*\r?\n)+/, '').trimEnd();
    if (code !== '') {
      codes.push(code);
    }
  }
  return { code: codes.join('\n\n'), line, used: codes.length, skipped, refused };
}

/** First non-empty lines of code, at most `limit`. */
export function firstLines(code: string, limit = 3): string {
  const lines = code.split('\n').filter(line => line.trim() !== '');
  return lines.slice(0, limit).join('\n') + (lines.length > limit ? '\n…' : '');
}

/** Split a path of the contents manager, e.g. `RTC:a/b.py`, into drive and path. */
function drive(path: string): [string, string] {
  const at = path.indexOf(':');
  return at < 0 ? ['', path] : [path.slice(0, at), path.slice(at + 1)];
}

/** Folder of a file; empty for the root. */
export function folderOf(path: string): string {
  const local = drive(path)[1];
  return local.slice(0, Math.max(0, local.lastIndexOf('/')));
}

/**
 * Path of a file relative to a folder, e.g. `../data/prep.py`; `null` if they are on different drives.
 *
 * `RTC` is the name that the collaboration extension gives to the default drive.
 */
export function relative(notebook: string, file: string): string | null {
  const [from, to] = [drive(notebook)[0], drive(file)[0]].map(name => (name === 'RTC' ? '' : name));
  if (from !== to) {
    return null;
  }
  const parts = (path: string) => path.split('/').filter(part => part !== '' && part !== '.');
  const here = parts(folderOf(notebook));
  const target = parts(drive(file)[1]);
  let common = 0;
  while (common < here.length && common < target.length - 1 && here[common] === target[common]) {
    common += 1;
  }
  return [...here.slice(common).map(() => '..'), ...target.slice(common)].join('/');
}
