/** Values beside charts: in captions, and as tiles. */

import type { TranslationBundle } from '@jupyterlab/translation';

/** A value and the whole of which it is a part: `12 of 80 GiB`. */
export function partOf(text: string, whole: string, trans: TranslationBundle): string {
  const unit = text.slice(text.lastIndexOf(' '));
  return whole ? trans.__('%1 of %2', whole.endsWith(unit) ? text.slice(0, -unit.length) : text, whole) : text;
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
