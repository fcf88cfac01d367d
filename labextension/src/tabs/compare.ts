/** Tab with a comparison of runs. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { LineChart } from '../charts/chart';
import { extent, metricAxis, stepAxis } from '../charts/scale';
import { number } from '../format';
import { Refused } from '../kernel/client';
import type { IPanelContext, IPanelModel } from '../panel/tokens';
import type { IRunRecord } from '../protocol';
import { normalise, TERMINAL } from '../record';
import { element } from '../sections/dom';
import { compareRows, IRow, overlays } from './compareRows';
import { quiet } from './tabText';

/** Poll interval for an active run, in milliseconds. */
const POLL_INTERVAL_MS = 5000;

/** Title of the tab. */
export function titleOf(names: readonly string[], trans: TranslationBundle): string {
  return names.length === 2 ? trans.__('%1 and %2', ...names) : trans.__('%1 and %2 more', names[0], names.length - 1);
}

export class CompareTab extends Widget {
  constructor(
    private readonly _context: IPanelContext,
    readonly handles: readonly string[]
  ) {
    super();
    const { trans, model } = _context;
    this._model = model;
    this.addClass('jp-AmlTab');
    this.addClass('jp-AmlCompare');
    // Style the charts as in a cell output.
    this.addClass('jp-AmlRun');
    this._state = element('div', 'jp-AmlTab-state');
    this._state.setAttribute('role', 'status');
    const label = element('label', 'jp-AmlCompare-only');
    this._only = element('input', '');
    this._only.type = 'checkbox';
    this._only.checked = true;
    this._only.addEventListener('change', () => this._draw(true));
    label.append(this._only, trans.__('Only differences'));
    this._table = element('table', 'jp-AmlCompare-table');
    this._table.setAttribute('aria-label', trans.__('Comparison of %1 runs', handles.length));
    const scroll = element('div', 'jp-AmlCompare-scroll');
    scroll.append(this._table);
    this._key = element('div', 'jp-AmlCompare-key');
    this._charts = element('div', 'jp-AmlRun-charts');
    this._code = element('section', 'jp-AmlCompare-code');
    this._code.setAttribute('aria-label', trans.__('Code'));
    this.node.append(this._state, label, scroll, this._key, this._charts, this._code);
    model.runsChanged.connect(this._changed, this);
    model.connectionChanged.connect(this._connection, this);
    void this._fetch();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    clearTimeout(this._timer);
    this._model.runsChanged.disconnect(this._changed, this);
    this._model.connectionChanged.disconnect(this._connection, this);
    this._lines.forEach(chart => chart.dispose());
    super.dispose();
  }

  protected onActivateRequest(): void {
    this.node.tabIndex = -1;
    this.node.focus({ preventScroll: true });
  }

  protected onAfterShow(): void {
    this._later();
  }

  private _changed(_: IPanelModel, handles: readonly string[]): void {
    if (!handles.length || this.handles.some(handle => handles.includes(handle))) {
      this._later();
    }
  }

  private _connection(): void {
    if (this._records.length && this._model.connection.ready) {
      // Only the busy state of the kernel has changed.
      this._setStatus('');
      this._later();
    } else {
      void this._fetch();
    }
  }

  /** Throttle requests for runs that change many times a second. */
  private _later(): void {
    if (this._timer === undefined && this.isVisible) {
      const wait = Math.max(0, this._fetchedAt + POLL_INTERVAL_MS - Date.now());
      this._timer = setTimeout(() => {
        this._timer = undefined;
        void this._fetch();
      }, wait);
    }
  }

  private async _fetch(): Promise<void> {
    const { trans } = this._context;
    const model = this._model;
    const settled = this._records.every(record => record && record.done && TERMINAL.has(record.state));
    if (this._fetching || this.isDisposed || (settled && this._records.length)) {
      return;
    }
    if (!model.connection.ready) {
      this._setStatus(quiet(trans, model.connection, trans.__('the comparison')));
      return;
    }
    this._fetching = true;
    this._fetchedAt = Date.now();
    try {
      const replies = await Promise.all(this.handles.map(handle => model.request('run', { handle })));
      if (this.isDisposed) {
        return;
      }
      this._records = replies.map(reply => normalise(reply.record));
      this._setStatus('');
      this._draw();
      if (!this._code.hasChildNodes()) {
        // The code of a run never changes.
        this._drawCode((await model.request('code', { handles: [...this.handles] })).diffs);
      }
    } catch (error) {
      this._setStatus(error instanceof Refused ? error.message : quiet(trans, model.connection, trans.__('the comparison')));
    } finally {
      this._fetching = false;
    }
  }

  private _draw(again = false): void {
    const { trans } = this._context;
    const records = this._records;
    if (records.length < 2) {
      return;
    }
    const names = this._names(records);
    this.title.label = titleOf(names, trans);
    const all = compareRows(records, trans);
    const shown = this._only.checked ? all.filter(row => row.differs) : all;
    const key = JSON.stringify([names, shown]);
    if (key !== this._drawn || again) {
      this._drawn = key;
      this._rows(shown, records, names);
    }
    this._overlay(records, names);
  }

  private _names(records: readonly IRunRecord[]): string[] {
    const names = records.map(record => record.name);
    return new Set(names).size < names.length ? records.map(record => record.handle) : names;
  }

