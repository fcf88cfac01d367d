/** One small line chart in SVG: axes with ticks, the last value, and the value under the pointer. */

import { byteTicks, extent, linear, nearest, path, Scale, ticks, timeTicks, widen } from './scale';

export type TickKind = 'number' | 'integer' | 'time' | 'bytes';

export interface ILineData {
  title: string;
  /** shown beside the title; the value under the pointer takes its place */
  last: string;
  x: readonly number[];
  y: readonly (number | null)[];
  xKind: TickKind;
  yKind: TickKind;
  xFormat: (x: number) => string;
  yFormat: (y: number) => string;
  /** name of the x axis in the value under the pointer, such as `step` */
  xName: string;
  /** the y axis starts at zero */
  fromZero: boolean;
}

const NS = 'http://www.w3.org/2000/svg';
const HEIGHT = 132;
const MARGIN = { left: 50, right: 10, top: 6, bottom: 20 };

function svg(tag: string, attributes: Record<string, string | number>, parent?: Element): SVGElement {
  const node = document.createElementNS(NS, tag) as SVGElement;
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, String(value));
  }
  parent?.append(node);
  return node;
}

export class LineChart {
  constructor() {
    this.node = document.createElement('figure');
    this.node.className = 'jp-AmlRun-chart';
    const caption = document.createElement('figcaption');
    this._title = document.createElement('span');
    this._title.className = 'jp-AmlRun-chartTitle';
    this._value = document.createElement('span');
    this._value.className = 'jp-AmlRun-chartValue';
    caption.append(this._title, this._value);
    this._svg = svg('svg', { height: HEIGHT, role: 'img' }) as SVGSVGElement;
    this._axes = svg('g', { class: 'jp-AmlRun-axes' }, this._svg);
    this._line = svg('path', { class: 'jp-AmlRun-line' }, this._svg);
    this._cursor = svg('g', { class: 'jp-AmlRun-cursor', visibility: 'hidden' }, this._svg);
    this._rule = svg('line', { y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }, this._cursor);
    this._dot = svg('circle', { r: 3 }, this._cursor);
    this.node.append(caption, this._svg);
    this._svg.addEventListener('pointermove', event => this._hover(event));
    this._svg.addEventListener('pointerleave', () => this._leave());
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

  update(data: ILineData): void {
    const old = this._data;
    const same =
      old !== null &&
      old.title === data.title &&
      old.x.length === data.x.length &&
      old.x[0] === data.x[0] &&
      old.x[old.x.length - 1] === data.x[data.x.length - 1] &&
      old.y.every((value, i) => value === data.y[i]);
    this._data = data;
    if (!same) {
      this._draw();
    }
  }

  dispose(): void {
    this._resize.disconnect();
    this.node.remove();
  }

  private _draw(): void {
    const data = this._data;
    if (!data || !this._width) {
      return;
    }
    const right = this._width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    const ey = extent(data.y);
    const ex = extent(data.x);
    this._title.textContent = data.title;
    this._title.title = data.title;
    if (!this._hovering) {
      this._value.textContent = data.last;
    }
    this._svg.setAttribute('width', String(this._width));
    this._svg.setAttribute('aria-label', this._describe(data, ey));
    this._axes.replaceChildren();
    if (!ey || !ex) {
      this._line.setAttribute('d', '');
      return;
    }
    const [x0, x1] = ex[1] > ex[0] ? ex : [ex[0] - 1, ex[0] + 1];
    let [y0, y1] = widen(data.fromZero ? [Math.min(0, ey[0]), ey[1] || 1] : ey);
    if (data.yKind === 'number' && !data.fromZero) {
      const air = (y1 - y0) * 0.05;
      [y0, y1] = [y0 - air, y1 + air];
    }
    const sx = linear(x0, x1, MARGIN.left, right);
    const sy = linear(y0, y1, bottom, MARGIN.top);
    this._sx = sx;
    this._sy = sy;
    const yTicks = data.yKind === 'bytes' ? byteTicks(y1, 3) : ticks(y0, y1, 3);
    for (const tick of yTicks) {
      const y = sy(tick);
      svg('line', { x1: MARGIN.left, x2: right, y1: y, y2: y }, this._axes);
      svg('text', { x: MARGIN.left - 6, y: y + 3, 'text-anchor': 'end' }, this._axes).textContent =
        data.yFormat(tick);
    }
    const room = Math.max(2, Math.floor((right - MARGIN.left) / 70));
    const xTicks = data.xKind === 'time' ? timeTicks(x1, room) : ticks(x0, x1, room, true);
    for (const tick of xTicks) {
      const x = sx(tick);
      if (x < MARGIN.left - 1 || x > right + 1) {
        continue;
      }
      const anchor = x > right - 14 ? 'end' : x < MARGIN.left + 10 ? 'start' : 'middle';
      svg('text', { x, y: HEIGHT - 6, 'text-anchor': anchor }, this._axes).textContent = data.xFormat(tick);
    }
    svg('line', { class: 'jp-mod-base', x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }, this._axes);
    this._line.setAttribute('d', path(data.x, data.y, sx, sy));
  }

  private _describe(data: ILineData, range: [number, number] | null): string {
    if (!range) {
      return `${data.title}: no values yet`;
    }
    const [low, high] = range.map(data.yFormat);
    return `${data.title}: last ${data.last}, between ${low} and ${high}, ${data.y.length} points`;
  }

  private _hover(event: PointerEvent): void {
    const data = this._data;
    if (!data || !this._sx || !this._sy || !data.x.length) {
      return;
    }
    const at = event.clientX - this._svg.getBoundingClientRect().left;
    const first = data.x[0];
    const last = data.x[data.x.length - 1];
    const k = (this._sx(last) - this._sx(first)) / (last - first || 1) || 1;
    const i = nearest(data.x, first + (at - this._sx(first)) / k);
    const value = data.y[i];
    if (value === null || value === undefined) {
      return this._leave();
    }
    this._hovering = true;
    const x = this._sx(data.x[i]);
    this._rule.setAttribute('x1', String(x));
    this._rule.setAttribute('x2', String(x));
    this._dot.setAttribute('cx', String(x));
    this._dot.setAttribute('cy', String(this._sy(value)));
    this._cursor.setAttribute('visibility', 'visible');
    this._value.textContent = `${data.xName} ${data.xFormat(data.x[i])}: ${data.yFormat(value)}`;
  }

  private _leave(): void {
    this._hovering = false;
    this._cursor.setAttribute('visibility', 'hidden');
    this._value.textContent = this._data?.last ?? '';
  }

  private readonly _title: HTMLElement;
  private readonly _value: HTMLElement;
  private readonly _svg: SVGSVGElement;
  private readonly _axes: SVGElement;
  private readonly _line: SVGElement;
  private readonly _cursor: SVGElement;
  private readonly _rule: SVGElement;
  private readonly _dot: SVGElement;
  private readonly _resize: ResizeObserver;
  private _data: ILineData | null = null;
  private _width = 0;
  private _sx: Scale | null = null;
  private _sy: Scale | null = null;
  private _hovering = false;
}
