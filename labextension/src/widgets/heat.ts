/** Utilization of every GPU over the shown time, one row each, on a canvas. */

import { TranslationBundle } from '@jupyterlab/translation';
import { clock } from '../format';

export interface IHeatRow {
  /** names the GPU in the reading under the pointer */
  label: string;
  node: number;
}

export interface IHeatData {
  rows: readonly IHeatRow[];
  /** percent, row after row; NaN for a hole */
  cells: Float32Array;
  columns: number;
  /** unix seconds of the left and the right edge */
  span: readonly [number, number];
  /** unix seconds that count as 0:00 */
  start: number;
}

const MARGIN = { left: 62, right: 12, top: 2, bottom: 16 };
const LEGEND = 20;

type Colour = [number, number, number];

/** Any CSS colour as numbers, by drawing it. */
function rgb(css: string, fallback: Colour): Colour {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const context = canvas.getContext('2d', { willReadFrequently: true });
  if (!context || !css) {
    return fallback;
  }
  context.fillStyle = css;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
  return [r, g, b];
}

/**
 * 101 colours from idle to busy: from the page's own layout colour through blue to the far end of lightness.
 *
 * Lightness alone carries the value, so it can be read without telling hues apart; busy is what
 * differs most from the page, in light and in dark.
 */
export function ramp(node: Element): Colour[] {
  const style = getComputedStyle(node);
  const colour = (name: string, fallback: Colour) => rgb(style.getPropertyValue(name).trim(), fallback);
  const page = colour('--jp-layout-color1', [255, 255, 255]);
  const dark = page[0] + page[1] + page[2] < 384;
  const idle = colour('--jp-layout-color2', [238, 238, 238]);
  const middle = colour(dark ? '--jp-brand-color1' : '--jp-brand-color2', [66, 165, 245]);
  const busy: Colour = dark ? [236, 245, 255] : [8, 36, 92];
  const mix = (a: Colour, b: Colour, f: number) => a.map((v, i) => Math.round(v + (b[i] - v) * f)) as Colour;
  return Array.from({ length: 101 }, (_, i) => (i < 50 ? mix(idle, middle, i / 50) : mix(middle, busy, (i - 50) / 50)));
}

