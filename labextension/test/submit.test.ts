import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { edit, firstLines, folderOf, join, otherMagic, relative, scriptLine, split } from '../src/sections/submitText';

/** The source after the edit. */
const written = (source: string, line: string): string => {
  const { start, end, text } = edit(source, line);
  return source.slice(0, start) + text + source.slice(end);
};

test('the line is split from the code', () => {
  assert.deepEqual(split('x = 1\n'), { line: '', code: 'x = 1\n', start: 0, end: 0 });
  assert.deepEqual(split('%%aml_submit --wait\nx = 1\n'), {
    line: '%%aml_submit --wait',
    code: 'x = 1\n',
    start: 0,
    end: 19
  });
  assert.equal(split('\n  \n%%aml_submit\nx').line, '%%aml_submit');
  assert.equal(split('%%aml_submit').code, '');
});

test('only our own cell magic is split off', () => {
  assert.equal(split('%%aml_submitted\nx').line, '');
  assert.equal(split('x = 1\n%%aml_submit\n').line, '');
  assert.equal(split('%aml_submit train.py').line, '');
});

test('a line is put on top or takes the place of the old one', () => {
  assert.equal(written('x = 1', '%%aml_submit'), '%%aml_submit\nx = 1');
  assert.equal(written('%%aml_submit --wait\nx = 1', '%%aml_submit --gpus 2'), '%%aml_submit --gpus 2\nx = 1');
  assert.equal(written('\n%%aml_submit   \r\nx = 1', '%%aml_submit'), '\n%%aml_submit\nx = 1');
  assert.equal(written('', '%%aml_submit'), '%%aml_submit\n');
  const again = written(written('x = 1', '%%aml_submit --a'), '%%aml_submit --a');
  assert.equal(again, '%%aml_submit --a\nx = 1');
});

test('cells of another magic cannot be submitted', () => {
  assert.equal(otherMagic('%%bash\nls'), '%%bash');
  assert.equal(otherMagic('\n%%time\nx'), '%%time');
  assert.equal(otherMagic('%%aml_submit --wait\nx'), '');
  assert.equal(otherMagic('%matplotlib inline\nx'), '');
  assert.equal(otherMagic('x\n%%bash'), '');
});

test('cells are joined in their order; text is skipped and counted', () => {
  const joined = join([
    { type: 'code', source: '%%aml_submit --wait\nimport a\n' },
    { type: 'markdown', source: '# Title' },
    { type: 'code', source: '\n\nb = 1\n\n' },
    { type: 'code', source: '' }
  ]);
  assert.deepEqual(joined, {
    code: 'import a\n\nb = 1',
    line: '%%aml_submit --wait',
    used: 2,
    skipped: 1,
    refused: ''
  });
  assert.equal(join([{ type: 'code', source: '%%bash\nls' }]).refused, '%%bash');
  // A text cell may begin with anything.
  assert.equal(join([{ type: 'raw', source: '%%bash\nls' }]).refused, '');
  assert.equal(join([{ type: 'code', source: '    indented()\n' }]).code, '    indented()');
});

test('the first lines leave empty ones out', () => {
  assert.equal(firstLines('\na\n\nb\n', 2), 'a\nb');
  assert.equal(firstLines('a\nb\nc', 2), 'a\nb\n…');
  assert.equal(firstLines(''), '');
});

test('files are named from the folder of the notebook', () => {
  assert.equal(relative('nb.ipynb', 'train.py'), 'train.py');
  assert.equal(relative('a/nb.ipynb', 'a/b/train.py'), 'b/train.py');
  assert.equal(relative('a/b/nb.ipynb', 'a/train.py'), '../train.py');
  assert.equal(relative('a/nb.ipynb', 'b/train.py'), '../b/train.py');
  assert.equal(relative('a/nb.ipynb', 'a'), '../a');
  assert.equal(relative('RTC:a/nb.ipynb', 'a/train.py'), 'train.py');
  assert.equal(relative('a/nb.ipynb', 's3:a/train.py'), null);
  assert.equal(folderOf('RTC:a/b/nb.ipynb'), 'a/b');
  assert.equal(folderOf('nb.ipynb'), '');
});

test('the line of a script is found again', () => {
  assert.equal(scriptLine('%aml_submit train.py --wait\n', 'train.py'), '%aml_submit train.py --wait');
  assert.equal(scriptLine("%aml_submit 'train.py'", 'train.py'), "%aml_submit 'train.py'");
  assert.equal(scriptLine('%aml_submit other.py', 'train.py'), '');
  assert.equal(scriptLine('%aml_submit train.py\nx = 1', 'train.py'), '');
  assert.equal(scriptLine('%%aml_submit\ntrain.py', 'train.py'), '');
});
