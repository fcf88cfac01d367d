import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { readForms } from '../src/output/forms';
import { goneItems, imageData, logItems, preferredForm } from '../src/output/logItems';
import type { IRunDisplay } from '../src/protocol';
import { normalise } from '../src/record';

const display = (number: number, line: number, blocks: number[][] = []): IRunDisplay => ({
  number, version: 0, line, blocks, data: {}, sizes: {}, partial: false, picture: '', title: ''
});

test('displays stand between the lines in place of their text', () => {
  const lines = ['before', '   a', '0  1', 'after'];
  assert.deepEqual(logItems(lines, [display(1, 1, [[1, 2]])]), ['before', 1, 'after']);
  assert.deepEqual(logItems(lines, []), lines);
});

test('a display above the known lines comes first', () => {
  assert.deepEqual(logItems(['a'], [display(1, -1), display(2, 0), display(3, 1)]), [1, 2, 'a', 3]);
});

test('lines that the page has cut off count', () => {
  assert.deepEqual(logItems(['b', 'c'], [display(1, 4, [[4, 1]]), display(2, 1, [[1, 3]])], 3), [2, 1]);
});

test('numbers of anybody are harmless', () => {
  const huge = [display(1, 1e12, [[-5, 1e12]]), display(2, NaN, [[], [1]])];
  const items = logItems(['a', 'b'], huge);
  assert.ok(items.includes(1));
});

test('text of an update is left out', () => {
  assert.deepEqual(logItems(['0 %', 'x', '50 %', 'y'], [display(1, 0, [[0, 1], [2, 1]])]), [1, 'x', 'y']);
});

test('lines that are gone are found by the next ones', () => {
  assert.equal(goneItems(['a', 1, 'b', 'c'], [1, 'b', 'c', 'd']), 1);
  assert.equal(goneItems(['a'], ['b']), 0);
});

test('a chart of another extension comes before its picture, and a picture before HTML', () => {
  const data = { 'text/html': 'x', 'image/png': 'x', 'application/vnd.vegalite.v5+json': {} };
  assert.equal(preferredForm(data, () => true), 'application/vnd.vegalite.v5+json');
  assert.equal(preferredForm(data, mime => mime === 'text/html'), 'image/png');
  assert.equal(preferredForm({ 'text/html': 'x' }, () => true), 'text/html');
  assert.equal(preferredForm({ 'text/html': 'x', 'text/plain': 't' }, () => false), 'text/plain');
});

test('forms that run scripts are never chosen', () => {
  const data = { 'application/javascript': 'alert(1)', 'text/javascript': '1', 'application/vnd.jupyter.widget-view+json': {} };
  assert.equal(preferredForm(data, mime => !mime.includes('widget')), '');
});

test('an SVG file becomes the URL of an image', () => {
  assert.equal(imageData('image/svg+xml', '<svg>é</svg>'), `data:image/svg+xml;base64,${Buffer.from('<svg>é</svg>').toString('base64')}`);
  assert.equal(imageData('image/png', 'AAAA'), 'data:image/png;base64,AAAA');
});

test('forms come in parts', async () => {
  const text = JSON.stringify({ version: 2, data: { 'text/plain': '😀'.repeat(5) }, sizes: {} });
  const chars = Array.from(text);
  const forms = await readForms(async offset => ({ version: 1, ok: true, text: chars.slice(offset, offset + 7).join(''), chars: chars.length }));
  assert.deepEqual([forms.version, forms.data], [2, { 'text/plain': '😀'.repeat(5) }]);
});

test('displays of any record become displays', () => {
  const raw = [{ number: 3, line: 'x', blocks: [[1, 2], 'y'], data: { 'text/html': '<b>' }, sizes: { a: { width: 'x' } } }, 7, null];
  const { displays } = normalise({ displays: raw });
  assert.deepEqual(displays.map(one => [one.number, one.line, one.blocks]), [[3, -1, [[1, 2], []]], [0, -1, []]]);
  assert.deepEqual(normalise({}).displays, []);
});
