/** Parallel coordinates of a sweep: an axis for each parameter, the metric as the last, a line for each trial. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { svg } from '../charts/chart';
import { Brush, brushOf, ITrial, IPlacedAxis, LEVELS, unitOf, unitText, valueOf } from '../sweep';
import type { Hovered } from './trialCharts';

/** CSS pixels: heights and margins, least distance of two axes, width of the part that takes a drag. */
const HEIGHT = 236;
const TOP = 30;
const BOTTOM = 28;
const MIN_LEFT = 46;
const RIGHT = 52;
const MIN_DISTANCE = 66;
/** Width of a character of a label. */
const CHAR = 5.9;
const HIT_WIDTH = 34;
/** Place of values that a trial does not have, below the axis. */
const ABSENT = 16;
/** Distance from a line within which the pointer is on it. */
const REACH = 7;
/** Part of an axis by which an arrow key moves an end of its selection. */
const KEY_STEP = 1 / 40;
const [MIN_LABEL_CHARS, MAX_LABEL_CHARS] = [11, 18];

const BASE = HEIGHT - BOTTOM;

/** Selected parts of the axes, by the name of the parameter; empty for the metric. */
export type Brushes = ReadonlyMap<string, Brush>;

interface IDrag {
  axis: number;
  /** Where the pointer went down, in units of the axis. */
  from: number;
  y: number;
  /** The selection that is moved as a whole; null for a new one. */
  moved: Brush | null;
}

function clipped(text: string, chars: number): string {
  return text.length > chars ? `${text.slice(0, Math.max(1, chars - 1))}…` : text;
}

