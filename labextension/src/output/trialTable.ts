/** Table of the trials of a sweep. Rows are kept from one update to the next; of many trials only those in view have one. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { duration } from '../format';
import type { ISweepBoard } from '../protocol';
import { hasFailed, IOrder, isLive, ITrial, paramText, SortKey } from '../sweep';
import type { Hovered } from './trialCharts';

/** Trials up to which all rows are in the page. */
const MAX_WHOLE_ROWS = 100;
/** Rows above and below those in view. */
const SPARE_ROWS = 8;
const DEFAULT_ROW_HEIGHT = 25;
const DEFAULT_VIEW_ROWS = 16;
/** Widths of columns, in digits. */
const MIN_COLUMN = 5;
const MAX_COLUMN = 24;
const REASON_COLUMN = 24;
const STATE_COLUMN = 16;
/** Width of a letter, in digits. */
const LETTER = 0.9;

/** What a click in a row does; those that are absent have no button. */
export interface ITrialActions {
  open?: (trial: ITrial) => void;
  cancel?: (trial: ITrial) => void;
}

interface IColumn {
  key: SortKey;
  title: string;
  isNumber: boolean;
  text: (trial: ITrial) => string;
}

/** What the table shows. */
export interface ITableData {
  board: ISweepBoard;
  parameters: readonly string[];
  /** All trials. */
  trials: readonly ITrial[];
  /** Those that are shown, in order. */
  shown: readonly ITrial[];
  order: IOrder;
  format: (value: number | null) => string;
  actions: ITrialActions;
  /** Handle of the trial that is shown below. */
  opened: string;
  /** Handles of trials that are being canceled. */
  canceling: ReadonlySet<string>;
}

function element<K extends keyof HTMLElementTagNameMap>(tag: K, name: string, content = ''): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = `jp-AmlSweep-${name}`;
  node.textContent = content;
  return node;
}

