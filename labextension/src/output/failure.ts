/** The variables of the lines at which the script of a failed run raised, from its record. */

import { TranslationBundle } from '@jupyterlab/translation';

import { IFrameTable } from '../protocol';

function element(tag: string, name: string, content = ''): HTMLElement {
  const node = document.createElement(tag);
  if (name) {
    node.className = `jp-AmlRun-${name}`;
  }
  node.textContent = content;
  return node;
}

/** Draw the frames, further ones folded; nothing while they are the same. */
export function drawFrames(node: HTMLElement, frames: readonly IFrameTable[], trans: TranslationBundle): void {
  const key = JSON.stringify(frames);
  if (node.dataset.key === key) {
    return;
  }
  node.dataset.key = key;
  node.hidden = !frames.length;
  node.setAttribute('role', 'group');
  node.setAttribute('aria-label', trans.__('Values at failure'));
  node.replaceChildren(...frames.map((frame, i) => drawFrame(frame, i === 0, trans)));
}

function drawFrame(frame: IFrameTable, isFirst: boolean, trans: TranslationBundle): HTMLElement {
  const node = document.createElement('details');
  node.open = !frame.folded;
  const title = element('summary', 'frameTitle', isFirst ? trans.__('Values at failure, %1', frame.title) : frame.title);
  if (frame.code) {
    title.append(' ', element('code', '', frame.code));
  }
  const table = element('table', 'frameTable');
  frame.table.rows.forEach(([name, value], number) => {
    const row = document.createElement('tr');
    row.classList.toggle('jp-mod-named', number < frame.named);
    const head = document.createElement('th');
    head.scope = 'row';
    head.append(element('code', '', name));
    row.append(head, element('td', '', value));
    table.append(row);
  });
  const more = frame.table.more;
  node.append(title, table, ...(more ? [element('div', 'frameMore', trans.__('and %1 more', more))] : []));
  return node;
}
