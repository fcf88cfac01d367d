import * as assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { spans } from '../src/terminalSpans';

const classes = (line: string) => spans(line).map(part => part.classes);

test('colors are classes, unknown codes are nothing, and text is text', () => {
  assert.deepEqual(
    spans('a\u001b[1;31mred\u001b[0m <b>\u001b[2K\u001b]8;;x\u0007link').map(s => [s.text, s.classes.join(' ')]),
    [['a', ''], ['red', 'ansi-red-intense-fg ansi-bold'], [' <b>', ''], ['link', '']]
  );
  assert.equal(spans('\u001b[38;5;208mo')[0].color, 'rgb(255, 135, 0)');
  assert.equal(spans('\u001b[48;2;1;2;300mo')[0].background, 'rgb(1, 2, 255)');
  assert.deepEqual(classes('\u001b[38;5;9mo'), [['ansi-red-intense-fg']]);
  assert.deepEqual(classes('\u001b[7mo'), [['ansi-default-inverse-fg', 'ansi-default-inverse-bg']]);
  assert.deepEqual(classes('\u001b[42;94mo\u001b[39;49mp'), [['ansi-blue-intense-fg', 'ansi-green-bg'], []]);
  assert.deepEqual(spans('\u001b[m\u001b['), []);
});

test('bold, dim, italic and underlined text begins and ends by its own codes', () => {
  assert.deepEqual(classes('\u001b[1;2;3;4mo'), [['ansi-bold', 'ansi-dim', 'ansi-italic', 'ansi-underline']]);
  assert.deepEqual(classes('\u001b[1;2;3;4m\u001b[22mo\u001b[23mp\u001b[24mq'), [['ansi-italic', 'ansi-underline'], ['ansi-underline'], []]);
  assert.deepEqual(classes('\u001b[1;2m\u001b[21mo\u001b[0mp'), [['ansi-dim'], []]);
});

/** Colors by name in the first rule whose selector begins with a text. */
function rule(css: string, selector: string): Record<string, string> {
  const at = css.indexOf(selector);
  assert.ok(at >= 0, selector);
  const body = css.slice(css.indexOf('{', at), css.indexOf('}', at));
  return Object.fromEntries([...body.matchAll(/([\w-]+): (#[0-9a-f]{6});/g)].map(match => [match[1], match[2]]));
}

function luminance(color: string): number {
  const [r, g, b] = [1, 3, 5].map(i => {
    const value = parseInt(color.slice(i, i + 2), 16) / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one: string, other: string): number {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

test('16 colors can be read on both themes, and text on 16 backgrounds', () => {
  const css = readFileSync('labextension/style/terminal.css', 'utf8');
  const themes = [
    ['.jp-AmlTerminal {', '#f5f5f5'],
    ["[data-jp-theme-light='false'] .jp-AmlTerminal {", '#212121']
  ];
  for (const [selector, background] of themes) {
    const colors = Object.entries(rule(css, selector));
    assert.equal(colors.length, 16);
    colors.forEach(([name, color]) => assert.ok(contrast(color, background) >= 4.5, `${name} on ${background}`));
  }
  // Text on a background is black or white.
  const shades = [...css.matchAll(/-bg {\n {2}background-color: (#[0-9a-f]{6});/g)].map(match => match[1]);
  assert.equal(shades.length, 16);
  shades.forEach(shade => assert.ok(Math.max(contrast(shade, '#000000'), contrast(shade, '#ffffff')) >= 7, shade));
});
