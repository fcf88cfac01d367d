/** The board of a sweep: summary, charts, importance and table of its trials, linked by what is selected and hovered. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISweepBoard } from '../protocol';
import {
  axesOf,
  bestFirst,
  continueLine,
  formatterOf,
  hasFailed,
  IOrder,
  IPlacedAxis,
  isBrushed,
  ITrial,
  matches,
  nextOrder,
  paramWords,
  sorted,
  SortKey,
  stateCounts,
  trialsOf
} from '../sweep';
import { ParallelChart } from './parallel';
import { BestChart, CurvesChart } from './trialCharts';
import { ITrialActions, TrialTable } from './trialTable';

/** Parameters up to which their importance stands beside their chart. */
const MAX_BESIDE = 7;

/** Beginning of the handles of sweeps with a driver. */
const DRIVEN = 'local/';

/** State of the board that is not in the record. */
export interface IBoardSituation {
  /** Handle of the sweep. */
  handle: string;
  actions: ITrialActions;
  /** Handle of the trial that is shown below the table. */
  opened: string;
  /** Handles of trials that are being canceled. */
  canceling: ReadonlySet<string>;
}

function element<K extends keyof HTMLElementTagNameMap>(tag: K, name: string, parent?: HTMLElement): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = `jp-AmlSweep-${name}`;
  parent?.append(node);
  return node;
}

function write(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
  node.hidden = !text;
}

/** Bars of the parameters' shares in the differences of the metric. */
class ImportanceView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = element('figure', 'importance');
    this.node.classList.add('jp-AmlRun-chart');
    const caption = document.createElement('figcaption');
    this._title = document.createElement('span');
    this._title.className = 'jp-AmlRun-chartTitle';
    caption.append(this._title);
    this._list = element('ul', 'importanceList');
    this.node.append(caption, this._list);
  }

  readonly node: HTMLElement;

  update(board: ISweepBoard): void {
    const shares = Object.entries(board.importance).sort((a, b) => b[1] - a[1]);
    const key = JSON.stringify(shares);
    if (key === this._key) {
      return;
    }
    this._key = key;
    this.node.hidden = shares.length === 0;
    this._title.textContent = this._trans.__('Importance');
    this._title.title = this._trans.__('Share of each parameter in the differences of %1', board.metric);
    const largest = Math.max(...shares.map(([, share]) => share), 1e-9);
    this._list.replaceChildren(
      ...shares.map(([name, share]) => {
        const item = document.createElement('li');
        const label = element('span', 'importanceName', item);
        label.textContent = label.title = name;
        const track = element('span', 'importanceTrack', item);
        element('span', 'importanceBar', track).style.width = `${(100 * share) / largest}%`;
        element('span', 'importanceValue', item).textContent = share > 0 && share < 0.01 ? '< 1 %' : `${Math.round(100 * share)} %`;
        return item;
      })
    );
  }

  private readonly _title: HTMLElement;
  private readonly _list: HTMLElement;
  private _key = '';
}

