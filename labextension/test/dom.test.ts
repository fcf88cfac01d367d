import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { stopOf } from '../src/sections/dom';

const button = (usable: boolean, stop: boolean) => ({ usable, stop });

test('the stop stays on a button that can be pressed', () => {
  assert.equal(stopOf([button(true, false), button(true, true)]), 1);
});

test('it leaves a disabled button for the first that can be pressed', () => {
  assert.equal(stopOf([button(false, false), button(true, false), button(false, true)]), 1);
});

test('there is none where nothing can be pressed', () => {
  assert.equal(stopOf([button(false, true)]), -1);
  assert.equal(stopOf([]), -1);
});
