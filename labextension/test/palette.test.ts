import * as assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

/** Colors named `--jp-amlrun-c0` to `c7` in a part of the style sheet. */
function colors(css: string): string[] {
  return [...css.matchAll(/--jp-amlrun-c\d: (#[0-9a-f]{6});/g)].map(match => match[1]);
}

test('palette of the page equals the palette of Python', () => {
  const css = readFileSync('labextension/style/charts.css', 'utf8');
  const [light, dark] = css.split("[data-jp-theme-light='false']");
  const file = ['widgets', 'output'].map(folder => join('jupyter_amltrain', folder, 'palette.py')).find(existsSync);
  assert.ok(file);
  const gpus = /^GPUS = \(([^)]*)\)/m.exec(readFileSync(file, 'utf8'));
  assert.deepEqual(colors(light), gpus?.[1].match(/#[0-9a-f]{6}/g));
  assert.equal(colors(dark).length, 8);
});
