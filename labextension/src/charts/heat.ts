/** The heat map of outputs, dashboards and panel: utilization of many GPUs over time, one row each, on a canvas. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { clock } from '../format';
import { ChartFrame, IReadable, IReading, ISpot, Tick } from './chart';
import { onTheme, ramp, Rgb } from './palette';

export interface IHeatRow {
  /** name of the GPU in the value under the cursor */
  label: string;
  /** names it at the left of its row */
  short?: string;
  node: number;
}

export interface IHeatData {
  title: string;
  /** shown beside the title */
  last: string;
  rows: readonly IHeatRow[];
  /** percent, row after row; NaN for a hole */
  cells: Float32Array;
  columns: number;
  /** where the first column begins and the last one ends, as a share of the width; cells outside are clipped */
  edges?: readonly [number, number];
  /** marks along the bottom, where as a share of the width; there is room for about `count` */
  ticks: (count: number) => readonly Tick[];
  /** when a column was, in words */
  at: (column: number) => string;
}

/** Sizes of a heat map, CSS pixels. */
export interface IHeatSize {
  left: number;
  right: number;
  top: number;
  bottom: number;
  /** between two nodes */
  gap: number;
  /** most rows of each height, and the height */
  rows: readonly (readonly [count: number, height: number])[];
  /** the colors are explained beside the title */
  key: boolean;
}

/** The size in outputs and dashboards. */
const NORMAL: IHeatSize = {
  left: 62,
  right: 12,
  top: 2,
  bottom: 16,
  gap: 1,
  key: true,
  rows: [
    [16, 12],
    [48, 8],
    [128, 5],
    [Infinity, 3]
  ]
};

/** Runs of rows of one node: first row, number of rows. */
export function nodesOf(rows: readonly { node: number }[]): { node: number; first: number; rows: number }[] {
  const found: { node: number; first: number; rows: number }[] = [];
  rows.forEach(({ node }, first) => {
    const last = found[found.length - 1];
    if (last && last.node === node) {
      last.rows += 1;
    } else {
      found.push({ node, first, rows: 1 });
    }
  });
  return found;
}

/** Tops of all rows; the last entry is the height of all. Rows of a node touch; nodes are apart. */
export function topsOf(rows: readonly { node: number }[], size: IHeatSize): number[] {
  const high = rowHeight(rows.length, size);
  const tops: number[] = [];
  let y = size.top;
  nodesOf(rows).forEach((node, n) => {
    y += n ? size.gap : 0;
    for (let r = 0; r < node.rows; r++, y += high) {
      tops.push(y);
    }
  });
  return [...tops, y];
}

function rowHeight(count: number, size: IHeatSize): number {
  return size.rows.find(([most]) => count <= most)?.[1] ?? 1;
}

