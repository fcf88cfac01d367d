/** Utilization of many GPUs over time, one row each, on a canvas that only draws what is new. */

import { TranslationBundle } from '@jupyterlab/translation';
import { heatRow } from '../gpu_record';
import { gpuName } from '../output/gpu';
import { ramp } from '../widgets/heat';
import { labelOf, percent } from './gpu_charts';
import { Colours, columnsOf, IRoom, ISpot, LEFT, Plot, when } from './gpu_plot';
import { CAPACITY, GpuStore } from './gpu_store';

/** CSS pixels of one row, by how many there are. */
export function rowHeight(count: number): number {
  return count > 256 ? 1 : count > 96 ? 2 : count > 40 ? 3 : count > 20 ? 6 : count > 8 ? 8 : 10;
}

/** A run of rows of one node: first row, number of rows. */
export function nodesOf(labels: readonly string[]): { node: number; first: number; rows: number }[] {
  const found: { node: number; first: number; rows: number }[] = [];
  labels.forEach((label, g) => {
    const { node } = heatRow(label);
    const last = found[found.length - 1];
    if (last && last.node === node) {
      last.rows += 1;
    } else {
      found.push({ node, first: g, rows: 1 });
    }
  });
  return found;
}

/** CSS pixels of the page between nodes. */
const GAP = 2;

/** Tops of all rows; the last entry is the height. */
export function topsOf(labels: readonly string[]): number[] {
  const high = rowHeight(labels.length);
  const tops: number[] = [];
  let y = 0;
  nodesOf(labels).forEach(({ rows }, n) => {
    y += n ? GAP : 0;
    for (let r = 0; r < rows; r++) {
      tops.push(y);
      y += high;
    }
  });
  return [...tops, y];
}

export class HeatPlot extends Plot {
  constructor(trans: TranslationBundle, colours: Colours) {
    super(trans, colours, trans.__('By GPU'));
    this._ring = document.createElement('canvas');
  }

  repaint(): void {
    this._lut = null;
    this._epoch = -1;
  }

  protected height(store: GpuStore): number {
    this._layout(store);
    return this._tops[this._tops.length - 1] || 1;
  }

  /** The two ends, in words: a picture alone does not tell which GPU is idle. */
  protected value(store: GpuStore): string {
    const i = store.latest;
    let [low, high] = [-1, -1];
    for (let g = 0; g < store.count; g++) {
      const value = store.value('util', i, g);
      if (i >= 0 && !Number.isNaN(value)) {
        low = low < 0 || value < store.value('util', i, low) ? g : low;
        high = high < 0 || value > store.value('util', i, high) ? g : high;
      }
    }
    if (low < 0) {
      return '';
    }
    const value = percent(store.value('util', i, low));
    return low === high ? '' : this.trans.__('lowest %1, %2', labelOf(store, low), value);
  }

  protected rows(store: GpuStore): number {
    return store.count;
  }

  protected rowAt(store: GpuStore, y: number): number {
    const high = rowHeight(store.count);
    for (let g = 0; g < store.count; g++) {
      if (y >= this._tops[g] && y < this._tops[g] + high + GAP) {
        return g;
      }
    }
    return -1;
  }

  protected yOf(store: GpuStore, row: number): number {
    return this._tops[row] + rowHeight(store.count) / 2;
  }

  protected read(store: GpuStore, { tick, row }: ISpot): string[] {
    const value = store.value('util', tick, row);
    const text = Number.isNaN(value) ? this.trans.__('no sample') : percent(value);
    return [`${labelOf(store, row)}: ${text}`, when(this.trans, store, tick)];
  }