function write(node: Node, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** One row, for one trial. */
class TrialRow {
  constructor(
    private readonly _trans: TranslationBundle,
    public trial: ITrial,
    columns: readonly IColumn[],
    act: (name: 'open' | 'cancel') => void
  ) {
    this.node = document.createElement('tr');
    this.node.dataset.trial = String(trial.number);
    this._open = element('button', 'open', String(trial.number));
    this._open.type = 'button';
    this._open.setAttribute('aria-label', _trans.__('Trial %1', trial.number));
    this._open.addEventListener('click', () => act('open'));
    this._best = element('span', 'bestBadge', _trans.__('best'));
    this._cancel = element('button', 'cancel', _trans.__('Cancel'));
    this._cancel.classList.add('jp-AmlRun-link');
    this._cancel.type = 'button';
    this._cancel.setAttribute('aria-label', _trans.__('Cancel trial %1', trial.number));
    this._cancel.addEventListener('click', () => act('cancel'));
    for (const { key, isNumber } of columns) {
      const cell = this.node.insertCell();
      cell.dataset.key = key;
      cell.classList.toggle('jp-mod-number', isNumber);
      if (key === 'number') {
        cell.append(this._open);
        continue;
      }
      const text = document.createTextNode('');
      if (key === 'value') {
        cell.append(this._best);
      }
      cell.append(text);
      if (key === 'state') {
        cell.append(this._cancel);
      }
      this._texts.set(key, text);
    }
  }

  readonly node: HTMLTableRowElement;

  update(trial: ITrial, columns: readonly IColumn[], index: number, data: ITableData): void {
    const { node } = this;
    this.trial = trial;
    node.dataset.state = trial.state;
    node.classList.toggle('jp-mod-best', trial.best);
    if (node.getAttribute('aria-rowindex') !== String(index)) {
      node.setAttribute('aria-rowindex', String(index));
    }
    const isCanceling = isLive(trial) && data.canceling.has(trial.handle);
    for (const { key, text } of columns) {
      const part = this._texts.get(key);
      const content = key === 'state' && isCanceling ? this._trans.__('canceling') : text(trial);
      if (part && part.data !== content) {
        part.data = content;
        (part.parentElement as HTMLElement).title = content;
      }
    }
    this._best.hidden = !trial.best;
    const isOpen = trial.handle !== '' && trial.handle === data.opened;
    const isOpenable = trial.handle !== '' && data.actions.open !== undefined;
    node.classList.toggle('jp-mod-opened', isOpen);
    node.classList.toggle('jp-mod-openable', isOpenable);
    this._open.disabled = !isOpenable;
    this._open.setAttribute('aria-expanded', String(isOpen));
    const title = isOpen ? this._trans.__('Hide the run of this trial') : isOpenable ? this._trans.__('Show the run of this trial below') : '';
    if (this._open.title !== title) {
      this._open.title = title;
    }
    this._cancel.hidden = !isLive(trial) || isCanceling || trial.handle === '' || data.actions.cancel === undefined;
  }

  private readonly _open: HTMLButtonElement;
  private readonly _best: HTMLElement;
  private readonly _cancel: HTMLButtonElement;
  private readonly _texts = new Map<SortKey, Text>();
}

export class TrialTable {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _sort: (key: SortKey) => void,
    private readonly _hovered: Hovered
  ) {
    this.node = element('div', 'scroll');
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', _trans.__('Trials'));
    this._table = element('table', 'table');
    this._table.setAttribute('aria-label', _trans.__('Trials of the sweep'));
    this._columnsNode = document.createElement('colgroup');
    this._head = document.createElement('thead');
    this._body = document.createElement('tbody');
    this._above = this._spacer();
    this._below = this._spacer();
    this._table.append(this._columnsNode, this._head, this._above, this._body, this._below);
    this._empty = element('div', 'empty');
    this.node.append(this._table, this._empty);
    this.node.addEventListener('scroll', () => this._drawRows());
    this._resize = new ResizeObserver(() => this._drawRows());
    this._resize.observe(this.node);
    this._body.addEventListener('pointerover', event => this._hover(this._trialOf(event.target)?.at ?? null));
    this._body.addEventListener('focusin', event => this._hover(this._trialOf(event.target)?.at ?? null));
    this._table.addEventListener('pointerleave', () => this._hover(null));
    this._table.addEventListener('focusout', () => this._hover(null));
    this._body.addEventListener('click', event => this._onClick(event));
  }

  readonly node: HTMLElement;

  update(data: ITableData): void {
    this._data = data;
    this._columns = this._columnsOf(data);
    this._drawHead();
    this._table.setAttribute('aria-rowcount', String(data.shown.length + 1));
    for (const key of this._rows.keys()) {
      if (!data.trials.some(trial => trial.number === key)) {
        this._rows.get(key)?.node.remove();
        this._rows.delete(key);
      }
    }
    const isEmpty = data.shown.length === 0;
    write(this._empty, isEmpty ? (data.trials.length ? this._trans.__('No trial matches.') : this._trans.__('No trial yet.')) : '');
    this._empty.hidden = !isEmpty;
    this._drawRows();
  }

  /** Mark the row of the trial that the pointer is on elsewhere. */
  highlight(at: number | null): void {
    this._highlighted = at;
    for (const row of this._rows.values()) {
      row.node.classList.toggle('jp-mod-hovered', row.trial.at === at);
    }
  }

  dispose(): void {
    this._resize.disconnect();
  }

  private _spacer(): HTMLTableSectionElement {
    const body = element('tbody', 'spacer');
    body.setAttribute('aria-hidden', 'true');
    body.insertRow().insertCell();
    body.hidden = true;
    return body;
  }

  private _columnsOf({ board, parameters, trials, format }: ITableData): IColumn[] {
    const trans = this._trans;
    return [
      { key: 'number', title: trans.__('Trial'), isNumber: true, text: trial => String(trial.number) },
      { key: 'state', title: trans.__('State'), isNumber: false, text: trial => trial.state },
      { key: 'value', title: board.metric, isNumber: true, text: trial => format(trial.value) },
      ...parameters.map((name): IColumn => {
        const values = trials.map(trial => trial.params[name]).filter(value => value !== undefined);
        const isNumber = values.every(value => typeof value === 'number') && values.length > 0;
        return { key: `param ${name}`, title: name, isNumber, text: trial => paramText(trial.params[name]) };
      }),
      { key: 'seconds', title: trans.__('Duration'), isNumber: true, text: ({ seconds }) => (seconds === null ? '' : duration(seconds)) },
      { key: 'reason', title: trans.__('Reason'), isNumber: false, text: trial => (hasFailed(trial) || !isLive(trial) ? trial.reason : '') }
    ];
  }

  /** Headings are kept while the columns stay; widths only grow, so that updates and scrolling do not move anything. */
  private _drawHead(): void {
    const data = this._data!;
    const key = JSON.stringify(this._columns.map(({ key, title, isNumber }) => [key, title, isNumber]));
    if (key !== this._headKey) {
      this._headKey = key;
      this._widths = [];
      this._rows.forEach(row => row.node.remove());
      this._rows.clear();
      const row = document.createElement('tr');
      row.setAttribute('aria-rowindex', '1');
      for (const { key, title, isNumber } of this._columns) {
        const cell = document.createElement('th');
        cell.scope = 'col';
        cell.dataset.key = key;
        cell.classList.toggle('jp-mod-number', isNumber);
        const button = element('button', 'sort', title);
        button.type = 'button';
        button.title = key.startsWith('param ') ? [title, data.board.space[title]].filter(Boolean).join(' = ') : title;
        button.addEventListener('click', () => this._sort(key));
        cell.append(button);
        row.append(cell);
      }
      this._head.replaceChildren(row);
      this._columnsNode.replaceChildren(...this._columns.map(() => document.createElement('col')));
      [this._above, this._below].forEach(body => (body.rows[0].cells[0].colSpan = this._columns.length));
    }
    this._columns.forEach(({ key, title, text, isNumber }, i) => {
      const cell = this._head.rows[0].cells[i];
      const sorted = key === data.order.key ? data.order.direction : null;
      if (sorted) {
        cell.setAttribute('aria-sort', sorted);
      } else {
        cell.removeAttribute('aria-sort');
      }
      // A running trial has a button to cancel it.
      const least = key === 'state' ? STATE_COLUMN : 0;
      const longest = data.trials.reduce((length, trial) => Math.max(length, text(trial).length), least);
      // A heading needs room for its arrow, the best value, which is bold, for its badge.
      const content = (isNumber ? longest : LETTER * longest) + (key === 'value' ? 7 : key === 'state' ? 2 : 0);
      const needed = Math.max(LETTER * title.length + 2, content, MIN_COLUMN);
      const width = key === 'reason' ? REASON_COLUMN : Math.ceil(Math.min(MAX_COLUMN, needed));
      if (width > (this._widths[i] ?? 0)) {
        this._widths[i] = width;
        (this._columnsNode.children[i] as HTMLElement).style.width = `calc(${width}ch + 16px)`;
      }
    });
    const sum = this._widths.reduce((total, width) => total + width, 0);
    this._table.style.width = `max(100%, calc(${sum}ch + ${16 * this._columns.length}px))`;
  }

  private _drawRows(): void {
    const data = this._data;
    if (!data) {
      return;
    }
    const total = data.shown.length;
    const height = this._rowHeight;
    let [from, to] = [0, total];
    if (total > MAX_WHOLE_ROWS) {
      const view = this.node.clientHeight ? Math.ceil(this.node.clientHeight / height) : DEFAULT_VIEW_ROWS;
      from = Math.max(0, Math.min(total - view, Math.floor(this.node.scrollTop / height)) - SPARE_ROWS);
      to = Math.min(total, from + view + 2 * SPARE_ROWS);
    }
    const focused = this._body.contains(document.activeElement) ? (document.activeElement as HTMLElement) : null;
    const wanted = new Set<Node>();
    let next = this._body.firstElementChild;
    for (let i = from; i < to; i++) {
      const trial = data.shown[i];
      let row = this._rows.get(trial.number);
      if (!row) {
        row = new TrialRow(this._trans, trial, this._columns, name => this._act(name, trial.number));
        row.node.classList.toggle('jp-mod-hovered', trial.at === this._highlighted);
        this._rows.set(trial.number, row);
      }
      row.update(trial, this._columns, i + 2, data);
      wanted.add(row.node);
      if (row.node === next) {
        next = next.nextElementSibling;
      } else {
        this._body.insertBefore(row.node, next);
      }
    }
    for (const [key, row] of this._rows) {
      if (!wanted.has(row.node)) {
        row.node.remove();
        this._rows.delete(key);
      }
    }
    if (focused && focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true });
    }
    this._setSpace(this._above, from * height);
    this._setSpace(this._below, (total - to) * height);
  }

  private _setSpace(body: HTMLTableSectionElement, pixels: number): void {
    body.hidden = pixels <= 0;
    body.rows[0].cells[0].style.height = `${pixels}px`;
  }

  private get _rowHeight(): number {
    const row = this._body.firstElementChild as HTMLElement | null;
    return row?.getBoundingClientRect().height || DEFAULT_ROW_HEIGHT;
  }

  private _trialOf(target: EventTarget | null): ITrial | undefined {
    const row = (target as Element | null)?.closest?.('tr');
    const number = Number(row?.getAttribute('data-trial') ?? NaN);
    return this._data?.trials.find(trial => trial.number === number);
  }

  private _act(name: 'open' | 'cancel', number: number): void {
    const trial = this._data?.trials.find(each => each.number === number);
    if (trial) {
      this._data?.actions[name]?.(trial);
    }
  }

  private _onClick(event: MouseEvent): void {
    const trial = this._trialOf(event.target);
    const isButton = (event.target as Element).closest('button') !== null;
    // A drag that selects text is no click on the row.
    if (trial?.handle && !isButton && getSelection()?.isCollapsed !== false) {
      this._data?.actions.open?.(trial);
    }
  }

  private _hover(at: number | null): void {
    if (at !== this._own) {
      this._own = at;
      this._hovered(at);
    }
  }

  private readonly _table: HTMLTableElement;
  private readonly _columnsNode: HTMLElement;
  private readonly _head: HTMLTableSectionElement;
  private readonly _body: HTMLTableSectionElement;
  private readonly _above: HTMLTableSectionElement;
  private readonly _below: HTMLTableSectionElement;
  private readonly _empty: HTMLElement;
  private readonly _resize: ResizeObserver;
  /** By the number of the trial. */
  private readonly _rows = new Map<number, TrialRow>();
  private _data: ITableData | null = null;
  private _columns: IColumn[] = [];
  private _widths: number[] = [];
  private _headKey = '';
  private _highlighted: number | null = null;
  private _own: number | null = null;
}
