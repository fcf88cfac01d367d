/** Links of a run: its studio page, JupyterLab, TensorBoard and other endpoints of its job. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { IRunLink } from './protocol';

/** Return the HTTPS address of a run link; empty if the link has none. */
export function addressOf(link: IRunLink): string {
  try {
    return new URL(link.url).protocol === 'https:' ? link.url : '';
  } catch {
    return '';
  }
}

/** Redraw the links in `node` if they have changed: an anchor, or a hint for the user. */
export function drawLinks(node: HTMLElement, links: readonly IRunLink[] | undefined, trans: TranslationBundle): void {
  const key = JSON.stringify(links ?? []);
  if (node.dataset.links === key) {
    return;
  }
  node.dataset.links = key;
  node.hidden = !links?.length;
  node.replaceChildren(
    ...(links ?? []).map(link => {
      const address = addressOf(link);
      const created = document.createElement(address ? 'a' : 'span');
      created.className = 'jp-AmlDoor';
      created.textContent = address || !link.hint ? link.title : `${link.title}: ${link.hint}`;
      if (created instanceof HTMLAnchorElement) {
        created.href = address;
        created.target = '_blank';
        created.rel = 'noopener noreferrer';
        created.title = trans.__('Open %1 in a new tab', link.title);
      }
      return created;
    })
  );
}