export class HeatStrip {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('figure');
    this.node.className = 'jp-AmlRun-heat';
    const caption = document.createElement('figcaption');
    const title = document.createElement('span');
    title.textContent = _trans.__('Utilization by GPU');
    this._reading = document.createElement('span');
    this._reading.className = 'jp-AmlRun-chartValue';
    this._key = document.createElement('span');
    this._key.className = 'jp-AmlRun-heatKey';
    caption.append(title, this._reading, this._key);
    this._canvas = document.createElement('canvas');
    this._canvas.setAttribute('role', 'img');
    this.node.append(caption, this._canvas);
    this._canvas.addEventListener('pointermove', event => this._hover(event));
    this._canvas.addEventListener('pointerleave', () => (this._reading.textContent = ''));
    this._size = new ResizeObserver(() => this._draw());
    this._size.observe(this.node);
    this._theme = new MutationObserver(() => {
      this._colours = null;
      this._draw();
    });
    this._theme.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name'] });
  }

  readonly node: HTMLElement;

  update(data: IHeatData): void {
    this._data = data;
    this._draw();
  }

  dispose(): void {
    this._size.disconnect();
    this._theme.disconnect();
    this.node.remove();
  }

  private get _rowHeight(): number {
    const rows = this._data?.rows.length ?? 1;
    return rows > 128 ? 3 : rows > 48 ? 5 : rows > 16 ? 8 : 12;
  }

  private _draw(): void {
    const data = this._data;
    const width = Math.floor(this.node.clientWidth);
    const context = this._canvas.getContext('2d');
    if (!data || !context || width < MARGIN.left + MARGIN.right + 20) {
      return;
    }
    if (!this._colours) {
      this._colours = ramp(this.node);
      this._drawKey(this._colours);
    }
    const nodes = data.rows.filter((row, i) => i && row.node !== data.rows[i - 1].node).length;
    const height = data.rows.length * this._rowHeight + nodes + MARGIN.top + MARGIN.bottom;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this._canvas.width !== w || this._canvas.height !== h) {
      this._canvas.width = w;
      this._canvas.height = h;
      this._canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    const inner = width - MARGIN.left - MARGIN.right;
    this._tops = [];
    let top = MARGIN.top;
    data.rows.forEach((row, r) => {
      top += r && row.node !== data.rows[r - 1].node ? 1 : 0;
      this._tops.push(top);
      top += this._rowHeight;
    });
    const image = this._image(data, this._colours);
    data.rows.forEach((_, r) => {
      // Rows touch, unless they are high enough for a line between them.
      const gap = this._rowHeight >= 8 ? 1 : 0;
      const high = this._rowHeight - gap;
      context.drawImage(image, 0, r, data.columns, 1, MARGIN.left, this._tops[r], inner, high);
    });
    this._labels(context, data, width, height);
    this._canvas.setAttribute('aria-label', this._describe(data));
  }

  private _image(data: IHeatData, colours: Colour[]): HTMLCanvasElement {
    const canvas = (this._cells ??= document.createElement('canvas'));
    canvas.width = data.columns;
    canvas.height = data.rows.length;
    const context = canvas.getContext('2d') as CanvasRenderingContext2D;
    const image = context.createImageData(canvas.width, canvas.height);
    for (let i = 0; i < data.cells.length; i++) {
      const value = data.cells[i];
      if (!Number.isNaN(value)) {
        const colour = colours[Math.max(0, Math.min(100, Math.round(value)))];
        image.data.set(colour, 4 * i);
        image.data[4 * i + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  private _labels(context: CanvasRenderingContext2D, data: IHeatData, width: number, height: number): void {
    const style = getComputedStyle(this.node);
    context.fillStyle = style.getPropertyValue('--jp-content-font-color2') || '#666';
    context.font = `10px ${style.fontFamily}`;
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    const nodes = new Set(data.rows.map(row => row.node)).size;
    let free = -Infinity;
    data.rows.forEach((row, r) => {
      const begins = !r || row.node !== data.rows[r - 1].node;
      if (begins && r) {
        context.fillRect(4, this._tops[r] - 1, width - MARGIN.right - 4, 1);
      }
      let y = this._tops[r] + this._rowHeight / 2;
      if (nodes > 1) {
        // One name for each node, in the middle of its rows.
        const rows = data.rows.filter(other => other.node === row.node).length;
        y = this._tops[r] + (rows * this._rowHeight) / 2;
      }
      if ((nodes === 1 || begins) && y - free >= 11) {
        context.fillText(nodes > 1 ? `n${row.node}` : row.label, MARGIN.left - 6, y, MARGIN.left - 8);
        free = y;
      }
    });
    const inner = width - MARGIN.left - MARGIN.right;
    const [from, to] = data.span;
    const count = Math.max(1, Math.floor(inner / 110));
    for (let i = 0; i <= count; i++) {
      context.textAlign = i === 0 ? 'left' : i === count ? 'right' : 'center';
      const text = clock(from + ((to - from) * i) / count - data.start);
      context.fillText(text, MARGIN.left + (inner * i) / count, height - MARGIN.bottom / 2 + 1);
    }
  }

  private _drawKey(colours: Colour[]): void {
    const stops = [0, 25, 50, 75, 100].map(i => `rgb(${colours[i].join(' ')})`).join(', ');
    this._key.style.setProperty('--jp-amlrun-ramp', `linear-gradient(90deg, ${stops})`);
    this._key.style.setProperty('--jp-amlrun-ramp-width', `${4 * LEGEND}px`);
    this._key.textContent = '';
    const [low, bar, high] = ['0', '', '100 %'].map(text => {
      const part = document.createElement('span');
      part.textContent = text;
      return part;
    });
    bar.className = 'jp-AmlRun-heatRamp';
    this._key.append(low, bar, high);
  }

  private _describe(data: IHeatData): string {
    const last = data.rows.map((row, r) => ({ row, value: data.cells[(r + 1) * data.columns - 1] }));
    const known = last.filter(({ value }) => !Number.isNaN(value));
    if (!known.length) {
      return this._trans.__('Utilization of %1 GPUs: no values', data.rows.length);
    }
    const low = known.reduce((a, b) => (b.value < a.value ? b : a));
    const high = known.reduce((a, b) => (b.value > a.value ? b : a));
    return this._trans.__(
      'Utilization of %1 GPUs: now lowest %2 % on %3, highest %4 % on %5',
      data.rows.length,
      Math.round(low.value),
      low.row.label,
      Math.round(high.value),
      high.row.label
    );
  }

  private _hover(event: PointerEvent): void {
    const data = this._data;
    if (!data) {
      return;
    }
    const box = this._canvas.getBoundingClientRect();
    const inner = box.width - MARGIN.left - MARGIN.right;
    const x = (event.clientX - box.left - MARGIN.left) / inner;
    const y = event.clientY - box.top;
    let r = -1;
    this._tops.forEach((top, i) => (r = y >= top && y < top + this._rowHeight + 1 ? i : r));
    if (x < 0 || x >= 1 || r < 0) {
      this._reading.textContent = '';
      return;
    }
    const value = data.cells[r * data.columns + Math.floor(x * data.columns)];
    const at = clock(data.span[0] + x * (data.span[1] - data.span[0]) - data.start);
    const shown = Number.isNaN(value) ? this._trans.__('n/a') : `${Math.round(value)} %`;
    this._reading.textContent = this._trans.__('%1 at %2: %3', data.rows[r].label, at, shown);
  }

  private readonly _canvas: HTMLCanvasElement;
  private readonly _reading: HTMLElement;
  private readonly _key: HTMLElement;
  private readonly _size: ResizeObserver;
  private readonly _theme: MutationObserver;
  private _cells: HTMLCanvasElement | null = null;
  private _data: IHeatData | null = null;
  private _colours: Colour[] | null = null;
  private _tops: number[] = [];
}
