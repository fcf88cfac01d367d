/** Values beside charts: in captions, and as tiles. */

import type { TranslationBundle } from '@jupyterlab/translation';

/** A range and the whole of which it is a part, with a common unit once: `13.8 to 17.2 of 80 GiB`. */
export function joined(ends: readonly string[], whole: string, trans: TranslationBundle): string {
  const texts = [...new Set(ends), ...(whole ? [whole] : [])];
  const units = new Set(texts.map(text => / \S+$/.exec(text)?.[0] ?? text));
  const parts = units.size === 1 ? texts.map((text, i) => (i < texts.length - 1 ? text.replace(/ \S+$/, '') : text)) : texts;
  const range = whole ? parts.slice(0, -1) : parts;
  const text = range.length > 1 ? trans.__('%1 to %2', ...range) : range[0];
  return whole ? trans.__('%1 of %2', text, whole) : text;
}

/** Show metrics that have one value. */
export function drawTiles(node: HTMLElement, values: readonly (readonly [name: string, text: string])[]): void {
  const key = JSON.stringify(values);
  node.hidden = values.length === 0;
  if (node.dataset.key !== key) {
    node.dataset.key = key;
    node.replaceChildren(
      ...values.map(([name, text]) => {
        const part = (className: string, content: string) => {
          const made = document.createElement('span');
          made.className = className;
          made.textContent = content;
          return made;
        };
        const tile = part('jp-AmlRun-tile', '');
        tile.append(part('jp-AmlRun-tileName', name), part('jp-AmlRun-tileValue', text));
        return tile;
      })
    );
  }
}