export class ParallelChart {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _brushed: (brushes: Brushes) => void,
    private readonly _hovered: Hovered
  ) {
    this.node = document.createElement('figure');
    this.node.className = 'jp-AmlRun-chart jp-AmlSweep-parallel';
    const caption = document.createElement('figcaption');
    const title = document.createElement('span');
    title.className = 'jp-AmlRun-chartTitle';
    title.textContent = _trans.__('Parameters');
    const hint = document.createElement('span');
    hint.className = 'jp-AmlSweep-hint';
    hint.textContent = _trans.__('Drag along an axis to select trials');
    this._key = document.createElement('span');
    this._key.className = 'jp-AmlSweep-ramp';
    const words = [_trans.__('worst'), _trans.__('best')].map(text => {
      const word = document.createElement('span');
      word.textContent = text;
      return word;
    });
    this._key.append(...words);
    caption.append(title, hint, this._key);
    this._scroll = document.createElement('div');
    this._scroll.className = 'jp-AmlSweep-parallelScroll';
    this._plot = document.createElement('div');
    this._plot.className = 'jp-AmlSweep-parallelPlot';
    this._plot.setAttribute('role', 'group');
    this._plot.style.height = `${HEIGHT}px`;
    this._scroll.append(this._plot);
    this.node.append(caption, this._scroll);
    this._svg = svg('svg', { height: HEIGHT, 'aria-hidden': 'true' }, this._plot);
    this._lines = svg('g', { class: 'jp-AmlSweep-lines' }, this._svg);
    this._over = svg('path', { class: 'jp-AmlSweep-overLine', d: '' }, this._svg);
    this._axesNode = svg('g', { class: 'jp-AmlSweep-axes' }, this._svg);
    this._brushNode = svg('g', { class: 'jp-AmlSweep-brushes' }, this._svg);
    this._resize = new ResizeObserver(() => {
      const width = Math.floor(this._scroll.clientWidth);
      if (width && width !== this._available) {
        this._available = width;
        this._draw();
      }
    });
    this._resize.observe(this._scroll);
    this._plot.addEventListener('pointermove', event => this._onMove(event));
    this._plot.addEventListener('pointerup', event => this._onUp(event));
    this._plot.addEventListener('pointercancel', () => (this._drag = null));
    this._plot.addEventListener('pointerleave', () => this._hover(null));
    this._plot.addEventListener('dblclick', () => this.clear());
  }

  readonly node: HTMLElement;

  get brushes(): Brushes {
    return this._brushes;
  }

  /** @param selected by position; null for all */
  update(trials: readonly ITrial[], axes: readonly IPlacedAxis[], levels: readonly number[], selected: readonly boolean[] | null): void {
    // Records of earlier versions have no axes.
    this.node.hidden = !axes.length;
    this._trials = trials;
    this._axes = axes;
    this._selected = selected;
    for (const name of this._brushes.keys()) {
      if (!axes.some(axis => axis.name === name)) {
        this._brushes.delete(name);
      }
    }
    const metric = axes[axes.length - 1];
    this._plot.setAttribute('aria-label', this._trans.__('Parallel coordinates of %1 trials: %2', trials.length, axes.map(({ title }) => title).join(', ')));
    this._key.title = this._trans.__('Color of a line: %1', metric?.title ?? '');
    this._levels = levels;
    this._draw();
  }

  highlight(at: number | null): void {
    this._highlighted = at;
    this._over.setAttribute('d', at === null || !this._points[at] ? '' : this._line(this._points[at]));
  }

  /** Select all trials again. */
  clear(): void {
    if (this._brushes.size) {
      this._brushes.clear();
      this._drawBrushes();
      this._brushed(this._brushes);
    }
  }

  dispose(): void {
    this._resize.disconnect();
  }

  // -- drawing

  private _draw(): void {
    if (!this._available || !this._axes.length) {
      return;
    }
    const gaps = this._axes.length - 1;
    // Beside the first axis is the edge.
    const longest = Math.max(0, ...this._axes[0].labels.map(label => Math.min(label.length, MAX_LABEL_CHARS)));
    const left = (this._left = Math.max(MIN_LEFT, Math.ceil(12 + CHAR * longest)));
    const width = Math.max(this._available, left + RIGHT + gaps * MIN_DISTANCE);
    this._plot.style.width = `${width}px`;
    this._svg.setAttribute('width', String(width));
    const distance = gaps ? (width - left - RIGHT) / gaps : 0;
    this._x = this._axes.map((_, i) => (gaps ? left + i * distance : width / 2));
    this._points = [];
    for (const trial of this._trials) {
      this._points[trial.at] = this._axes.map(axis => this._y(axis, unitOf(axis, valueOf(trial, axis))));
    }
    this._drawLines();
    this._drawAxes(distance || width / 2);
    this._drawHandles();
    this._drawBrushes();
    this.highlight(this._highlighted);
  }

  private _y(axis: IPlacedAxis, unit: number | null): number {
    const inside = unit === null ? null : Math.max(axis.low, Math.min(axis.high, unit));
    return inside === null ? BASE + ABSENT : BASE - ((inside - axis.low) / (axis.high - axis.low)) * (BASE - TOP);
  }

  private _unit(axis: IPlacedAxis, y: number): number {
    return axis.low + ((BASE - y) / (BASE - TOP)) * (axis.high - axis.low);
  }

  private _line(points: readonly number[]): string {
    return points.map((y, i) => `${i ? 'L' : 'M'}${this._x[i].toFixed(1)},${y.toFixed(1)}`).join('');
  }

  /** One path for each color: a thousand trials are a dozen nodes. */
  private _drawLines(): void {
    const paths = new Map<string, string>();
    for (const trial of this._trials) {
      const isSelected = !this._selected || this._selected[trial.at];
      const key = isSelected ? String(this._levels[trial.at] ?? -1) : 'dim';
      paths.set(key, (paths.get(key) ?? '') + this._line(this._points[trial.at]));
    }
    const names = ['dim', ...Array.from({ length: LEVELS + 1 }, (_, i) => String(i - 1))];
    this._lines.replaceChildren();
    for (const name of names) {
      const d = paths.get(name);
      if (d) {
        svg('path', { class: name === 'dim' ? 'jp-mod-dim' : '', 'data-level': name, d }, this._lines);
      }
    }
    this._lines.classList.toggle('jp-mod-many', this._trials.length > 150);
  }

  private _drawAxes(distance: number): void {
    this._axesNode.replaceChildren();
    const between = Math.max(MIN_LABEL_CHARS, Math.min(MAX_LABEL_CHARS, Math.floor((distance - 12) / CHAR)));
    this._axes.forEach((axis, i) => {
      const group = svg('g', { transform: `translate(${this._x[i].toFixed(1)},0)`, 'data-axis': axis.name }, this._axesNode);
      svg('line', { y1: TOP, y2: BASE }, group);
      const isLast = i === this._axes.length - 1;
      const isFirst = i === 0 && this._axes.length > 1;
      const anchor = isFirst ? 'start' : isLast ? 'end' : 'middle';
      const shift = isFirst ? -this._left + 4 : isLast ? RIGHT - 4 : 0;
      const chars = Math.floor(isLast || isFirst ? (distance / 2 + (isFirst ? this._left : RIGHT) - 14) / 7.2 : (distance - 8) / 6.8);
      const title = svg('text', { class: isLast ? 'jp-AmlSweep-axisTitle jp-mod-metric' : 'jp-AmlSweep-axisTitle', x: shift, y: 12, 'text-anchor': anchor }, group);
      title.textContent = clipped(axis.title, chars);
      // Beside the last axis there are no lines.
      const side = isLast ? { x: 7, 'text-anchor': 'start' } : { x: -6, 'text-anchor': 'end' };
      const isEmpty = this._trials.every(trial => unitOf(axis, valueOf(trial, axis)) === null);
      for (const [i, unit] of isEmpty ? [] : axis.ticks.entries()) {
        const y = this._y(axis, unit);
        svg('line', { x1: -3, x2: 3, y1: y, y2: y }, group);
        svg('text', { ...side, y: y + 3.5 }, group).textContent = clipped(axis.labels[i], isFirst ? MAX_LABEL_CHARS : isLast ? MIN_LABEL_CHARS : between);
      }
      const isMissing = this._trials.some(trial => unitOf(axis, valueOf(trial, axis)) === null);
      if (isMissing) {
        svg('line', { x1: -4, x2: 4, y1: BASE + ABSENT, y2: BASE + ABSENT }, group);
        svg('text', { ...side, y: BASE + ABSENT + 3.5 }, group).textContent = this._trans.__('none');
      }
    });
  }

  private _drawBrushes(): void {
    this._brushNode.replaceChildren();
    this._axes.forEach((axis, i) => {
      const brush = this._brushes.get(axis.name);
      const [low, high] = brush ?? [axis.low, axis.high];
      const [bottom, top] = [this._y(axis, low), this._y(axis, high)];
      if (brush) {
        svg('rect', { x: this._x[i] - 8, width: 16, y: top, height: Math.max(2, bottom - top), rx: 2 }, this._brushNode);
      }
      this._handles[i]?.forEach((handle, end) => {
        const value = end ? high : low;
        handle.style.top = `${(end ? top : bottom) - TOP}px`;
        handle.classList.toggle('jp-mod-set', brush !== undefined);
        handle.setAttribute('aria-valuenow', String(Number(value.toPrecision(6))));
        handle.setAttribute('aria-valuetext', this._endText(axis, value, end));
      });
    });
  }

  /** The value at an end of a selection; that of a category axis lies between two. */
  private _endText(axis: IPlacedAxis, unit: number, end: number): string {
    return unitText(axis, axis.kind === 'category' ? unit + (end ? -0.5 : 0.5) : unit);
  }

  // -- selection by keyboard

  /** For each axis a part that takes a drag, with a slider for each end of the selection. */
  private _drawHandles(): void {
    const key = JSON.stringify(this._axes.map(({ name, title }) => [name, title]));
    if (this._handlesKey !== key) {
      this._handlesKey = key;
      this._hits.forEach(hit => hit.remove());
      this._handles = this._axes.map(axis => [0, 1].map(end => this._handle(axis, end)));
      this._hits = this._axes.map((axis, i) => {
        const hit = document.createElement('div');
        hit.className = 'jp-AmlSweep-axisHit';
        hit.dataset.axis = axis.name;
        hit.style.top = `${TOP}px`;
        hit.style.height = `${BASE - TOP}px`;
        hit.style.width = `${HIT_WIDTH}px`;
        hit.append(...this._handles[i]);
        hit.addEventListener('pointerdown', event => this._onDown(event, i));
        this._plot.append(hit);
        return hit;
      });
      this._setStop(this._handles[0]?.[0]);
    }
    this._axes.forEach((axis, i) => {
      this._hits[i].style.left = `${this._x[i] - HIT_WIDTH / 2}px`;
      for (const handle of this._handles[i]) {
        handle.setAttribute('aria-valuemin', String(Number(axis.low.toPrecision(6))));
        handle.setAttribute('aria-valuemax', String(Number(axis.high.toPrecision(6))));
      }
    });
  }

  private _handle(axis: IPlacedAxis, end: number): HTMLElement {
    const trans = this._trans;
    const handle = document.createElement('div');
    handle.className = 'jp-AmlSweep-handle';
    handle.setAttribute('role', 'slider');
    handle.setAttribute('aria-orientation', 'vertical');
    handle.setAttribute('aria-label', end ? trans.__('%1: highest', axis.title) : trans.__('%1: lowest', axis.title));
    handle.tabIndex = -1;
    handle.addEventListener('keydown', event => this._onKey(event, axis.name, end));
    return handle;
  }

  /** One of the handles is a stop of the Tab key; arrow keys lead to the others. */
  private _setStop(handle: HTMLElement | undefined): void {
    this._handles.flat().forEach(each => (each.tabIndex = each === handle ? 0 : -1));
  }

  private _onKey(event: KeyboardEvent, name: string, end: number): void {
    const i = this._axes.findIndex(axis => axis.name === name);
    const axis = this._axes[i];
    if (!axis || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const all = this._handles.flat();
    const [low, high] = this._brushes.get(name) ?? [axis.low, axis.high];
    const span = axis.high - axis.low;
    const step = axis.kind === 'category' ? 1 : span * KEY_STEP * (event.shiftKey ? 5 : 1);
    const set = (unit: number) => {
      const value = Math.max(axis.low, Math.min(axis.high, unit));
      const least = axis.kind === 'category' ? 1 : 0;
      this._select(axis, end ? Math.min(low, value) : Math.min(value, high - least), end ? Math.max(value, low + least) : Math.max(high, value));
    };
    const now = end ? high : low;
    const actions: Record<string, () => void> = {
      ArrowUp: () => set(now + step),
      ArrowDown: () => set(now - step),
      PageUp: () => set(now + 5 * step),
      PageDown: () => set(now - 5 * step),
      Home: () => set(axis.low),
      End: () => set(axis.high),
      Delete: () => this._select(axis, axis.low, axis.high),
      Backspace: () => this._select(axis, axis.low, axis.high),
      ArrowLeft: () => this._focus(all[2 * i + end - 1]),
      ArrowRight: () => this._focus(all[2 * i + end + 1])
    };
    if (actions[event.key]) {
      actions[event.key]();
      event.preventDefault();
      event.stopPropagation();
    }
  }

  private _focus(handle: HTMLElement | undefined): void {
    if (handle) {
      this._setStop(handle);
      handle.focus();
    }
  }

  // -- selection by pointer

  private _select(axis: IPlacedAxis, from: number, to: number): void {
    const brush = brushOf(axis, from, to);
    if (brush) {
      this._brushes.set(axis.name, brush);
    } else {
      this._brushes.delete(axis.name);
    }
    this._drawBrushes();
    this._brushed(this._brushes);
  }

  private _onDown(event: PointerEvent, i: number): void {
    if (event.button !== 0) {
      return;
    }
    const y = event.clientY - this._plot.getBoundingClientRect().top;
    const from = this._unit(this._axes[i], y);
    const old = this._brushes.get(this._axes[i].name);
    this._drag = { axis: i, from, y, moved: old && from > old[0] && from < old[1] ? old : null };
    this._plot.setPointerCapture(event.pointerId);
    this._hover(null);
    event.preventDefault();
  }

  private _onMove(event: PointerEvent): void {
    const box = this._plot.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const drag = this._drag;
    if (!drag) {
      this._hover(this._trialAt(x, y));
      return;
    }
    const axis = this._axes[drag.axis];
    const to = this._unit(axis, Math.max(TOP, Math.min(BASE, y)));
    if (drag.moved) {
      const [low, high] = drag.moved;
      const shift = Math.max(axis.low - low, Math.min(axis.high - high, to - drag.from));
      this._select(axis, low + shift, high + shift);
    } else if (Math.abs(y - drag.y) > 3) {
      this._select(axis, drag.from, to);
    }
  }

  private _onUp(event: PointerEvent): void {
    const drag = this._drag;
    this._drag = null;
    const y = event.clientY - this._plot.getBoundingClientRect().top;
    if (drag && Math.abs(y - drag.y) <= 3) {
      const axis = this._axes[drag.axis];
      this._focus(this._handles[drag.axis][0]);
      if (this._brushes.has(axis.name)) {
        this._select(axis, axis.low, axis.high);
      }
    }
  }

  /** The selected trial whose line is nearest to a place. */
  private _trialAt(x: number, y: number): number | null {
    const after = this._x.findIndex(place => place > x);
    const i = after < 0 ? this._x.length - 1 : after;
    if (i < 1) {
      return null;
    }
    const share = Math.min(1, (x - this._x[i - 1]) / (this._x[i] - this._x[i - 1]));
    let [found, least]: [number | null, number] = [null, REACH];
    for (const trial of this._trials) {
      const points = this._points[trial.at];
      if (points && (!this._selected || this._selected[trial.at])) {
        const distance = Math.abs(points[i - 1] + share * (points[i] - points[i - 1]) - y);
        [found, least] = distance < least ? [trial.at, distance] : [found, least];
      }
    }
    return found;
  }

  private _hover(at: number | null): void {
    if (at !== this._own) {
      this._own = at;
      this._hovered(at);
    }
  }

  private readonly _key: HTMLElement;
  private readonly _scroll: HTMLElement;
  private readonly _plot: HTMLElement;
  private readonly _svg: SVGElement;
  private readonly _lines: SVGElement;
  private readonly _over: SVGElement;
  private readonly _axesNode: SVGElement;
  private readonly _brushNode: SVGElement;
  private readonly _resize: ResizeObserver;
  private readonly _brushes = new Map<string, Brush>();
  private _trials: readonly ITrial[] = [];
  private _axes: readonly IPlacedAxis[] = [];
  private _levels: readonly number[] = [];
  private _selected: readonly boolean[] | null = null;
  private _available = 0;
  /** Space for the labels of the first axis. */
  private _left = MIN_LEFT;
  private _x: number[] = [];
  /** Heights of each trial's line at the axes, by position. */
  private _points: number[][] = [];
  private _hits: HTMLElement[] = [];
  private _handles: HTMLElement[][] = [];
  private _handlesKey = '';
  private _drag: IDrag | null = null;
  private _highlighted: number | null = null;
  private _own: number | null = null;
}
