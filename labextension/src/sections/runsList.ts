/** Virtualized list of runs: only the rows in view are in the page, and their nodes are reused. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Message } from '@lumino/messaging';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { Sparkline } from '../charts/sparkline';
import { number } from '../format';
import { fontScale } from '../panel/accordionLayout';
import { isLive } from '../kernel/rows';
import { DoubleClicks } from '../panel/clickGuard';
import { selection } from '../panel/selection';
import type { IRunRow } from '../protocol';
import { element, say } from './dom';
import { differing, progressParts, select, spoken, stateWord, when, windowOf } from './runText';

const SECOND_MS = 1000;
/** Heights of a row in pixels at the normal font size: with two lines, and with columns. */
const LINES_ROW_PX = 44;
const COLUMNS_ROW_PX = 28;
/** Width in pixels from which the rows are columns. */
const WIDE_PX = 500;
/** Minimum number of rows that stay in view beside the details of the selected one. */
const MIN_VISIBLE_ROWS = 3;

/** Actions on rows other than selection. */
export interface IListActions {
  open(handle: string): void;
  remove(handles: readonly string[]): void;
}

export class RunsList extends Widget {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _actions: IListActions
  ) {
    super();
    this.addClass('jp-AmlRuns-list');
    this._rows = element('ul', 'jp-AmlRuns-rows');
    this._rows.setAttribute('role', 'listbox');
    this._rows.setAttribute('aria-multiselectable', 'true');
    this._rows.setAttribute('aria-label', _trans.__('Training runs'));
    this._rows.tabIndex = 0;
    this.node.append(this._rows);
    this.node.addEventListener('scroll', () => this._drawSoon(), { passive: true });
    this._rows.addEventListener('click', event => this._onClick(event));
    this._doubles = new DoubleClicks(
      node => this._handleAt(node),
      handle => this._actions.open(handle)
    );
    this._rows.addEventListener('contextmenu', event => this._onContext(event));
    this._rows.addEventListener('keydown', event => this._onKey(event));
    selection.changed.connect(this._mark, this);
    this._resizes = new ResizeObserver(() => this._resized());
    this._resizes.observe(this.node);
  }

  /** Whether the list is wide enough for columns. */
  get wide(): boolean {
    return this._wide;
  }

  /** Emitted when the list gets or loses its columns. */
  get wideChanged(): ISignal<RunsList, boolean> {
    return this._wideChanged;
  }

  /** Emitted when the rows in view change, with their handles. */
  get inView(): ISignal<RunsList, readonly string[]> {
    return this._inView;
  }

  dispose(): void {
    clearInterval(this._timer);
    cancelAnimationFrame(this._frame);
    selection.changed.disconnect(this._mark, this);
    this._doubles.end();
    this._resizes.disconnect();
    Signal.clearData(this);
    super.dispose();
  }

  /** Set the rows to show, in this order. */
  set runs(rows: readonly IRunRow[]) {
    this._all = rows;
    this._differing = differing(rows);
    this._handleCache = null;
    this._drawSoon();
  }

  /** Set whether the list is visible; update the times of rows only while it is. */
  set seen(shown: boolean) {
    this._shown = shown;
    this._drawSoon();
    this._keepTime();
  }

  protected onResize(message: Widget.ResizeMessage): void {
    super.onResize(message);
    this._drawSoon();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._drawSoon();
  }

  private _drawSoon(): void {
    if (!this._frame && !this.isDisposed) {
      this._frame = requestAnimationFrame(() => {
        this._frame = 0;
        if (this.isVisible) {
          this._draw();
        }
      });
    }
  }

  private _draw(): void {
    const now = Date.now() / 1000;
    const count = this._all.length;
    this._measure();
    const [from, to] = windowOf(this.node.scrollTop, this.node.clientHeight, this._rowHeight, count);
    const height = `${count * this._rowHeight}px`;
    if (this._rows.style.height !== height) {
      this._rows.style.height = height;
      this.node.style.minHeight = `${Math.min(MIN_VISIBLE_ROWS, count) * this._rowHeight}px`;
    }
    const visible = new Map(this._all.slice(from, to).map((row, k) => [row.handle, from + k]));
    const free: RowView[] = [];
    for (const [handle, view] of this._views) {
      if (!visible.has(handle)) {
        this._views.delete(handle);
        free.push(view);
      }
    }
    for (const [handle, index] of visible) {
      let view = this._views.get(handle);
      if (!view) {
        view = free.pop() ?? new RowView(this._trans);
        this._views.set(handle, view);
        if (!view.node.isConnected) {
          this._rows.append(view.node);
        }
      }
      view.update(this._all[index], { index, count, height: this._rowHeight, differing: this._differing }, now);
    }
    free.forEach(view => view.node.remove());
    // A screen reader's cursor goes through the page in the order of its nodes.
    [...visible.keys()].forEach((handle, at) => {
      const node = this._views.get(handle)!.node;
      if (this._rows.children[at] !== node) {
        this._rows.insertBefore(node, this._rows.children[at] ?? null);
      }
    });
    this._mark();
    this._keepTime();
    // Exclude the rows around the window, which are not visible.
    const [first, last] = windowOf(this.node.scrollTop, this.node.clientHeight, this._rowHeight, count, 0);
    const handles = this._all.slice(first, last).map(row => row.handle);
    const key = this._all
      .slice(first, last)
      .map(row => `${row.handle} ${row.known}`)
      .join();
    if (key !== this._viewKey) {
      this._viewKey = key;
      this._inView.emit(handles);
    }
  }

  /** Set the height of a row: one line in columns, else two, in the size of the font. */
  private _measure(): void {
    const wide = this.node.clientWidth >= WIDE_PX;
    this._rowHeight = Math.round((wide ? COLUMNS_ROW_PX : LINES_ROW_PX) * fontScale(this.node));
    this.node.style.setProperty('--jp-aml-row', `${this._rowHeight}px`);
    if (wide !== this._wide) {
      this._wide = wide;
      this.toggleClass('jp-mod-wide', wide);
      this._wideChanged.emit(wide);
    }
  }

  /** Run one timer for all rows while they are visible; ended runs need it, too, because they show their age. */
  private _keepTime(): void {
    const needed = this._shown && this._views.size > 0;
    if (needed && this._timer === undefined) {
      this._timer = setInterval(() => {
        const now = Date.now() / 1000;
        for (const view of this._views.values()) {
          view.tick(now);
        }
      }, SECOND_MS);
    } else if (!needed) {
      clearInterval(this._timer);
      this._timer = undefined;
    }
  }

  private _mark(): void {
    const chosen = new Set(selection.runs);
    for (const [handle, view] of this._views) {
      view.mark(chosen.has(handle), handle === this._active);
    }
    const active = this._views.has(this._active) ? idOf(this._active) : '';
    if (active) {
      this._rows.setAttribute('aria-activedescendant', active);
    } else {
      this._rows.removeAttribute('aria-activedescendant');
    }
  }

  private get _handles(): readonly string[] {
    return (this._handleCache = this._handleCache ?? this._all.map(row => row.handle));
  }

  private _choose(handle: string, how: 'one' | 'range' | 'toggle'): void {
    const chosen = select(this._handles, selection.runs, this._anchor, handle, how);
    if (how !== 'range') {
      this._anchor = handle;
    }
    this._active = handle;
    selection.runs = chosen;
    this._mark();
  }

  /** Handle of the run whose row contains the node. */
  private _handleAt(node: EventTarget | null): string | null {
    const row = node instanceof Element && this._rows.contains(node) ? node.closest<HTMLElement>('.jp-AmlRuns-row') : null;
    return row?.dataset.handle ?? null;
  }

  private _onClick(event: MouseEvent): void {
    const handle = this._handleAt(event.target);
    if (handle) {
      this._choose(handle, event.shiftKey ? 'range' : event.ctrlKey || event.metaKey ? 'toggle' : 'one');
    }
  }

  /** Select the row under the pointer for the context menu, unless it is part of the selection. */
  private _onContext(event: MouseEvent): void {
    const handle = this._handleAt(event.target);
    if (handle && !selection.runs.includes(handle)) {
      this._choose(handle, 'one');
    }
  }

  private _onKey(event: KeyboardEvent): void {
    const last = this._all.length - 1;
    if (last < 0) {
      return;
    }
    const at = this._handles.indexOf(this._active);
    const page = Math.max(1, Math.floor(this.node.clientHeight / this._rowHeight) - 1);
    const steps: Record<string, number> = {
      ArrowDown: at + 1,
      ArrowUp: at < 0 ? 0 : at - 1,
      Home: 0,
      End: last,
      PageDown: at + page,
      PageUp: at - page
    };
    if (event.key in steps) {
      const to = Math.max(0, Math.min(last, steps[event.key]));
      this._show(to);
      this._choose(this._handles[to], event.shiftKey ? 'range' : 'one');
    } else if (event.key === 'Enter' && at >= 0) {
      this._actions.open(this._active);
    } else if (event.key === ' ' && at >= 0) {
      this._choose(this._active, 'toggle');
    } else if (event.key === 'Delete' && selection.runs.length) {
      this._actions.remove(selection.runs);
    } else if (event.key === 'a' && (event.ctrlKey || event.metaKey)) {
      selection.runs = this._handles;
    } else if ((event.key === 'ContextMenu' || (event.key === 'F10' && event.shiftKey)) && at >= 0) {
      const box = this._views.get(this._active)?.node.getBoundingClientRect();
      const node = this._views.get(this._active)?.node;
      if (box && node) {
        node.dispatchEvent(
          new MouseEvent('contextmenu', { bubbles: true, cancelable: true, clientX: box.left + 16, clientY: box.bottom })
        );
      }
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** Keep the active row in view when the details of a newly selected row make the list smaller. */
  private _resized(): void {
    const { scrollTop, clientHeight } = this.node;
    const at = this._handles.indexOf(this._active);
    const top = at * this._rowHeight;
    if (at >= 0 && clientHeight < this._height && top < scrollTop + this._height && top + this._rowHeight > scrollTop) {
      this._show(at);
    }
    this._height = clientHeight;
    this._drawSoon();
  }

  private _show(index: number): void {
    const top = index * this._rowHeight;
    const node = this.node;
    if (top < node.scrollTop) {
      node.scrollTop = top;
    } else if (top + this._rowHeight > node.scrollTop + node.clientHeight) {
      node.scrollTop = top + this._rowHeight - node.clientHeight;
    }
    this._draw();
  }

  private readonly _rows: HTMLUListElement;
  private readonly _views = new Map<string, RowView>();
  private readonly _doubles: DoubleClicks;
  private readonly _resizes: ResizeObserver;
  private readonly _wideChanged = new Signal<RunsList, boolean>(this);
  private _wide = false;
  private _rowHeight = LINES_ROW_PX;
  private _differing: ReadonlySet<string> = new Set();
  private readonly _inView = new Signal<RunsList, readonly string[]>(this);
  private _all: readonly IRunRow[] = [];
  private _handleCache: readonly string[] | null = null;
  private _viewKey = '';
  private _anchor = '';
  private _active = '';
  private _shown = false;
  private _frame = 0;
  private _height = 0;
  private _timer: ReturnType<typeof setInterval> | undefined;
}

const SPARK_WIDTH = 48;
const SPARK_HEIGHT = 16;

/** Place of a row in the list. */
interface IPlace {
  readonly index: number;
  readonly count: number;
  readonly height: number;
  /** Names of the parameters that differ between the listed runs. */
  readonly differing: ReadonlySet<string>;
}

/** Caption that is truncated to fit, with a number that never is. */
class Figure {
  constructor(name: string) {
    this.node = element('span', name);
    this.words = element('span', `${name}Caption jp-AmlRuns-caption`);
    this._number = element('span', 'jp-AmlRuns-number');
    this.node.append(this.words, ' ', this._number);
  }

  readonly node: HTMLElement;
  readonly words: HTMLElement;

  update(words: string, value: string): void {
    say(this.words, words);
    say(this._number, value);
  }

  private readonly _number: HTMLElement;
}

class RowView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = element('li', 'jp-AmlRuns-row');
    this.node.setAttribute('role', 'option');
    this._dot = element('span', 'jp-AmlRuns-dot');
    this._name = element('span', 'jp-AmlRuns-name');
    this._params = element('span', 'jp-AmlRuns-params');
    this._target = element('span', 'jp-AmlRuns-target');
    this._when = element('span', 'jp-AmlRuns-when');
    this._progress = new Figure('jp-AmlRuns-progress');
    this._metric = new Figure('jp-AmlRuns-metric');
    this._spark = new Sparkline('jp-AmlRuns-spark', SPARK_WIDTH, SPARK_HEIGHT);
    this.node.append(
      this._dot,
      element('div', 'jp-AmlRuns-top', '', this._name, this._params, this._target, this._when),
      element('div', 'jp-AmlRuns-bottom', '', this._progress.node, this._metric.node, this._spark.node)
    );
  }

  readonly node: HTMLLIElement;

  get row(): IRunRow | null {
    return this._row;
  }

  /** Update the parts that have changed. */
  update(row: IRunRow, { index, count, height, differing }: IPlace, now: number): void {
    this.node.style.transform = `translateY(${index * height}px)`;
    this.node.setAttribute('aria-posinset', String(index + 1));
    this.node.setAttribute('aria-setsize', String(count));
    const shown = Object.entries(row.params).filter(([name]) => differing.has(name));
    say(this._params, shown.map(([name, value]) => `${name}=${value}`).join(' '));
    if (row !== this._row) {
      this._row = row;
      this.node.id = idOf(row.handle);
      this.node.dataset.handle = row.handle;
      this.node.dataset.state = row.state;
      this.node.classList.toggle('jp-mod-live', isLive(row));
      this.node.classList.toggle('jp-mod-attention', row.attention !== '');
      this._dot.title = stateWord(row, this._trans);
      say(this._name, row.name);
      say(this._target, row.target);
      this._spark.update(row.spark);
      this._drawMetric(row);
    }
    this.tick(now);
  }

  /** Update the parts that depend on the time. */
  tick(now: number): void {
    const row = this._row;
    if (row) {
      this._progress.update(...progressParts(row, now, this._trans));
      say(this._when, isLive(row) ? '' : when(row, now, this._trans));
      const words = spoken(row, now, this._trans);
      if (this._words !== words) {
        this._words = words;
        this.node.title = `${row.handle}\n${words}`;
        this._speak(row);
      }
    }
  }

  /** Update the accessible name on news only: a screen reader repeats it on every change, too often for metrics. */
  private _speak(row: IRunRow): void {
    const news = [row.handle, stateWord(row, this._trans), row.attention].join('\n');
    if (!this._active || news !== this._news) {
      this._news = news;
      this.node.setAttribute('aria-label', this._words);
    }
  }

  mark(selected: boolean, active: boolean): void {
    this._active = active;
    this.node.setAttribute('aria-selected', String(selected));
    this.node.classList.toggle('jp-mod-selected', selected);
    this.node.classList.toggle('jp-mod-active', active);
  }

  /** Draw the metric; a warning takes precedence over it. */
  private _drawMetric(row: IRunRow): void {
    const warning = row.attention;
    this._metric.update(warning || row.metric, row.metric && !warning ? number(row.value) : '');
    this._metric.node.classList.toggle('jp-mod-warn', row.attention !== '');
  }

  private readonly _dot: HTMLElement;
  private readonly _name: HTMLElement;
  private readonly _params: HTMLElement;
  private readonly _target: HTMLElement;
  private readonly _when: HTMLElement;
  private readonly _progress: Figure;
  private readonly _metric: Figure;
  private readonly _spark: Sparkline;
  private _row: IRunRow | null = null;
  private _words = '';
  private _news = '';
  private _active = false;
}

/** Id of the node of a row, for `aria-activedescendant`. */
function idOf(handle: string): string {
  return `jp-AmlRuns-${encodeURIComponent(handle)}`;
}
