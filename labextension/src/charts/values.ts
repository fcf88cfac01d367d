/** Values beside charts: in captions, and as tiles. */

import type { TranslationBundle } from '@jupyterlab/translation';

/** The value beside a title: the last one, or the mean or peak of a run that has ended, of all that there is. */
export function valueText(
  values: readonly (number | null)[],
  which: 'last' | 'mean' | 'peak',
  format: (value: number) => string,
  all: string | number | null,
  trans: TranslationBundle
): string {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  if (!known.length) {
    return trans.__('n/a');
  }
  const value =
    which === 'peak' ? Math.max(...known) : which === 'mean' ? known.reduce((sum, each) => sum + each, 0) / known.length : known[known.length - 1];
  const text = format(value);
  const named = which === 'peak' ? trans.__('peak %1', text) : which === 'mean' ? trans.__('mean %1', text) : text;
  return all ? trans.__('%1 of %2', named, all) : named;
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