export class HeatMap implements IReadable {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _size: IHeatSize = NORMAL
  ) {
    this._canvas.setAttribute('role', 'img');
    this._frame = new ChartFrame(_trans, this, this._canvas, 'jp-AmlRun-heat');
    this.node = this._frame.node;
    this.node.style.setProperty('--jp-amlrun-plot-top', `${_size.top}px`);
    this.node.style.setProperty('--jp-amlrun-plot-bottom', `${_size.bottom}px`);
    if (_size.key) {
      this._key.className = 'jp-AmlRun-heatKey';
      this._frame.caption.append(this._key);
    }
    this._resize = new ResizeObserver(() => this._draw());
    this._resize.observe(this.node);
    this._endTheme = onTheme(() => {
      this._colors = null;
      this._draw();
    });
  }

  readonly node: HTMLElement;

  get columns(): number {
    return this._data?.columns ?? 0;
  }

  get rows(): number {
    return this._data?.rows.length ?? 0;
  }

  update(data: IHeatData): void {
    this._data = data;
    this._draw();
  }

  dispose(): void {
    this._resize.disconnect();
    this._endTheme();
    this.node.remove();
  }

  spotAt(x: number, y: number): ISpot | null {
    const data = this._data;
    const [from, to] = this._edges();
    const column = data ? Math.floor(((x - from) / (to - from)) * data.columns) : -1;
    const high = rowHeight(this.rows, this._size);
    const above = this._tops.slice(0, -1).filter(top => top <= y).length - 1;
    const row = above >= 0 && y < this._tops[above] + high + this._size.gap ? above : -1;
    const { left, right } = this._size;
    const inside = x >= left && x <= this._width - right && column >= 0 && column < this.columns && row >= 0;
    return inside ? { column, row } : null;
  }

  placeOf({ column, row }: ISpot): [number, number] {
    const [from, to] = this._edges();
    const x = from + ((column + 0.5) / this.columns) * (to - from);
    return [Math.max(this._size.left, x), this._tops[row] + rowHeight(this.rows, this._size) / 2 + 8];
  }

  read({ column, row }: ISpot): IReading | null {
    const data = this._data;
    if (!data) {
      return null;
    }
    const value = data.cells[row * data.columns + column];
    const text = Number.isNaN(value) ? this._trans.__('no sample') : `${Math.round(value)} %`;
    return { where: '', values: [{ name: `${data.rows[row].label}:`, text }, { name: data.at(column), text: '' }] };
  }

  mark(): void {
    // The rule of the frame is enough.
  }

  /** Pixels of the left edge of the first column and of the right edge of the last one. */
  private _edges(): [number, number] {
    const { left, right } = this._size;
    const inner = this._width - left - right;
    const [from, to] = this._data?.edges ?? [0, 1];
    return [left + from * inner, left + to * inner];
  }

  private _draw(): void {
    const data = this._data;
    const width = Math.floor(this.node.clientWidth);
    const context = this._canvas.getContext('2d');
    const { left, right, bottom } = this._size;
    if (!data || !context || width < left + right + 20) {
      return;
    }
    this._width = width;
    if (!this._colors) {
      this._colors = ramp(this.node);
      this._drawKey(this._colors);
    }
    this._tops = topsOf(data.rows, this._size);
    const height = this._tops[data.rows.length] + bottom;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this._canvas.width !== w || this._canvas.height !== h) {
      this._canvas.width = w;
      this._canvas.height = h;
      this._canvas.style.width = `${width}px`;
      this._canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this._drawCells(context, data, this._colors);
    this._drawLabels(context, data, height);
    this._canvas.setAttribute('aria-label', this._describe(data));
    this._frame.update(data.title, data.last);
  }

  private _drawCells(context: CanvasRenderingContext2D, data: IHeatData, colors: readonly Rgb[]): void {
    const image = this._paint(data, colors);
    const { left, right, top } = this._size;
    const [from, to] = this._edges();
    const high = rowHeight(data.rows.length, this._size);
    // Rows touch, unless they are high enough for a line between them.
    const gap = this._size.key && high >= 8 ? 1 : 0;
    context.save();
    context.beginPath();
    context.rect(left, top, this._width - left - right, this._tops[data.rows.length]);
    context.clip();
    context.imageSmoothingEnabled = false;
    data.rows.forEach((_, r) => {
      context.drawImage(image, 0, r, data.columns, 1, from, this._tops[r], to - from, high - gap);
    });
    context.restore();
  }

  /** One pixel for each cell. */
  private _paint(data: IHeatData, colors: readonly Rgb[]): HTMLCanvasElement {
    const image = this._image;
    image.width = Math.max(1, data.columns);
    image.height = Math.max(1, data.rows.length);
    const context = image.getContext('2d') as CanvasRenderingContext2D;
    const pixels = context.createImageData(image.width, image.height);
    for (let i = 0; i < data.cells.length; i++) {
      const value = data.cells[i];
      if (!Number.isNaN(value)) {
        const [r, g, b] = colors[Math.max(0, Math.min(100, Math.round(value)))];
        pixels.data[4 * i] = r;
        pixels.data[4 * i + 1] = g;
        pixels.data[4 * i + 2] = b;
        pixels.data[4 * i + 3] = 255;
      }
    }
    context.putImageData(pixels, 0, 0);
    return image;
  }

  /** Names at the left, with marks between the nodes: a line across would not be visible on busy cells. */
  private _drawLabels(context: CanvasRenderingContext2D, data: IHeatData, height: number): void {
    const style = getComputedStyle(this.node);
    const { left, right, top, bottom, gap } = this._size;
    context.fillStyle = style.getPropertyValue('--jp-content-font-color2').trim() || '#666';
    context.font = `10px ${style.fontFamily}`;
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    const nodes = nodesOf(data.rows);
    const high = rowHeight(data.rows.length, this._size);
    let free = -Infinity;
    const label = (text: string, y: number) => {
      const at = Math.max(top + 4, Math.min(height - bottom - 4, y));
      if (at - free >= 10) {
        context.fillText(text, left - 5, at, left - 6);
        free = at;
      }
    };
    for (const { node, first, rows } of nodes) {
      if (nodes.length > 1) {
        label(`n${node}`, this._tops[first] + (rows * high) / 2);
        if (first) {
          context.fillRect(2, this._tops[first] - gap / 2 - 0.5, left - 4, 1);
        }
      } else {
        data.rows.forEach((row, r) => label(row.short ?? row.label, this._tops[r] + high / 2));
      }
    }
    const inner = this._width - left - right;
    for (const [share, text] of data.ticks(Math.max(1, Math.floor(inner / 110)))) {
      context.textAlign = share <= 0 ? 'left' : share >= 1 ? 'right' : 'center';
      context.fillText(text, left + share * inner, height - bottom / 2 + 1);
    }
  }

  private _drawKey(colors: readonly Rgb[]): void {
    const stops = [0, 25, 50, 75, 100].map(i => `rgb(${colors[i].join(' ')})`).join(', ');
    this._key.style.setProperty('--jp-amlrun-ramp', `linear-gradient(90deg, ${stops})`);
    const [low, bar, high] = ['0', '', '100 %'].map(text => {
      const part = document.createElement('span');
      part.textContent = text;
      return part;
    });
    bar.className = 'jp-AmlRun-heatRamp';
    this._key.replaceChildren(low, bar, high);
  }

  /** The two ends, in words: a picture alone does not tell which GPU is idle. */
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

  private readonly _canvas = document.createElement('canvas');
  private readonly _image = document.createElement('canvas');
  private readonly _key = document.createElement('span');
  private readonly _frame: ChartFrame;
  private readonly _resize: ResizeObserver;
  private readonly _endTheme: () => void;
  private _data: IHeatData | null = null;
  private _colors: Rgb[] | null = null;
  private _tops: number[] = [0];
  private _width = 0;
}

/** What a heat map says of its columns where they stand for equal stretches of the time from `from` to `to`. */
export function timed(from: number, to: number, columns: number): Pick<IHeatData, 'ticks' | 'at'> {
  const at = (share: number) => clock(from + (to - from) * share);
  return {
    ticks: count => Array.from({ length: count + 1 }, (_, i) => [i / count, at(i / count)] as const),
    at: column => at((column + 0.5) / columns)
  };
}
