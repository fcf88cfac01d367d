/** Cells and lines of a submit as texts. Pure functions. */

/** What is left of a cell when the line of a submit is taken off its top. */
export interface ISplit {
  /** The `%%aml_submit` line; empty when there is none. */
  readonly line: string;
  readonly code: string;
  /** Where the line begins and ends in the source; both 0 when there is none. */
  readonly start: number;
  readonly end: number;
}

const MAGIC = '%%aml_submit';

/** IPython drops empty lines before a cell magic, so they may stand above ours. */
function firstLine(source: string): { start: number; end: number; text: string } {
  const blank = /^(?:[ \t]*\r?\n)*/.exec(source);
  const start = blank ? blank[0].length : 0;
  const newline = source.indexOf('\n', start);
  const end = newline < 0 ? source.length : newline;
  return { start, end, text: source.slice(start, end) };
}

/** Take the submit's line off a cell. */
export function split(source: string): ISplit {
  const first = firstLine(source);
  const line = first.text.trimEnd();
  if (line !== MAGIC && !line.startsWith(`${MAGIC} `) && !line.startsWith(`${MAGIC}\t`)) {
    return { line: '', code: source, start: 0, end: 0 };
  }
  return { line, code: source.slice(first.end + 1), start: first.start, end: first.end };
}

/** What has to be replaced in a cell so that `line` stands on its top. */
export function edit(source: string, line: string): { start: number; end: number; text: string } {
  const { start, end, line: old } = split(source);
  return old ? { start, end, text: line } : { start: 0, end: 0, text: `${line}\n` };
}

/** Name of a cell magic on top that is not ours, `%%bash`; empty when there is none. */
export function otherMagic(source: string): string {
  const result = /^%%\S+/.exec(firstLine(source).text);
  return result && result[0] !== MAGIC ? result[0] : '';
}

/**
 * The line of a cell that is nothing but `%aml_submit` of this script; empty when it is something else.
 *
 * Writing the same script again takes the place of such a cell.
 */
export function scriptLine(source: string, script: string): string {
  const line = source.trim();
  const words = line.split(/\s+/).map(word => word.replace(/^(['"])(.*)\1$/, '$2'));
  return words[0] === '%aml_submit' && !line.includes('\n') && words.includes(script) ? line : '';
}

export interface ICellText {
  readonly type: string;
  readonly source: string;
}

/** Cells put together for one submit. */
export interface IJoined {
  readonly code: string;
  /** The first submit line among them. */
  readonly line: string;
  /** Cells that are in it. */
  readonly used: number;
  /** Cells that are no code. */
  readonly skipped: number;
  /** Cell magic of a cell that cannot be in it; empty when all can. */
  readonly refused: string;
}

/** Put code cells together in their order, an empty line between them. */
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

/** The first lines of code that say something, at most `limit`. */
export function firstLines(code: string, limit = 3): string {
  const lines = code.split('\n').filter(line => line.trim() !== '');
  return lines.slice(0, limit).join('\n') + (lines.length > limit ? '\n…' : '');
}

/** Drive and path of a path of the contents manager, `RTC:a/b.py`. */
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
 * A file as it is named from a folder, `../data/prep.py`; `null` when they lie on different drives.
 *
 * `RTC` is the default drive seen by the collaboration extension.
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
