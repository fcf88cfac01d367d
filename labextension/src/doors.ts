/** Ways to look at a run, or into it: its page at the service, JupyterLab, TensorBoard and the like. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { IRunLink } from './protocol';

/** The address of a door, if a page may link to it. */
export function addressOf(door: IRunLink): string {
  try {
    return new URL(door.url).protocol === 'https:' ? door.url : '';
  } catch {
    return '';
  }
}

/** Draw doors into `node` anew when they have changed: a link, or what to type instead. */
export function drawDoors(node: HTMLElement, doors: readonly IRunLink[] | undefined, trans: TranslationBundle): void {
  const key = JSON.stringify(doors ?? []);
  if (node.dataset.doors === key) {
    return;
  }
  node.dataset.doors = key;
  node.hidden = !doors?.length;
  node.replaceChildren(
    ...(doors ?? []).map(door => {
      const address = addressOf(door);
      const created = document.createElement(address ? 'a' : 'span');
      created.className = 'jp-AmlDoor';
      created.textContent = address || !door.hint ? door.title : `${door.title}: ${door.hint}`;
      if (created instanceof HTMLAnchorElement) {
        created.href = address;
        created.target = '_blank';
        created.rel = 'noopener noreferrer';
        created.title = trans.__('Open %1 in a new tab', door.title);
      }
      return created;
    })
  );
}
