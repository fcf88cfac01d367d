import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import type { IField } from '../src/protocol';
import { keepTyped, labelOf, pasted, rawOf, sortErrors, typed, understands, valueOf } from '../src/sections/fields';

const field = (more: Partial<IField>): IField => ({
  name: 'x',
  flag: '--x',
  kind: 'text',
  help: '',
  default: null,
  required: false,
  joined: false,
  choices: [],
  metavar: '',
  advanced: false,
  label: '',
  group: '',
  not_for: [],
  needs_gpus: false,
  choose: '',
  ...more
});

test('an untouched field is not sent, whatever its kind', () => {
  for (const kind of ['text', 'int', 'number', 'bool', 'choice', 'list', 'target']) {
    for (const value of [null, kind === 'bool' ? true : 4]) {
      const one = field({ kind, default: value });
      assert.equal(valueOf(one, rawOf(one, undefined)), undefined, `${kind} ${value}`);
    }
  }
});

test('what is the same as the default is not sent', () => {
  assert.equal(valueOf(field({ kind: 'int', default: 4 }), ' 4 '), undefined);
  assert.equal(valueOf(field({ kind: 'choice', default: 'spot' }), 'spot'), undefined);
  assert.equal(valueOf(field({ kind: 'list', default: ['a'] }), ['a', ' ']), undefined);
  assert.equal(valueOf(field({ kind: 'bool', default: true }), true), undefined);
  assert.equal(valueOf(field({ kind: 'bool', default: true }), false), false);
  assert.equal(valueOf(field({ kind: 'bool' }), true), true);
});

test('numbers are sent as numbers, other text as it was typed', () => {
  assert.equal(valueOf(field({ kind: 'int' }), '12'), 12);
  assert.equal(valueOf(field({ kind: 'int' }), '1.5'), '1.5');
  assert.equal(valueOf(field({ kind: 'int' }), 'many'), 'many');
  assert.equal(valueOf(field({ kind: 'number' }), '1.5'), 1.5);
  assert.equal(valueOf(field({ kind: 'number' }), '1,5'), '1,5');
  assert.equal(valueOf(field({ kind: 'text' }), '12'), '12');
});

test('a list keeps what is in it', () => {
  assert.deepEqual(valueOf(field({ kind: 'list' }), ['a=1', '', ' b=x, y ']), ['a=1', 'b=x, y']);
  assert.deepEqual(rawOf(field({ kind: 'list' }), ['a=1']), ['a=1']);
  assert.deepEqual(rawOf(field({ kind: 'list' }), 'a=1'), ['a=1']);
  assert.deepEqual(pasted('a=1\r\n\n b=2 '), ['a=1', 'b=2']);
});

test('defaults read as they are typed', () => {
  assert.equal(typed(null), '');
  assert.equal(typed(0), '0');
  assert.equal(typed(['a', 'b']), 'a, b');
});

test('errors go to their field, the others are about the whole', () => {
  const { of, rest } = sortErrors([field({ name: 'nodes' })], { nodes: 'Too many.', '': 'No quota.', size: 'Gone.' });
  assert.deepEqual([...of], [['nodes', 'Too many.']]);
  assert.deepEqual(rest, ['No quota.', 'Gone.']);
});

test('labels come from flags', () => {
  assert.equal(labelOf(field({ flag: '--max-nodes' })), 'Max nodes');
  assert.equal(labelOf(field({ flag: '', name: 'name' })), 'Name');
  assert.equal(labelOf(field({ flag: '--gpus' })), 'GPUs');
  assert.equal(labelOf(field({ flag: '--require-gpu' })), 'Require GPU');
});

test('what is typed while an answer is under way is kept', () => {
  const answer = { gpus: 2, env: ['a=1'] };
  assert.deepEqual(keepTyped({}, {}, answer), answer);
  assert.deepEqual(keepTyped({}, { gpus: 1 }, answer), { gpus: 1, env: ['a=1'] });
  assert.deepEqual(keepTyped({ gpus: 4 }, {}, answer), { env: ['a=1'] });
  assert.deepEqual(keepTyped({ name: 'old' }, { name: 'old' }, answer), answer);
  assert.deepEqual(keepTyped({ env: ['a=1'] }, { env: ['a=1', 'b=2'] }, {}), { env: ['a=1', 'b=2'] });
});

test('a target has only the fields that it understands', () => {
  const service = field({ not_for: ['local', 'fake'] });
  assert.ok(!understands(service, 'local', 0) && understands(service, 'amlcompute', 0));
  const gpus = field({ needs_gpus: true });
  assert.ok(!understands(gpus, 'local', 0) && understands(gpus, 'local', 1) && understands(gpus, 'local', null));
  // A kernel with an older package.
  assert.ok(understands({ ...field({}), not_for: undefined, needs_gpus: undefined } as unknown as IField, 'local', 0));
});

test('a label of its own comes before one from the flag', () => {
  assert.equal(labelOf(field({ flag: '--shm-size', label: 'Shared memory' })), 'Shared memory');
});
