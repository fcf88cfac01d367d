/** Which lines of a cell the sampled lines of its run are, now that the cell may have been edited. Pure functions. */

import type { ILineMark, IRunLines } from '../protocol';

/** The magic above the code that was submitted; lines of a record count from it. */
const MAGIC = /^\s*%%aml_\w+/;

/** Lines by which a marked line may be moved against the one before, so that equal lines are not confused. */
const MAX_MOVE = 200;

/** Marks of a cell: a record has 40, but a notebook file may have any number. */
const MAX_MARKS = 100;

/** A line of the record as a line of the cell. */
export interface IPlacedMark {
  /** from 1 */
  line: number;
  mark: ILineMark;
}

/** The text of a line as it was submitted. */
function codeOf(lines: IRunLines, mark: ILineMark): string {
  const row = lines.table.rows[mark.row];
  return row ? row[row.length - 1] : '';
}

/** Whether a line of the cell is the one of the record, whose text is trimmed and may be cut. */
function isSame(text: string, code: string): boolean {
  const trimmed = text.trim();
  return code !== '' && (trimmed === code || (code.length >= 200 && trimmed.startsWith(code)));
}

/**
 * Find the lines of a record in the text of the cell; lines that were edited are left out.
 *
 * Lines that were inserted or removed above move a mark; the marks stay in their order.
 */
export function placeMarks(lines: IRunLines, text: readonly string[]): IPlacedMark[] {
  const magic = text.findIndex(line => MAGIC.test(line));
  const firstCode = text.findIndex(line => line.trim() !== '');
  if (magic < 0 || magic !== firstCode) {
    return [];
  }
  const found: IPlacedMark[] = [];
  let moved = magic;
  let last = magic;
  for (const mark of lines.marks.slice(0, MAX_MARKS).sort((a, b) => a.line - b.line)) {
    const code = codeOf(lines, mark);
    const expected = mark.line - 1 + moved;
    for (let away = 0; away <= 2 * MAX_MOVE; away++) {
      // The same place first, then below and above it in turn.
      const at = expected + (away % 2 ? (away + 1) / 2 : -away / 2);
      if (at > last && at < text.length && isSame(text[at], code)) {
        found.push({ line: at + 1, mark });
        moved += at - expected;
        last = at;
        break;
      }
    }
  }
  return found;
}

/** What a line has in the table, one figure a line; the last column is its text. */
export function markText(lines: IRunLines, mark: ILineMark): string {
  const { columns, rows } = lines.table;
  const row = rows[mark.row] ?? [];
  const facts = columns
    .slice(0, -1)
    .map(({ title }, at) => (title === 'line' || !row[at] ? '' : `${title}: ${row[at]}`))
    .filter(Boolean);
  return [...facts, lines.span].filter(Boolean).join('\n');
}

/** The part of the time of each line of the cell, by its text: its number differs between runs. */
export function lineShares(lines: IRunLines | null): Record<string, number> {
  const shares: Record<string, number> = {};
  for (const mark of lines?.marks ?? []) {
    const code = lines ? codeOf(lines, mark) : '';
    if (code) {
      shares[code] = (shares[code] ?? 0) + mark.share;
    }
  }
  return shares;
}