export class SweepBoardView {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _copyText: (text: string) => void
  ) {
    this.node = element('section', 'board');
    this.node.setAttribute('aria-label', _trans.__('Sweep'));
    const summary = element('div', 'summary', this.node);
    this._counts = element('span', 'counts', summary);
    this._best = element('span', 'best', summary);
    this._copy = element('button', 'copy', summary);
    this._copy.classList.add('jp-AmlRun-link');
    this._copy.type = 'button';
    this._copy.textContent = _trans.__('Copy parameters');
    this._copy.addEventListener('click', () => this._copyBest());
    this._goOn = element('button', 'continue', summary);
    this._goOn.classList.add('jp-AmlRun-link');
    this._goOn.type = 'button';
    this._goOn.textContent = _trans.__('Copy line to continue');
    this._goOn.addEventListener('click', () => this._copyText(this._goOn.title));
    this._goal = element('div', 'goal', this.node);
    this._message = element('div', 'message', this.node);
    const charts = element('div', 'charts', this.node);
    const hovered = (at: number | null) => this._highlight(at);
    this._bestChart = new BestChart(_trans, hovered);
    this._curves = new CurvesChart(_trans, hovered);
    this._parallel = new ParallelChart(_trans, () => this._select(), hovered);
    this._importance = new ImportanceView(_trans);
    this._lower = element('div', 'lower');
    this._lower.append(this._parallel.node, this._importance.node);
    charts.append(this._bestChart.node, this._curves.node, this._lower);
    this._table = new TrialTable(_trans, key => this._sort(key), hovered);
    this.node.append(this._filterBar(), this._table.node);
    this._more = element('div', 'more', this.node);
    this.node.addEventListener('keydown', event => this._onKey(event));
  }

  readonly node: HTMLElement;

  update(board: ISweepBoard | null, situation: IBoardSituation): void {
    this.node.hidden = board === null;
    if (!board) {
      return;
    }
    this._situation = situation;
    const key = JSON.stringify(board);
    if (key === this._key) {
      this._drawTable();
      return;
    }
    this._key = key;
    if (this._board?.goal !== board.goal) {
      this._order = bestFirst(board.goal);
    }
    this._board = board;
    this._trials = trialsOf(board);
    this._axes = axesOf(board);
    this._parameters = this._axes.length ? this._axes.slice(0, -1).map(({ name }) => name) : Object.keys(board.params);
    this._format = formatterOf(this._trials.filter(trial => !hasFailed(trial)).map(({ value }) => value));
    this._drawSummary(board);
    this._importance.update(board);
    this._lower.classList.toggle('jp-mod-wide', this._parameters.length > MAX_BESIDE);
    this._drawStates();
    this._select();
  }

  dispose(): void {
    this._bestChart.dispose();
    this._curves.dispose();
    this._parallel.dispose();
    this._table.dispose();
  }

  private _filterBar(): HTMLElement {
    const trans = this._trans;
    const bar = element('div', 'filters');
    this._words = element('input', 'words', bar);
    this._words.type = 'search';
    this._words.placeholder = trans.__('Filter trials');
    this._words.setAttribute('aria-label', trans.__('Filter trials by text'));
    this._words.title = trans.__('Words that a trial shall have, such as failed or layers=2');
    this._words.addEventListener('input', () => this._select());
    this._state = element('select', 'state', bar);
    this._state.classList.add('jp-AmlRun-select');
    this._state.setAttribute('aria-label', trans.__('Filter trials by state'));
    this._state.addEventListener('change', () => this._select());
    this._count = element('span', 'count', bar);
    this._count.setAttribute('role', 'status');
    this._clear = element('button', 'clear', bar);
    this._clear.classList.add('jp-AmlRun-link');
    this._clear.type = 'button';
    this._clear.textContent = trans.__('Show all');
    this._clear.addEventListener('click', () => this._clearAll());
    return bar;
  }

  private _drawSummary(board: ISweepBoard): void {
    const trans = this._trans;
    write(this._counts, board.counts_text);
    write(this._best, board.best_text);
    const params = board.best === null ? '' : paramWords(this._trials[board.best].params);
    this._curves.node.hidden = board.own && !board.curves.length;
    this._copy.hidden = !params || board.own; // those of a job's own trials are no parameters of its cell
    this._copy.title = params;
    write(this._goal, board.goal_text);
    write(this._message, board.message);
    write(this._more, board.hidden ? trans._n('and %1 further trial', 'and %1 further trials', board.hidden) : '');
  }

  /** The states that occur, with their counts; the choice stays. */
  private _drawStates(): void {
    const chosen = this._state.value;
    const counts = stateCounts(this._trials);
    if (chosen && !counts.has(chosen)) {
      counts.set(chosen, 0);
    }
    const options: [string, string][] = [['', this._trans.__('All states')], ...[...counts].map(([state, n]): [string, string] => [state, `${state} (${n})`])];
    const key = JSON.stringify(options);
    if (this._state.dataset.key === key) {
      return;
    }
    this._state.dataset.key = key;
    this._state.replaceChildren(
      ...options.map(([value, text]) => {
        const option = document.createElement('option');
        option.value = value;
        option.textContent = text;
        return option;
      })
    );
    this._state.value = chosen;
  }

  /** Draw everything with the trials that lie in all brushes and filters. */
  private _select(): void {
    const board = this._board;
    if (!board) {
      return;
    }
    const { brushes } = this._parallel;
    const [words, state] = [this._words.value, this._state.value];
    const isFiltered = brushes.size > 0 || words.trim() !== '' || state !== '';
    const selected = this._trials.map(trial => isBrushed(trial, this._axes, brushes) && matches(trial, words, state));
    this._selected = isFiltered ? selected : null;
    this._bestChart.update(board, this._trials, this._selected, this._format);
    this._curves.update(board, this._trials, this._selected, this._format);
    this._parallel.update(this._trials, this._axes, board.levels, this._selected);
    const n = selected.filter(Boolean).length;
    const text = isFiltered ? this._trans.__('%1 of %2 trials', n, this._trials.length) : '';
    if (this._count.textContent !== text) {
      this._count.textContent = text;
    }
    this._clear.style.visibility = isFiltered ? '' : 'hidden';
    const handle = this._situation?.handle ?? '';
    // A sweep with a driver, which is a run on this machine; a service or a job cannot continue its own.
    this._goOn.hidden = !handle.startsWith(DRIVEN) || !this._trials.length || board.own;
    this._goOn.title = continueLine(handle, board.space, this._axes, brushes);
    this._drawTable();
  }

  private _drawTable(): void {
    if (!this._board || !this._situation) {
      return;
    }
    const selected = this._selected;
    const shown = selected ? this._trials.filter(({ at }) => selected[at]) : this._trials;
    this._table.update({
      board: this._board,
      parameters: this._parameters,
      trials: this._trials,
      shown: sorted(shown, this._order),
      order: this._order,
      format: this._format,
      ...this._situation
    });
  }

  private _sort(key: SortKey): void {
    this._order = nextOrder(this._order, key, this._board?.goal ?? '');
    this._drawTable();
  }

  private _highlight(at: number | null): void {
    this._bestChart.highlight(at);
    this._curves.highlight(at);
    this._parallel.highlight(at);
    this._table.highlight(at);
  }

  private _clearAll(): void {
    this._words.value = this._state.value = '';
    this._parallel.clear();
    this._select();
  }

  private _onKey(event: KeyboardEvent): void {
    if (event.key === 'Escape' && (this._parallel.brushes.size || this._words.value || this._state.value)) {
      this._clearAll();
      event.preventDefault();
      event.stopPropagation();
    }
  }

  private _copyBest(): void {
    const at = this._board?.best ?? null;
    if (at !== null) {
      this._copyText(paramWords(this._trials[at].params));
    }
  }

  private readonly _counts: HTMLElement;
  private readonly _best: HTMLElement;
  private readonly _copy: HTMLButtonElement;
  private readonly _goOn: HTMLButtonElement;
  private readonly _goal: HTMLElement;
  private readonly _message: HTMLElement;
  private readonly _more: HTMLElement;
  private readonly _lower: HTMLElement;
  private readonly _bestChart: BestChart;
  private readonly _curves: CurvesChart;
  private readonly _parallel: ParallelChart;
  private readonly _importance: ImportanceView;
  private readonly _table: TrialTable;
  private _words!: HTMLInputElement;
  private _state!: HTMLSelectElement;
  private _count!: HTMLElement;
  private _clear!: HTMLButtonElement;
  private _board: ISweepBoard | null = null;
  private _situation: IBoardSituation | null = null;
  private _trials: readonly ITrial[] = [];
  private _parameters: readonly string[] = [];
  private _axes: readonly IPlacedAxis[] = [];
  private _selected: readonly boolean[] | null = null;
  private _order: IOrder = bestFirst('maximize');
  private _format: (value: number | null) => string = String;
  private _key = '';
}