  protected draw(context: CanvasRenderingContext2D, store: GpuStore, room: IRoom): void {
    const { count, empty } = columnsOf(store);
    // Where the panel is narrower than the ticks, one column of pixels is the mean of some of them:
    // leaving some out would flicker.
    const each = Math.max(1, Math.ceil(count / Math.floor(room.width * room.ratio)));
    this._fill(store, each);
    const first = Math.floor((store.total - store.length) / each);
    const end = Math.ceil(store.total / each);
    const ring = this._ring.width;
    const scale = room.width / count;
    // Columns begin at multiples of `each` ticks: the first and last may be cut by the frame.
    const x = (bucket: number) => room.left + (bucket * each - (store.total - store.length) + empty) * scale;
    context.save();
    context.beginPath();
    context.rect(room.left, 0, room.width, room.height);
    context.clip();
    context.imageSmoothingEnabled = false;
    const high = rowHeight(store.count);
    for (const { first: row, rows } of nodesOf(store.labels)) {
      let from = first;
      while (from < end) {
        const at = from % ring;
        const n = Math.min(end - from, ring - at);
        context.drawImage(this._ring, at, row, n, rows, x(from), this._tops[row], n * each * scale, rows * high);
        from += n;
      }
    }
    context.restore();
    this._labels(context, store, room);
  }

  /** Bring the ring up to date: only the columns that have changed. */
  private _fill(store: GpuStore, each: number): void {
    const buckets = Math.ceil(CAPACITY / each) + 1;
    if (this._epoch !== store.epoch || this._each !== each || this._ring.width !== buckets) {
      this._ring.width = buckets;
      this._ring.height = Math.max(1, store.count);
      this._epoch = store.epoch;
      this._each = each;
      this._done = store.total - store.length;
    }
    const context = this._ring.getContext('2d');
    if (!context || !store.count) {
      return;
    }
    const lut = (this._lut ??= ramp(this.node));
    const column = context.createImageData(1, store.count);
    const begin = Math.max(this._done, store.total - store.length);
    for (let bucket = Math.floor(begin / each); bucket * each < store.total; bucket++) {
      column.data.fill(0);
      for (let g = 0; g < store.count; g++) {
        const mean = store.mean('util', g, bucket * each, (bucket + 1) * each);
        if (!Number.isNaN(mean)) {
          const [r, green, b] = lut[Math.max(0, Math.min(100, Math.round(mean)))];
          column.data.set([r, green, b, 255], 4 * g);
        }
      }
      context.putImageData(column, bucket % buckets, 0);
    }
    this._done = store.total;
  }

  /** Names at the left, the nodes' marked off there: a line across would be lost on what is busy. */
  private _labels(context: CanvasRenderingContext2D, store: GpuStore, room: IRoom): void {
    context.fillStyle = this.colours.get('--jp-content-font-color2');
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    const nodes = nodesOf(store.labels);
    const high = rowHeight(store.count);
    let free = -Infinity;
    const write = (text: string, y: number) => {
      if (y - free >= 10) {
        context.fillText(text, LEFT - 4, Math.max(5, Math.min(room.height - 5, y)), LEFT - 4);
        free = y;
      }
    };
    for (const { node, first, rows } of nodes) {
      if (nodes.length > 1) {
        write(`n${node}`, this._tops[first] + (rows * high) / 2);
        if (first) {
          context.fillRect(2, this._tops[first] - GAP / 2 - 0.5, LEFT - 4, 1);
        }
      } else {
        for (let g = first; g < first + rows; g++) {
          const short = gpuName(heatRow(store.labels[g]).index, store.titles[g]).replace('GPU ', '').replace(' MIG ', '.');
          write(short, this._tops[g] + high / 2);
        }
      }
    }
  }

  private _layout(store: GpuStore): void {
    if (this._labelled !== store.labels) {
      this._labelled = store.labels;
      this._tops = topsOf(store.labels);
    }
  }

  private readonly _ring: HTMLCanvasElement;
  private _lut: ReturnType<typeof ramp> | null = null;
  private _labelled: readonly string[] | null = null;
  private _tops: number[] = [0];
  private _epoch = -1;
  private _each = 1;
  private _done = 0;
}
