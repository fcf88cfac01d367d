/** Links of a run: only what a page may open. */

import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { addressOf } from '../src/links';

const door = (url: string) => ({ kind: 'jupyterlab', title: 'JupyterLab', url, hint: '' });

test('only https addresses are links', () => {
  assert.equal(addressOf(door('https://lab.nodes.azureml.ms/x')), 'https://lab.nodes.azureml.ms/x');
  for (const url of ['', 'http://lab', 'javascript:alert(1)', 'wss://lab', 'lab']) {
    assert.equal(addressOf(door(url)), '', url);
  }
});
