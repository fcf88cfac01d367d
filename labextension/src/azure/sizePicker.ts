/** Choice of a machine size: the table of `%aml_compute sizes`, to filter, sort and choose from. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { bytes } from '../format';
import type { IPanelContext } from '../panel/tokens';
import type { ISizeRow, ISizesReply } from '../protocol';
import { allow, button, element, say } from '../sections/dom';
import { FormDialog } from '../sections/formDialog';
import { filterSizes, IColumn, sizeColumns, sortSizes } from './sizeText';

/** Milliseconds for the answer: the service process may have to start and sign in. */
const SIZES_TIMEOUT_MS = 120000;

export interface ISizeChoice {
  readonly kind: string;
  readonly workspace: string;
  readonly region: string;
  /** Whether the machines are low-priority ones. */
  readonly low: boolean;
}

/** Let the user choose a size; `null`: nothing was chosen. */
export function chooseSize(context: IPanelContext, { kind, workspace, region, low }: ISizeChoice): Promise<string | null> {
  return new Promise(resolve => {
    const { trans, model } = context;
    const picker = new SizePicker(trans, low, name => end(name));
    const dialog = new FormDialog(picker, trans.__('Choose a machine size'), trans);
    const end = (name: string | null) => {
      dialog.dispose();
      resolve(name);
    };
    dialog.canceled.connect(() => end(null));
    dialog.open();
    model.request('sizes', { kind, workspace, region }, SIZES_TIMEOUT_MS).then(
      reply => picker.isDisposed || picker.fill(reply),
      error => picker.isDisposed || picker.fail(error instanceof Error ? error.message : String(error))
    );
  });
}

class SizePicker extends Widget {
  constructor(
    private readonly _trans: TranslationBundle,
    low: boolean,
    private readonly _done: (name: string | null) => void
  ) {
    super();
    const trans = _trans;
    this.addClass('jp-AmlSizes');
    this._columns = sizeColumns(trans, low, bytes);
    this._words.type = 'search';
    this._words.placeholder = trans.__('Filter: T4, NC, 80 GB, …');
    this._words.setAttribute('aria-label', trans.__('Filter sizes'));
    this._words.addEventListener('input', () => this._draw());
    this._gpuOnly.type = 'checkbox';
    this._gpuOnly.checked = true;
    this._gpuOnly.addEventListener('change', () => this._draw());
    const gpus = element('label', 'jp-AmlSizes-gpus', '', this._gpuOnly, document.createTextNode(trans.__('With GPUs')));
    this._message.setAttribute('role', 'status');
    say(this._message, trans.__('Asking Azure ML for its sizes, prices and quotas…'));
    this._body.setAttribute('aria-label', trans.__('Machine sizes'));
    this._use = button(trans.__('Use this size'), 'accept', () => this._done(this._chosen));
    const cancel = button(trans.__('Cancel'), 'reject', () => this._done(null));
    this._makeHead();
    const table = element('table', 'jp-AmlSizes-table', '', this._head, this._body);
    this.node.append(
      element('h3', 'jp-AmlNew-title', trans.__('Choose a machine size')),
      element('div', 'jp-AmlSizes-filter', '', this._words, gpus),
      element('div', 'jp-AmlSizes-scroll', '', table),
      this._message,
      element('div', 'jp-AmlNew-foot', '', this._warning, element('div', 'jp-AmlForm-buttons', '', cancel, this._use))
    );
    this._warning.setAttribute('role', 'status');
    this._body.addEventListener('click', event => this._choose(this._nameAt(event.target)));
    this._body.addEventListener('dblclick', event => this._nameAt(event.target) && this._done(this._nameAt(event.target)));
    this._body.addEventListener('keydown', event => this._key(event));
    this._choose('');
  }

  /** Show the answer of the kernel. */
  fill(reply: ISizesReply): void {
    if (reply.error) {
      this.fail(reply.error);
      return;
    }
    this._reply = reply;
    this._gpuOnly.checked = reply.sizes.some(size => size.gpus > 0);
    this._draw();
    this._words.focus();
  }

  fail(text: string): void {
    say(this._message, text);
    this._message.classList.add('jp-AmlForm-error');
  }

