/** Table of the steps of a pipeline or the trials of a sweep or AutoML job. Values are never inserted as HTML. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { addressOf } from './links';
import { duration, number } from './format';
import type { IChildRun } from './protocol';

/** Show the log of a child run. */
export type OpenLog = (child: IChildRun) => void;

/** Metric of a child run, e.g. `loss 0.125`; may be empty. */
export function metricOf(child: IChildRun): string {
  return child.metric ? `${child.metric} ${number(child.value)}` : '';
}

/** Duration of a child run until now or its end; empty before its start. */
export function timeOf(child: IChildRun, now: number): string {
  if (child.started === null) {
    return '';
  }
  const seconds = Math.max(0, (child.ended ?? now) - child.started);
  return child.ended === null ? duration(Math.round(seconds)) : duration(seconds);
}

function cell(row: HTMLTableRowElement, name: string, text = ''): HTMLTableCellElement {
  const created = row.insertCell();
  created.className = `jp-AmlChildren-${name}`;
  created.setAttribute('role', 'cell');
  created.textContent = text;
  return created;
}

export class ChildrenTable {
  /**
   * @param openLog absent if logs cannot be shown here
   */
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _openLog: OpenLog | null
  ) {
    this.node = document.createElement('div');
    this.node.className = 'jp-AmlChildren';
    this.node.hidden = true;
  }

  readonly node: HTMLElement;

  /** Redraw after a change; `tick` updates the durations of running children. */
  update(children: readonly IChildRun[] | undefined, hidden = 0): void {
    const key = JSON.stringify([children ?? [], hidden]);
    if (key === this._key) {
      return;
    }
    this._key = key;
    this._children = children ?? [];
    this._times = [];
    this.node.hidden = !this._children.length;
    this.node.replaceChildren();
    if (this._children.length) {
      this._draw(hidden);
    }
  }

  tick(): void {
    const now = Date.now() / 1000;
    this._children.forEach((child, at) => {
      const text = timeOf(child, now);
      if (this._times[at].textContent !== text) {
        this._times[at].textContent = text;
      }
    });
  }

  private _draw(hidden: number): void {
    const trans = this._trans;
    const steps = this._children[0].kind === 'step';
    const table = document.createElement('table');
    // Keep the table role where the style displays rows as blocks.
    table.setAttribute('role', 'table');
    table.setAttribute('aria-label', steps ? trans.__('Steps') : trans.__('Trials'));
    const head = table.createTHead().insertRow();
    const titles = [
      steps ? trans.__('Step') : trans.__('Trial'),
      trans.__('State'),
      trans.__('Metric'),
      trans.__('Time'),
      ...(this._openLog ? [trans.__('Log')] : [])
    ];
    for (const title of titles) {
      const created = document.createElement('th');
      created.scope = 'col';
      created.textContent = title;
      head.append(created);
    }
    const body = table.createTBody();
    for (const child of this._children) {
      this._row(body.insertRow(), child);
    }
    this.node.append(table);
    if (hidden > 0) {
      const more = document.createElement('div');
      more.className = 'jp-AmlChildren-more';
      more.textContent = trans._n('and %1 more', 'and %1 more', hidden);
      this.node.append(more);
    }
    this.tick();
  }

  private _row(row: HTMLTableRowElement, child: IChildRun): void {
    const trans = this._trans;
    row.setAttribute('role', 'row');
    row.dataset.child = child.id;
    row.dataset.state = child.state;
    row.classList.toggle('jp-mod-best', child.best);
    const name = cell(row, 'name');
    const url = addressOf({ kind: 'studio', title: child.name, url: child.url, hint: '' });
    if (url) {
      const link = document.createElement('a');
      link.href = url;
      link.target = '_blank';
      link.rel = 'noopener noreferrer';
      link.textContent = child.name;
      link.title = trans.__('Open the page of %1 in a new tab', child.name);
      name.append(link);
    } else {
      name.textContent = child.name;
    }
    const state = cell(row, 'state', child.state);
    state.title = child.detail;
    const metric = cell(row, 'metric', metricOf(child));
    if (child.best) {
      const best = document.createElement('span');
      best.className = 'jp-AmlChildren-best';
      best.textContent = trans.__('best');
      metric.append(' ', best);
    }
    this._times.push(cell(row, 'time'));
    const open = this._openLog;
    if (open) {
      const log = document.createElement('button');
      log.type = 'button';
      log.className = 'jp-mod-styled jp-mod-minimal';
      log.textContent = trans.__('Log');
      log.setAttribute('aria-label', trans.__('Log of %1', child.name));
      // Before its start, a child has no log.
      log.disabled = child.started === null;
      log.addEventListener('click', () => open(child));
      cell(row, 'log').append(log);
    }
    if (child.detail && child.state === 'failed') {
      const detailRow = (row.parentElement as HTMLTableSectionElement).insertRow();
      detailRow.className = 'jp-AmlChildren-why';
      const detail = detailRow.insertCell();
      detail.colSpan = open ? 5 : 4;
      detail.textContent = child.detail;
    }
  }

  private _children: readonly IChildRun[] = [];
  private _times: HTMLElement[] = [];
  private _key = '';
}
