import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { divide, fitting, ISectionNeed, storedLayout } from '../src/panel/accordionLayout';

const compute: ISectionNeed = { open: true, minimum: 70, preferred: 92, flex: 0 };
const runs: ISectionNeed = { open: true, minimum: 140, preferred: 300, flex: 3 };
const gpus: ISectionNeed = { open: true, minimum: 110, preferred: 240, flex: 2 };
const submit: ISectionNeed = { open: false, minimum: 110, preferred: 350, flex: 1 };

test('preferences are met where there is room, and runs have the rest', () => {
  assert.deepEqual(divide(735, [compute, runs, gpus, submit]), [92, 403, 240, 0]);
});

test('with less room all have at minimum what they can be used with', () => {
  const sizes = divide(735, [compute, runs, gpus, { ...submit, open: true }]);
  assert.equal(
    Math.round(sizes.reduce((a, b) => a + b, 0)),
    735
  );
  [70, 140, 110, 110].forEach((minimum, i) => assert.ok(sizes[i] >= minimum));
  assert.ok(sizes[0] <= 92 && sizes[2] <= 240 && sizes[3] <= 350);
});

test('a form is seen whole before others get more than the minimum', () => {
  assert.deepEqual(divide(735, [{ ...compute, preferred: 450, prioritized: true }, runs, gpus, submit]).map(Math.round), [450, 159, 126, 0]);
  assert.deepEqual(divide(500, [{ ...compute, preferred: 450, prioritized: true }, runs, gpus, submit]), [250, 140, 110, 0]);
});

test('too little room is shared', () => {
  assert.deepEqual(divide(160, [compute, runs, gpus, submit]), [35, 70, 55, 0]);
});

test('with the runs closed the GPUs have the rest, and one alone has all', () => {
  assert.deepEqual(divide(700, [compute, { ...runs, open: false }, gpus, submit]), [92, 0, 608, 0]);
  assert.deepEqual(divide(700, [compute].concat([runs, gpus].map(s => ({ ...s, open: false })))), [700, 0, 0]);
  assert.deepEqual(divide(700, [{ ...compute, open: false }]), [0]);
});

test('those that were opened last stay open where there is no room for all', () => {
  assert.equal(fitting(735, [300, 170, 120, 90]), 4);
  assert.equal(fitting(500, [300, 170, 120, 90]), 2);
  assert.equal(fitting(400, [300, 170, 120, 90]), 1);
  assert.equal(fitting(100, [300, 170, 120, 90]), 1);
  assert.equal(fitting(100, []), 0);
});

test('what was remembered is taken as far as it makes sense', () => {
  assert.equal(storedLayout(undefined), null);
  assert.equal(storedLayout('x'), null);
  assert.deepEqual(storedLayout({ closed: ['gpus', 3], recent: ['runs', null], sizes: { runs: 300, gpus: 'big', compute: -1 } }), {
    closed: ['gpus'],
    recent: ['runs'],
    sizes: { runs: 300 }
  });
});