  private _makeHead(): void {
    const row = element('tr');
    this._columns.forEach((column, at) => {
      const sort = element('button', '', column.title);
      sort.type = 'button';
      sort.addEventListener('click', () => {
        this._down = this._sorted === at ? !this._down : false;
        this._sorted = at;
        this._draw();
      });
      const cell = element('th', column.numeric ? 'jp-mod-number' : '', '', sort);
      cell.scope = 'col';
      row.append(cell);
    });
    this._head.append(row);
  }

  private _draw(): void {
    const sizes = filterSizes(this._reply?.sizes ?? [], this._words.value, this._gpuOnly.checked);
    this._shown = this._sorted < 0 ? sizes : sortSizes(sizes, this._columns[this._sorted], this._down);
    [...this._head.querySelectorAll('th')].forEach((cell, at) => {
      cell.setAttribute('aria-sort', at !== this._sorted ? 'none' : this._down ? 'descending' : 'ascending');
    });
    this._body.replaceChildren(...this._shown.map(size => this._row(size)));
    if (!this._shown.some(size => size.name === this._chosen)) {
      this._choose('');
    }
    this._mark();
    const currency = this._reply?.currency || '';
    const notes = [
      this._trans._n('%1 size', '%1 sizes', this._shown.length),
      currency ? this._trans.__('prices in %1 per hour and machine, as Azure ML estimates them', currency) : ''
    ];
    say(this._message, notes.filter(Boolean).join('; '));
  }

  private _row(size: ISizeRow): HTMLElement {
    const row = element('tr');
    row.dataset.size = size.name;
    row.classList.toggle('jp-mod-retired', size.retired);
    row.classList.toggle('jp-mod-none', size.fit === 0);
    row.append(
      ...this._columns.map(column => element('td', column.numeric ? 'jp-mod-number' : '', column.text(size)))
    );
    return row;
  }

  private _nameAt(node: EventTarget | null): string {
    return node instanceof Element ? (node.closest<HTMLElement>('tr')?.dataset.size ?? '') : '';
  }

  private _choose(name: string): void {
    this._chosen = name;
    const size = this._shown.find(each => each.name === name);
    allow(this._use, size ? '' : this._trans.__('Choose a size in the table.'));
    const warnings = [
      size?.retirement ? this._trans.__('%1: %2. Azure may reject it, or stop its machines.', name, size.retirement) : '',
      size?.fit === 0 ? this._trans.__('The quota of the workspace has no room for a machine of this size.') : ''
    ].filter(Boolean);
    say(this._warning, warnings.join(' '));
    this._warning.hidden = warnings.length === 0;
    this._mark();
  }

  /** Mark the chosen row, which is the one in reach of Tab; without one the first is. */
  private _mark(): void {
    const rows = [...this._body.children] as HTMLElement[];
    const at = rows.findIndex(row => row.dataset.size === this._chosen);
    rows.forEach((row, i) => {
      row.tabIndex = i === Math.max(0, at) ? 0 : -1;
      row.setAttribute('aria-selected', String(i === at));
    });
  }

  private _key(event: KeyboardEvent): void {
    const at = this._shown.findIndex(size => size.name === this._nameAt(event.target));
    const last = this._shown.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (to !== undefined) {
      const size = this._shown[Math.max(0, Math.min(last, to))];
      event.preventDefault();
      this._choose(size.name);
      this._body.querySelector<HTMLElement>('[aria-selected="true"]')?.focus();
    } else if (event.key === 'Enter' && at >= 0) {
      event.preventDefault();
      this._done(this._shown[at].name);
    } else if (event.key === ' ' && at >= 0) {
      event.preventDefault();
      this._choose(this._shown[at].name);
    }
  }

  private readonly _columns: readonly IColumn[];
  private _reply: ISizesReply | null = null;
  private _shown: readonly ISizeRow[] = [];
  private _sorted = -1;
  private _down = false;
  private _chosen = '';
  private readonly _words = element('input', 'jp-AmlForm-input jp-mod-styled');
  private readonly _gpuOnly = element('input');
  private readonly _message = element('div', 'jp-AmlForm-help');
  private readonly _warning = element('div', 'jp-AmlSizes-warning');
  private readonly _head = element('thead');
  private readonly _body = element('tbody');
  private readonly _use: HTMLButtonElement;
}
