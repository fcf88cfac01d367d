import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { markText, placeMarks } from '../src/inside/lineMarks';
import { IRunLines } from '../src/protocol';

const CODE = ['%%aml_submit --lines', 'for x in loader:', '    y = net(x)', '    y.backward()', '    y = net(x)'];

/** The lines with these numbers in `CODE`. */
function lines(...numbers: number[]): IRunLines {
  const columns = ['line', 'time', 'GPU', 'code'].map(title => ({ title, number: false, help: '' }));
  const rows = numbers.map(n => [String(n), '20 %', '', CODE[n - 1].trim()]);
  const marks = numbers.map((line, row) => ({ line, share: 0.2, total: 0.2, work: 1, row }));
  return { sentence: '', span: 'From 0.0 s to 9.0 s.', table: { key: 'lines', columns, rows, more: 0 }, marks };
}

const placed = (found: IRunLines, text: readonly string[]) => placeMarks(found, text).map(({ line, mark }) => [mark.line, line]);

test('lines of a cell that is as it was submitted are where they were', () => {
  assert.deepEqual(placed(lines(5, 2, 3), CODE), [[2, 2], [3, 3], [5, 5]]);
});

test('a line that was edited has no bar, those around it keep theirs', () => {
  const text = CODE.map((line, at) => (at === 3 ? '    y.backward(retain_graph=True)' : line));
  assert.deepEqual(placed(lines(2, 4, 5), text), [[2, 2], [5, 5]]);
});

test('lines below inserted and removed ones move with their text', () => {
  assert.deepEqual(placed(lines(2, 4, 5), ['', CODE[0], '# two', '# more', ...CODE.slice(1)]), [[2, 5], [4, 7], [5, 8]]);
  assert.deepEqual(placed(lines(2, 4, 5), [...CODE.slice(0, 2), ...CODE.slice(3)]), [[2, 2], [4, 3], [5, 4]]);
});

test('equal lines are not confused', () => {
  assert.deepEqual(placed(lines(5), CODE), [[5, 5]]);
  assert.deepEqual(placed(lines(3), CODE), [[3, 3]]);
});

test('another cell, and one whose magic was removed, have no bars', () => {
  assert.deepEqual(placed(lines(2), CODE.slice(1)), []);
  assert.deepEqual(placed(lines(2), ['%aml_runs attach last']), []);
  assert.deepEqual(placed(lines(2), ['import x', ...CODE]), []);
  assert.deepEqual(placed(lines(2), []), []);
});

test('a text that was cut is the beginning of its line', () => {
  const long = `x = ${'1 + '.repeat(80)}1`;
  const found = lines(2);
  found.table.rows[0][3] = long.slice(0, 200);
  assert.deepEqual(placed(found, [CODE[0], long]), [[2, 2]]);
});

test('the text of a bar has the figures that are known', () => {
  const found = lines(2);
  assert.equal(markText(found, found.marks[0]), 'time: 20 %\nFrom 0.0 s to 9.0 s.');
  assert.equal(markText(found, { ...found.marks[0], row: 7 }), 'From 0.0 s to 9.0 s.');
});
