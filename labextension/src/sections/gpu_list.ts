/** Few GPUs one by one: name, how busy, how full. */

import { TranslationBundle } from '@jupyterlab/translation';
import { bytes } from '../format';
import { say } from './dom';
import { DASHES, labelOf, LINES, percent } from './gpu_charts';
import { GpuStore } from './gpu_store';

/** More of them are a heat map alone. */
export const LISTED = 8;

function part(parent: HTMLElement, tag: string, name: string): HTMLElement {
  const node = document.createElement(tag);
  node.className = `jp-AmlGpus-${name}`;
  parent.append(node);
  return node;
}

const NS = 'http://www.w3.org/2000/svg';

/** The line of a GPU in the charts above: its colour and its dashes. */
function key(gpu: number): SVGElement {
  const node = document.createElementNS(NS, 'svg');
  node.setAttribute('class', 'jp-AmlGpus-key');
  node.setAttribute('aria-hidden', 'true');
  const line = document.createElementNS(NS, 'path');
  line.setAttribute('d', 'M0 4H22');
  line.setAttribute('stroke-dasharray', DASHES[gpu].join(' ') || 'none');
  line.style.stroke = `var(--jp-amlrun-c${gpu})`;
  node.append(line);
  return node;
}

export class GpuList {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('ul');
    this.node.className = 'jp-AmlGpus-list';
    this.node.setAttribute('aria-label', _trans.__('GPUs'));
  }

  readonly node: HTMLElement;

  update(store: GpuStore): void {
    const count = store.count <= LISTED ? store.count : 0;
    this.node.hidden = !count;
    while (this.node.children.length > count) {
      this.node.lastElementChild?.remove();
    }
    for (let g = 0; g < count; g++) {
      this._row(store, g);
    }
  }

  private _row(store: GpuStore, g: number): void {
    let row = this.node.children[g] as HTMLElement | undefined;
    if (!row) {
      row = document.createElement('li');
      const head = part(row, 'div', 'listHead');
      if (g < LINES) {
        head.append(key(g));
      }
      part(head, 'span', 'listLabel');
      part(head, 'span', 'listName');
      const line = part(row, 'div', 'listLine');
      const bar = part(line, 'div', 'bar');
      bar.setAttribute('aria-hidden', 'true');
      part(bar, 'div', 'barFill');
      part(line, 'span', 'listUtil');
      part(line, 'span', 'listMemory');
      this.node.append(row);
    }
    const mark = row.querySelector('.jp-AmlGpus-key');
    mark?.toggleAttribute('hidden', store.count < 2 || store.count > LINES);
    const find = (name: string) => (row as HTMLElement).querySelector(`.jp-AmlGpus-${name}`) as HTMLElement;
    const na = this._trans.__('n/a');
    const i = store.latest;
    const util = i < 0 ? NaN : store.value('util', i, g);
    const share = i < 0 ? NaN : store.value('memory', i, g);
    const size = store.sizes[g];
    say(find('listLabel'), labelOf(store, g));
    say(find('listName'), store.names[g] ?? '');
    find('listName').title = store.names[g] ?? '';
    find('barFill').style.width = `${Number.isNaN(util) ? 0 : util}%`;
    const lost = store.lost.includes(g);
    row.classList.toggle('jp-mod-lost', lost);
    say(find('listUtil'), lost ? this._trans.__('lost') : Number.isNaN(util) ? na : percent(util));
    const held = Number.isNaN(share)
      ? na
      : typeof size === 'number'
        ? this._trans.__('%1 of %2', bytes((share / 100) * size), bytes(size))
        : this._trans.__('%1 of memory', percent(share));
    say(find('listMemory'), lost ? '' : held);
  }
}