  private _rows(rows: readonly IRow[], records: readonly IRunRecord[], names: readonly string[]): void {
    const { trans } = this._context;
    const head = element('thead', '');
    const top = element('tr', '');
    // The column of the marks has a label for screen readers only.
    const corner = element('td', '');
    const mark = element('th', 'jp-AmlCompare-mark');
    mark.scope = 'col';
    mark.setAttribute('aria-label', trans.__('Differs'));
    top.append(corner, mark);
    names.forEach((name, i) => {
      const cell = element('th', 'jp-AmlCompare-run', name);
      cell.scope = 'col';
      cell.dataset.side = String(i % 2);
      cell.dataset.color = String(i);
      if (name !== records[i].handle) {
        cell.append(element('code', '', records[i].handle));
      }
      top.append(cell);
    });
    head.append(top);
    const bodies: HTMLElement[] = [];
    let group = '';
    for (const row of rows) {
      if (row.group !== group || !bodies.length) {
        group = row.group;
        const body = element('tbody', '');
        const line = element('tr', '');
        const cell = element('th', 'jp-AmlCompare-group', group);
        cell.colSpan = 2 + names.length;
        cell.scope = 'rowgroup';
        line.append(cell);
        body.append(line);
        bodies.push(body);
      }
      bodies[bodies.length - 1].append(this._row(row));
    }
    if (!rows.length) {
      const body = element('tbody', '');
      const line = element('tr', '');
      const cell = element('td', '', trans.__('The runs do not differ.'));
      cell.colSpan = 2 + names.length;
      line.append(cell);
      body.append(line);
      bodies.push(body);
    }
    this._table.replaceChildren(head, ...bodies);
  }

  private _row(row: IRow): HTMLElement {
    const { trans } = this._context;
    const line = element('tr', row.differs ? 'jp-mod-differs' : '');
    const name = element('th', 'jp-AmlCompare-name', row.name);
    name.scope = 'row';
    const mark = element('td', 'jp-AmlCompare-mark', row.differs ? '≠' : '');
    if (row.differs) {
      mark.setAttribute('aria-label', trans.__('differs'));
    }
    const cell = (value: string) => {
      const result = element('td', 'jp-AmlCompare-value', value || '–');
      result.title = value;
      return result;
    };
    line.append(name, mark, ...row.values.map(cell));
    return line;
  }

  private _overlay(records: readonly IRunRecord[], names: readonly string[]): void {
    const { trans } = this._context;
    const result = overlays(records);
    this._key.replaceChildren(
      ...names.map((name, i) => {
        const part = element('span', '');
        const line = element('i', '');
        line.dataset.side = String(i % 2);
        line.dataset.color = String(i);
        part.append(line, name);
        return part;
      })
    );
    this._key.hidden = !result.length;
    this._charts.hidden = !result.length;
    for (const [name, chart] of this._lines) {
      if (!result.some(overlay => overlay.name === name)) {
        chart.dispose();
        this._lines.delete(name);
      }
    }
    for (const { name, x, rows } of result) {
      let chart = this._lines.get(name);
      if (!chart) {
        this._lines.set(name, (chart = new LineChart(trans)));
        this._charts.append(chart.node);
      }
      const range = extent(rows.flatMap(y => y ?? []));
      chart.update({
        title: name,
        last: records.map(({ metrics }) => number(metrics[name]?.last)).join(' | '),
        x,
        series: rows.flatMap((y, i) => (y ? [{ name: names[i], y, color: i }] : [])),
        xAxis: stepAxis(x[0], x[x.length - 1]),
        yAxis: range && metricAxis(...range),
        xFormat: String,
        yFormat: number,
        xName: trans.__('step')
      });
    }
  }

  /** The lines that differ between the first run's script and each other one. */
  private _drawCode(diffs: Record<string, string[]>): void {
    const { trans } = this._context;
    const names = this._names(this._records);
    const parts: HTMLElement[] = [element('h3', '', trans.__('Code'))];
    for (const [i, handle] of this.handles.entries()) {
      const lines = diffs[handle] ?? [];
      if (i === 0 || !lines.length) {
        continue;
      }
      const text = element('pre', 'jp-AmlCompare-diff');
      text.tabIndex = 0;
      text.setAttribute('aria-label', trans.__('Changes from %1 to %2', names[0], names[i]));
      for (const line of lines) {
        const kind = line.startsWith('+++') || line.startsWith('---') ? 'file' : line.startsWith('@@') ? 'place' : line[0] === '+' ? 'added' : line[0] === '-' ? 'removed' : 'same';
        const row = element('span', '', `${line}\n`);
        row.dataset.kind = kind;
        text.append(row);
      }
      parts.push(text);
    }
    if (parts.length === 1) {
      parts.push(element('p', '', trans.__('All runs have the same code.')));
    }
    this._code.replaceChildren(...parts);
  }

  private _setStatus(text: string): void {
    this._state.textContent = text;
    this._state.hidden = !text;
  }

  private readonly _model: IPanelModel;
  private readonly _state: HTMLElement;
  private readonly _only: HTMLInputElement;
  private readonly _table: HTMLElement;
  private readonly _key: HTMLElement;
  private readonly _charts: HTMLElement;
  private readonly _code: HTMLElement;
  private readonly _lines = new Map<string, LineChart>();
  private _records: IRunRecord[] = [];
  private _drawn = '';
  private _fetchedAt = 0;
  private _fetching = false;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}
