/** The line chart of cell outputs, panel and tabs, and the frame that it shares with the heat map. */

import { Brush, ITimePlot } from './brush';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IAxis } from '../protocol';
import { COLORS } from './palette';
import { area, extent, linear, nearest, path, Row, Scale } from './scale';

/** A place of a chart that can be read: number of a point, and row of a heat map (0 elsewhere). */
export interface ISpot {
  column: number;
  row: number;
}

/** One line of a reading. */
export interface IValue {
  name?: string;
  text: string;
  /** in front of it: number of a color of the palette, or any CSS color */
  color?: number | string;
}

/** What a chart says of a spot. */
export interface IReading {
  /** when, or at which step */
  where: string;
  values: readonly IValue[];
  /** written beside the title instead of a box, where it is one value */
  inline?: string;
}

/** Interface between a frame and its chart. Positions are CSS pixels from the top left of the drawing. */
export interface IReadable {
  readonly columns: number;
  readonly rows: number;
  /** the value at a position; null if there is none */
  spotAt(x: number, y: number): ISpot | null;
  placeOf(spot: ISpot): [x: number, y: number];
  read(spot: ISpot): IReading | null;
  /** draw the marks of the cursor, or take them away */
  mark(spot: ISpot | null): void;
}

/** Change a text only when it differs, so that a selection stays. */
function write(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

let ids = 0;

/** A figure with title, value and drawing, whose values are read with the pointer or the arrow keys. */
export class ChartFrame {
  constructor(
    trans: TranslationBundle,
    private readonly _chart: IReadable,
    private readonly _drawing: Element,
    className = ''
  ) {
    const part = (tag: string, name: string, parent: HTMLElement): HTMLElement => {
      const node = document.createElement(tag);
      node.className = `jp-AmlRun-${name}`;
      parent.append(node);
      return node;
    };
    this.node = document.createElement('figure');
    this.node.className = `jp-AmlRun-chart ${className}`.trim();
    this.caption = document.createElement('figcaption');
    this.node.append(this.caption);
    this._title = part('span', 'chartTitle', this.caption);
    this._title.id = `jp-AmlRun-chart-${ids++}`;
    this._value = part('span', 'chartValue', this.caption);
    this._area = part('div', 'chartArea', this.node);
    this._area.tabIndex = 0;
    // Arrow keys move the cursor: a screen reader shall pass them on.
    this._area.setAttribute('role', 'application');
    this._area.setAttribute('aria-roledescription', trans.__('chart'));
    this._area.setAttribute('aria-labelledby', this._title.id);
    this._area.append(_drawing);
    this._rule = part('div', 'hoverRule', this._area);
    this._box = part('div', 'hover', this._area);
    this._rule.hidden = this._box.hidden = true;
    this._spoken = part('div', 'chartSpoken', this.node);
    this._spoken.setAttribute('aria-live', 'polite');
    this._area.addEventListener('pointermove', event => this._hover(event));
    this._area.addEventListener('pointerleave', () => this._leave());
    this._area.addEventListener('blur', () => this._leave());
    this._area.addEventListener('keydown', event => this._key(event));
  }

  readonly node: HTMLElement;
  readonly caption: HTMLElement;

  /** Update title, value and the value under the cursor; call it after each drawing. */
  update(title: string, value: string): void {
    write(this._title, title);
    this._title.title = title;
    this._last = value;
    this._show(false);
  }

  private _hover(event: PointerEvent): void {
    const box = this._drawing.getBoundingClientRect();
    const spot = this._chart.spotAt(event.clientX - box.left, event.clientY - box.top);
    this._at = spot && { back: this._chart.columns - 1 - spot.column, row: spot.row };
    this._show(false);
  }

  private _key(event: KeyboardEvent): void {
    const { columns, rows } = this._chart;
    if (!columns || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const step = event.shiftKey ? 10 : 1;
    const at = this._at ?? { back: 0, row: 0 };
    const moves: Record<string, { back: number; row: number }> = {
      ArrowLeft: { ...at, back: at.back + step },
      ArrowRight: { ...at, back: at.back - step },
      ArrowUp: { ...at, row: at.row - step },
      ArrowDown: { ...at, row: at.row + step },
      Home: { ...at, back: columns - 1 },
      End: { ...at, back: 0 }
    };
    if (event.key === 'Escape' && this._at) {
      this._leave();
    } else if (moves[event.key]) {
      const { back, row } = this._at ? moves[event.key] : at;
      const inside = (value: number, count: number) => Math.max(0, Math.min(count - 1, value));
      this._at = { back: inside(back, columns), row: inside(row, rows) };
      this._show(true);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private _leave(): void {
    this._at = null;
    this._spoken.textContent = '';
    this._show(false);
  }

  /** Put cursor and reading where they belong; announce the reading only after a key press. */
  private _show(aloud: boolean): void {
    const { _at: at, _chart: chart } = this;
    const spot = at && { column: chart.columns - 1 - at.back, row: at.row };
    const reading = spot && spot.column >= 0 && spot.row < chart.rows ? chart.read(spot) : null;
    const shown = reading?.inline ?? this._last;
    write(this._value, shown);
    this._value.title = shown;
    chart.mark(reading ? spot : null);
    this._rule.hidden = !reading;
    this._box.hidden = !reading || reading.inline !== undefined;
    if (!reading || !spot) {
      return;
    }
    const [x, y] = chart.placeOf(spot);
    this._rule.style.left = `${x}px`;
    if (!this._box.hidden) {
      this._box.replaceChildren(...readingNodes(reading));
      const width = this._area.clientWidth;
      const right = x + 12 + this._box.offsetWidth <= width;
      this._box.style.left = `${Math.max(0, right ? x + 12 : x - 12 - this._box.offsetWidth)}px`;
      this._box.style.top = `${y}px`;
    }
    if (aloud) {
      this._spoken.textContent = [reading.where, ...reading.values.map(({ name, text }) => `${name ?? ''} ${text}`.trim())].filter(Boolean).join(', ');
    }
  }

  private readonly _title: HTMLElement;
  private readonly _value: HTMLElement;
  private readonly _area: HTMLElement;
  private readonly _rule: HTMLElement;
  private readonly _box: HTMLElement;
  private readonly _spoken: HTMLElement;
  private _last = '';
  /** Counted from the newest point: the cursor stays where it is on the page while points move on. */
  private _at: { back: number; row: number } | null = null;
}

/** The lines of a reading's box: where, then a value each, with the color of its line. */
export function readingNodes({ where, values }: IReading): HTMLElement[] {
  const line = (text: string, name = ''): HTMLElement => {
    const node = document.createElement('div');
    node.className = name;
    node.textContent = text;
    return node;
  };
  const nodes = values.map(({ name, text, color }) => {
    const node = line(name ? `${name} ` : '');
    const value = document.createElement('b');
    value.textContent = text;
    node.append(value);
    if (color !== undefined) {
      const key = document.createElement('i');
      key.className = 'jp-AmlRun-hoverKey';
      if (typeof color === 'number') {
        key.dataset.color = String(color % COLORS);
      } else {
        key.style.background = color;
      }
      node.prepend(key);
    }
    return node;
  });
  return where ? [line(where, 'jp-AmlRun-hoverTime'), ...nodes] : nodes;
}

export interface ISeries {
  name: string;
  y: Row;
  /** which color of the palette; none for the chart's own */
  color?: number;
  /** drawn thin and pale, behind the others, and not read */
  faint?: boolean;
  dashed?: boolean;
  /** an SVG dash array that tells it apart from other lines */
  dash?: string;
}

export interface IBand {
  low: Row;
  high: Row;
}

/** A dashed line at one height, such as the size of a memory. */
export interface ILevel {
  label: string;
  value: number;
}

/** A stretch of x with a ground of its own. */
export interface IShade {
  name: string;
  start: number;
  end: number;
}

/** A mark of an axis. */
export type Tick = readonly [value: number, label: string];

export interface ILineData {
  title: string;
  /** shown beside the title */
  last: string;
  x: ArrayLike<number>;
  series: readonly ISeries[];
  /** its mean is the first of `series` */
  band?: IBand | null;
  levels?: readonly ILevel[];
  /** numbers of the points without a finite value, marked at the bottom */
  gaps?: readonly number[];
  shades?: readonly IShade[];
  /** vertical lines, with what they say on hover */
  marks?: readonly { x: number; label: string }[];
  xAxis: IAxis;
  /** null without values */
  yAxis: IAxis | null;
  xFormat: (x: number) => string;
  yFormat: (y: number) => string;
  /** name of the x axis in the value under the pointer, such as `step`; empty where the format says it */
  xName: string;
  /** Unix seconds at 0 of the x axis, where it is time */
  origin?: number;
}

function sameRow(a: Row = [], b: Row = []): boolean {
  for (let i = 0; i < a.length; i++) {
    if (!Object.is(a[i], b[i])) {
      return false;
    }
  }
  return a.length === b.length;
}

/** Whether two charts would look the same. */
export function same(a: ILineData, b: ILineData): boolean {
  const rest = ({ title, last, levels, shades, marks, xAxis, yAxis, series }: ILineData) =>
    JSON.stringify([title, last, levels ?? [], shades ?? [], marks ?? [], xAxis, yAxis, series.map(({ name }) => name)]);
  return (
    rest(a) === rest(b) &&
    sameRow(a.x, b.x) &&
    a.series.every((series, i) => sameRow(series.y, b.series[i].y)) &&
    sameRow(a.band?.low, b.band?.low) &&
    sameRow(a.band?.high, b.band?.high)
  );
}

/** Height of a chart and margins around its lines, CSS pixels. */
export interface IChartSize {
  height: number;
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** The size in outputs and tabs. */
const NORMAL: IChartSize = { height: 132, left: 50, right: 10, top: 6, bottom: 20 };

const NS = 'http://www.w3.org/2000/svg';

/** A new SVG element. */
export function svg(tag: string, attributes: Record<string, string | number>, parent?: Element): SVGElement {
  const node = document.createElementNS(NS, tag) as SVGElement;
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, String(value));
  }
  parent?.append(node);
  return node;
}

/** Lines, a band, levels and shades over steps or time. SVG: the theme's colors and printing come with it. */
export class LineChart implements IReadable {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _size: IChartSize = NORMAL
  ) {
    this._svg = svg('svg', { height: _size.height, role: 'img' });
    this._axes = svg('g', { class: 'jp-AmlRun-axes' }, this._svg);
    this._lines = svg('g', {}, this._svg);
    this._dots = svg('g', { class: 'jp-AmlRun-cursor' }, this._svg);
    this._frame = new ChartFrame(_trans, this, this._svg);
    this.node = this._frame.node;
    this.node.style.setProperty('--jp-amlrun-plot-top', `${_size.top}px`);
    this.node.style.setProperty('--jp-amlrun-plot-bottom', `${_size.bottom}px`);
    this._brush = new Brush(this._svg.parentElement ?? this.node, event => this._timePlot(event));
    this._resize = new ResizeObserver(() => {
      const width = Math.round(this.node.clientWidth);
      if (width && width !== this._width) {
        this._width = width;
        this._draw();
      }
    });
    this._resize.observe(this.node);
  }

  readonly node: HTMLElement;
  readonly rows = 1;

  get columns(): number {
    return this._data?.x.length ?? 0;
  }

  update(data: ILineData): void {
    const old = this._data;
    this._data = data;
    if (!old || !same(old, data)) {
      this._draw();
    }
  }

  dispose(): void {
    this._resize.disconnect();
    this._brush.dispose();
    this.node.remove();
  }

  spotAt(x: number): ISpot | null {
    const { _data: data, _sx: sx } = this;
    if (!data || !sx || !data.x.length) {
      return null;
    }
    const [first, last] = [data.x[0], data.x[data.x.length - 1]];
    const k = (sx(last) - sx(first)) / (last - first || 1) || 1;
    const column = nearest(data.x, first + (x - sx(first)) / k);
    // Left of a young stream there is nothing to read.
    return x < sx(first) - 4 ? null : { column, row: 0 };
  }

  placeOf({ column }: ISpot): [number, number] {
    return [this._sx?.(this._data?.x[column] ?? 0) ?? 0, this._size.top];
  }

  read({ column }: ISpot): IReading | null {
    const data = this._data;
    if (!data) {
      return null;
    }
    const { series, band } = data;
    const known = (value: number | null | undefined) => typeof value === 'number' && Number.isFinite(value);
    const text = (value: number | null | undefined) => (known(value) ? data.yFormat(value as number) : this._trans.__('n/a'));
    const shown = series.filter(({ faint }) => !faint);
    const where = [data.xName, data.xFormat(data.x[column])].filter(Boolean).join(' ');
    if (!shown.some(({ y }) => known(y[column]))) {
      return { where, values: [{ text: this._trans.__('n/a') }] };
    }
    if (band) {
      const values = [
        { name: this._trans.__('highest'), text: text(band.high[column]) },
        { name: this._trans.__('mean'), text: text(series[0].y[column]) },
        { name: this._trans.__('lowest'), text: text(band.low[column]) }
      ];
      return { where, values };
    }
    const values = shown.map(({ name, y, color }) => ({ name: name && `${name}:`, text: text(y[column]), color: color ?? 0 }));
    return shown.length > 1 ? { where, values } : { where, values, inline: `${where}: ${text(shown[0].y[column])}` };
  }

  mark(spot: ISpot | null): void {
    const { _sx: sx, _sy: sy, _data: data } = this;
    this._dots.replaceChildren();
    if (spot && sx && sy && data) {
      for (const { y, faint } of data.series) {
        const value = y[spot.column];
        if (!faint && typeof value === 'number' && Number.isFinite(value)) {
          svg('circle', { r: 3, cx: sx(data.x[spot.column]), cy: sy(value) }, this._dots);
        }
      }
    }
  }

  /** Where the lines are, if a pointer is over them and the x axis is time. */
  private _timePlot(event: PointerEvent): ITimePlot | null {
    const origin = this._data?.origin;
    if (!this._data || !this._sx || origin === undefined) {
      return null;
    }
    const box = this._svg.getBoundingClientRect();
    const { left, right, top, bottom } = this._size;
    const area = { left: box.left + left, right: box.left + this._width - right, top: box.top + top, bottom: box.bottom - bottom };
    const { min, max } = this._data.xAxis;
    return event.clientX >= area.left && event.clientX <= area.right ? { area, span: [origin + min, origin + max] } : null;
  }

  private _draw(): void {
    const data = this._data;
    if (!data || !this._width) {
      return;
    }
    const { height, left, right, top, bottom } = this._size;
    const { xAxis, yAxis } = data;
    this._svg.setAttribute('width', String(this._width));
    this._svg.setAttribute('aria-label', this._describe(data));
    this._axes.replaceChildren();
    this._lines.replaceChildren();
    this._sx = this._sy = null;
    if (yAxis) {
      this._sx = linear(xAxis.min, xAxis.max, left, this._width - right);
      this._sy = linear(yAxis.min, yAxis.max, height - bottom, top);
      this._drawAxes(data, yAxis, this._sx, this._sy);
      this._drawLines(data, this._sx, this._sy);
    }
    this._frame.update(data.title, data.last);
  }

  private _drawAxes(data: ILineData, yAxis: IAxis, sx: Scale, sy: Scale): void {
    const { height, left, top, bottom } = this._size;
    const right = this._width - this._size.right;
    const base = height - bottom;
    const { min: x0, max: x1 } = data.xAxis;
    for (const shade of data.shades ?? []) {
      const [begin, end] = [Math.max(x0, shade.start), Math.min(x1, shade.end)];
      if (end > begin) {
        const box = { x: sx(begin), width: Math.max(1, sx(end) - sx(begin)), y: top, height: base - top };
        const rect = svg('rect', { class: 'jp-AmlRun-shade', 'data-phase': shade.name, ...box }, this._axes);
        svg('title', {}, rect).textContent = shade.name;
      }
    }
    yAxis.ticks.forEach((tick, i) => {
      const y = sy(tick);
      svg('line', { x1: left, x2: right, y1: y, y2: y }, this._axes);
      // The top one is not cut off.
      const at = { x: left - 6, y: Math.max(8, y + 3), 'text-anchor': 'end' };
      svg('text', at, this._axes).textContent = yAxis.labels[i];
    });
    data.xAxis.ticks.forEach((tick, i) => {
      const x = sx(tick);
      if (x >= left - 1 && x <= right + 1) {
        const anchor = x > right - 14 ? 'end' : x < left + 10 ? 'start' : 'middle';
        svg('text', { x, y: height - Math.round(0.3 * bottom), 'text-anchor': anchor }, this._axes).textContent = data.xAxis.labels[i];
      }
    });
    svg('line', { class: 'jp-mod-base', x1: left, x2: right, y1: base, y2: base }, this._axes);
  }

  private _drawLines(data: ILineData, sx: Scale, sy: Scale): void {
    const { left, right } = this._size;
    for (const { label, value } of data.levels ?? []) {
      const at = { x1: left, x2: this._width - right, y1: sy(value), y2: sy(value) };
      const line = svg('line', { class: 'jp-AmlRun-level', ...at }, this._lines);
      svg('title', {}, line).textContent = label;
    }
    const paint = (node: Element, color: number | undefined) => {
      if (color !== undefined) {
        node.setAttribute('data-color', String(color % COLORS));
      }
    };
    for (const i of data.gaps ?? []) {
      const [x, y] = [sx(data.x[i]), this._size.height - this._size.bottom];
      const cross = svg('path', { class: 'jp-AmlRun-gap', d: `M${x - 3},${y - 8}l6,6m-6,0l6,-6` }, this._lines);
      svg('title', {}, cross).textContent = this._trans.__('%1 %2: not finite', data.xName, data.xFormat(data.x[i]));
    }
    if (data.band) {
      const shape = svg('path', { class: 'jp-AmlRun-band', d: area(data.x, data.band, sx, sy) }, this._lines);
      paint(shape, data.series[0]?.color);
    }
    for (const series of [...data.series].sort((a, b) => Number(b.faint ?? false) - Number(a.faint ?? false))) {
      const name = `jp-AmlRun-line${series.faint ? ' jp-mod-faint' : ''}${series.dashed ? ' jp-mod-dashed' : ''}`;
      const line = svg('path', { class: name, d: path(data.x, series.y, sx, sy) }, this._lines);
      paint(line, series.color);
      if (series.dash) {
        line.setAttribute('stroke-dasharray', series.dash);
      }
    }
    for (const { x, label } of data.marks ?? []) {
      if (x >= data.xAxis.min && x <= data.xAxis.max) {
        const at = { x1: sx(x), x2: sx(x), y1: this._size.top, y2: this._size.height - this._size.bottom };
        svg('line', { class: 'jp-AmlRun-mark', ...at }, this._lines);
        // A wider one is found by the pointer.
        svg('title', {}, svg('line', { class: 'jp-AmlRun-markArea', ...at }, this._lines)).textContent = label;
      }
    }
  }

  /** Description of the chart for screen readers. */
  private _describe(data: ILineData): string {
    const trans = this._trans;
    const ends = data.series.map(({ y }) => extent(y)).filter((range): range is [number, number] => range !== null);
    if (!ends.length) {
      return trans.__('%1: no values yet', data.title);
    }
    const [low, high] = [Math.min(...ends.map(([end]) => end)), Math.max(...ends.map(([, end]) => end))].map(data.yFormat);
    const lines = data.series.length > 1 ? trans.__('%1 lines, ', data.series.length) : '';
    return trans.__('%1: last %2, %3between %4 and %5, %6 points', data.title, data.last, lines, low, high, data.x.length);
  }

  private readonly _svg: SVGElement;
  private readonly _axes: SVGElement;
  private readonly _lines: SVGElement;
  private readonly _dots: SVGElement;
  private readonly _frame: ChartFrame;
  private readonly _resize: ResizeObserver;
  private readonly _brush: Brush;
  private _data: ILineData | null = null;
  private _width = 0;
  private _sx: Scale | null = null;
  private _sy: Scale | null = null;
}
