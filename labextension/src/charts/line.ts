/** One small chart in SVG: axes with ticks, lines, a band, levels, and the values under the pointer. */

import { area, ILineData, same, yExtent } from './model';
import { byteTicks, extent, linear, nearest, path, Scale, ticks, timeTicks, widen } from './scale';

const NS = 'http://www.w3.org/2000/svg';
const HEIGHT = 132;
/** Colours of the palette in the style sheet. */
const COLOURS = 8;
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
    this._lines = svg('g', {}, this._svg);
    this._cursor = svg('g', { class: 'jp-AmlRun-cursor', visibility: 'hidden' }, this._svg);
    this._rule = svg('line', { y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }, this._cursor);
    this._dots = svg('g', {}, this._cursor);
    this._box = document.createElement('div');
    this._box.className = 'jp-AmlRun-hover';
    this._box.hidden = true;
    this.node.append(caption, this._svg, this._box);
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
    this._data = data;
    if (!old || !same(old, data)) {
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
    const ey = yExtent(data);
    const ex = extent(data.x);
    this._title.textContent = data.title;
    this._title.title = data.title;
    if (!this._hovering) {
      this._value.textContent = data.last;
      this._value.title = data.last;
    }
    this._svg.setAttribute('width', String(this._width));
    this._svg.setAttribute('aria-label', this._describe(data, ey));
    this._axes.replaceChildren();
    this._lines.replaceChildren();
    if (!ey || !ex) {
      return;
    }
    const [x0, x1] = ex[1] > ex[0] ? ex : [ex[0] - 1, ex[0] + 1];
    let [y0, y1] = widen(data.fromZero ? [Math.min(0, ey[0]), data.yMax ?? (ey[1] || 1)] : ey);
    if (data.yKind === 'number' && !data.fromZero) {
      const air = (y1 - y0) * 0.05;
      [y0, y1] = [y0 - air, y1 + air];
    }
    const sx = linear(x0, x1, MARGIN.left, right);
    const sy = linear(y0, y1, bottom, MARGIN.top);
    this._sx = sx;
    this._sy = sy;
    for (const shade of data.shades ?? []) {
      const [from, to] = [Math.max(x0, shade.from), Math.min(x1, shade.to)];
      if (to > from) {
        const [left, width] = [sx(from), Math.max(1, sx(to) - sx(from))];
        const box = { x: left, width, y: MARGIN.top, height: bottom - MARGIN.top };
        const rect = svg('rect', { class: 'jp-AmlRun-shade', 'data-phase': shade.name, ...box }, this._axes);
        svg('title', {}, rect).textContent = shade.name;
      }
    }
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
    for (const level of data.levels ?? []) {
      const at = { x1: MARGIN.left, x2: right, y1: sy(level.value), y2: sy(level.value) };
      const line = svg('line', { class: 'jp-AmlRun-level', ...at }, this._lines);
      svg('title', {}, line).textContent = `${level.name} ${data.yFormat(level.value)}`;
    }
    if (data.band) {
      svg('path', { class: 'jp-AmlRun-band', d: area(data.x, data.band, sx, sy) }, this._lines);
    }
    for (const series of [...data.series].sort((a, b) => Number(b.faint ?? false) - Number(a.faint ?? false))) {
      const name = `jp-AmlRun-line${series.faint ? ' jp-mod-faint' : ''}${series.dashed ? ' jp-mod-dashed' : ''}`;
      const line = svg('path', { class: name, d: path(data.x, series.y, sx, sy) }, this._lines);
      if (series.colour !== undefined) {
        line.setAttribute('data-colour', String(series.colour % COLOURS));
      }
    }
  }

  private _describe(data: ILineData, range: [number, number] | null): string {
    if (!range) {
      return `${data.title}: no values yet`;
    }
    const [low, high] = range.map(data.yFormat);
    const lines = data.series.length > 1 ? `${data.series.length} lines, ` : '';
    return `${data.title}: last ${data.last}, ${lines}between ${low} and ${high}, ${data.x.length} points`;
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
    const shown = data.series.filter(series => !series.faint && (series.y[i] ?? null) !== null);
    if (!shown.length) {
      return this._leave();
    }
    this._hovering = true;
    const x = this._sx(data.x[i]);
    this._rule.setAttribute('x1', String(x));
    this._rule.setAttribute('x2', String(x));
    this._dots.replaceChildren();
    for (const series of shown) {
      svg('circle', { r: 3, cx: x, cy: this._sy(series.y[i] as number) }, this._dots);
    }
    this._cursor.setAttribute('visibility', 'visible');
    const where = `${data.xName} ${data.xFormat(data.x[i])}`;
    if (data.series.length === 1 && !data.band) {
      this._value.textContent = `${where}: ${data.yFormat(shown[0].y[i] as number)}`;
    } else {
      this._value.textContent = where;
      this._write(data, i, x);
    }
  }

  /** Several values have no room beside the title. */
  private _write(data: ILineData, i: number, x: number): void {
    const lines: [number | undefined, string, number | null | undefined][] = data.series
      .filter(series => !series.faint)
      .map(series => [series.colour, series.name, series.y[i]]);
    if (data.band) {
      lines.unshift([undefined, '\u2191', data.band.high[i]]);
      lines.push([undefined, '\u2193', data.band.low[i]]);
    }
    const nodes = lines.map(([colour, name, value]) => {
      const line = document.createElement('div');
      const key = document.createElement('span');
      key.className = 'jp-AmlRun-hoverKey';
      key.dataset.colour = String((colour ?? 0) % COLOURS);
      const number = document.createElement('b');
      number.textContent = typeof value === 'number' ? data.yFormat(value) : 'n/a';
      line.append(key, `${name} `, number);
      return line;
    });
    this._box.replaceChildren(...nodes);
    this._box.hidden = false;
    const left = x + 12 + this._box.offsetWidth < this._width ? x + 12 : x - 12 - this._box.offsetWidth;
    this._box.style.left = `${Math.max(0, left)}px`;
    this._box.style.top = `${24}px`;
  }

  private _leave(): void {
    this._hovering = false;
    this._box.hidden = true;
    this._cursor.setAttribute('visibility', 'hidden');
    this._value.textContent = this._data?.last ?? '';
  }

  private readonly _title: HTMLElement;
  private readonly _value: HTMLElement;
  private readonly _svg: SVGSVGElement;
  private readonly _axes: SVGElement;
  private readonly _lines: SVGElement;
  private readonly _cursor: SVGElement;
  private readonly _rule: SVGElement;
  private readonly _dots: SVGElement;
  private readonly _box: HTMLElement;
  private readonly _resize: ResizeObserver;
  private _data: ILineData | null = null;
  private _width = 0;
  private _sx: Scale | null = null;
  private _sy: Scale | null = null;
  private _hovering = false;
}
