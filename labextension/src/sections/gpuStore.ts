/** Samples of every GPU in the last ten minutes, with mean and range of each tick. Independent of the DOM. */

import { Ring, Tally } from '../charts/series';
import type { IGpuFrame } from '../panel/tokens';

/** Number of ticks kept: ten minutes at one tick per second. */
export const CAPACITY = 600;

/** Byte for an unknown value. */
const UNKNOWN = 255;

/** Measured quantities of a GPU. */
export type GpuField = 'util' | 'memory';

/** Mean, lowest and highest value of all GPUs at one tick; NaN if none is known. */
export interface IRange {
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

/** Columns of the ring for all GPUs together, after the columns of each GPU. */
const TOGETHER = ['util mean', 'util low', 'util high', 'memory mean', 'memory low', 'memory high', 'cpu', 'host'] as const;
export type Together = (typeof TOGETHER)[number];

/** Seconds between the ticks of a frame: the median of its times if it is longer than the announced period. */
function periodOf(frame: IGpuFrame): number {
  const steps = Array.from(frame.t.subarray(1), (t, i) => t - frame.t[i]).sort((a, b) => a - b);
  const announced = frame.head.period > 0 ? frame.head.period : 1;
  return steps.length >= 8 ? Math.max(announced, steps[steps.length >> 1]) : announced;
}

/**
 * Store of equidistant ticks: gaps are filled with ticks of unknown values, so the index of a tick
 * determines its time.
 */
export class GpuStore {
  /** Source as requested; empty before the first frame. */
  source = '';
  labels: readonly string[] = [];
  /** Title of each GPU, e.g. `GPU 0 MIG 1`. */
  titles: readonly string[] = [];
  names: readonly string[] = [];
  /** Memory of each GPU in bytes. */
  sizes: readonly (number | null)[] = [];
  /** Indices of the GPUs that the driver has lost. */
  lost: readonly number[] = [];
  cpus: number | null = null;
  hostSize: number | null = null;
  period = 1;
  note = '';
  ended = false;

  /** Number of ticks ever written; the newest one has the number `total - 1`. */
  get total(): number {
    return this._ring.next;
  }

  /** Number of ticks in the store. */
  get length(): number {
    return this._ring.length;
  }

  /** Number of GPUs. */
  get count(): number {
    return this.labels.length;
  }

  /** Remove all data. */
  clear(source = ''): void {
    Object.assign(this, { source, labels: [], titles: [], names: [], sizes: [], lost: [], cpus: null, hostSize: null });
    Object.assign(this, { period: 1, note: '', ended: false });
    this._ring = ringOf(0);
  }

  /**
   * Add the ticks of a frame.
   *
   * @returns whether the data has changed; ticks without a preceding first frame are dropped
   */
  push(frame: IGpuFrame): boolean {
    const { head } = frame;
    if (head.first || (head.source !== this.source && !head.n)) {
      this.clear(head.source);
      this.labels = head.labels;
      this.titles = head.titles ?? [];
      this.names = head.names;
      this.sizes = head.memory;
      this.cpus = head.cpus;
      this.hostSize = head.host_memory;
      this.period = periodOf(frame);
      this._ring = ringOf(head.labels.length);
    } else if (head.source !== this.source) {
      return false;
    }
    this.note = head.note;
    this.lost = head.lost ?? [];
    this.ended = head.ended;
    if (frame.util.length >= head.n * this.count) {
      for (let i = 0; i < head.n; i++) {
        this._tick(frame, i);
      }
    }
    return true;
  }

  /** Time of a tick in Unix seconds; `i` counts from the oldest. */
  time(i: number): number {
    return this._ring.t(i);
  }

  /** Value in percent, or NaN. */
  value(field: GpuField, i: number, gpu: number): number {
    return this._at(gpu + (field === 'util' ? 0 : this.count), i);
  }

  range(field: GpuField, i: number): IRange {
    const first = 2 * this.count + TOGETHER.indexOf(`${field} mean`);
    return { mean: this._at(first, i), low: this._at(first + 1, i), high: this._at(first + 2, i) };
  }

  /** Values of one GPU at each tick, in percent or NaN. */
  row(field: GpuField, gpu: number): Float32Array {
    return this._row(gpu + (field === 'util' ? 0 : this.count));
  }

  /** Values at each tick for all GPUs (percent) or for the host (percent of one core, bytes), or NaN. */
  together(name: Together): Float32Array {
    return this._row(2 * this.count + TOGETHER.indexOf(name));
  }

  /** Index of the last tick with a known value among the last three; -1 for none. */
  get latest(): number {
    for (let i = this.length - 1; i >= Math.max(0, this.length - 3); i--) {
      if (!Number.isNaN(this.range('util', i).mean) || !Number.isNaN(this.range('memory', i).mean)) {
        return i;
      }
    }
    return -1;
  }

  /** Whether any tick has a value of this quantity. */
  has(what: GpuField | 'cpu' | 'host'): boolean {
    const row = this.together(what === 'util' || what === 'memory' ? `${what} mean` : what);
    return row.some(value => !Number.isNaN(value));
  }

  /** Mean of a GPU over the ticks numbered `from` to `to` (excluded), as counted by `total`; NaN for none. */
  mean(field: GpuField, gpu: number, from: number, to: number): number {
    const first = this._ring.first;
    let [sum, known] = [0, 0];
    for (let k = Math.max(from, first); k < Math.min(to, this.total); k++) {
      const value = this.value(field, k - first, gpu);
      if (!Number.isNaN(value)) {
        sum += value;
        known += 1;
      }
    }
    return known ? sum / known : NaN;
  }

  private _at(column: number, i: number): number {
    return i >= 0 && i < this.length ? this._ring.value(column, i) : NaN;
  }

  private _row(column: number): Float32Array {
    return Float32Array.from({ length: this.length }, (_, i) => this._ring.value(column, i));
  }

  private _tick(frame: IGpuFrame, i: number): void {
    const { count } = this;
    const t = frame.t[i];
    if (this.length) {
      const missing = Math.round((t - this.time(this.length - 1)) / this.period) - 1;
      const nothing = new Float32Array(this._ring.columns).fill(NaN);
      // One tick may be late by almost a period; two in a row are a gap.
      for (let k = Math.min(missing, CAPACITY); missing > 1 && k > 0; k--) {
        this._ring.push(t - k * this.period, nothing);
      }
    }
    const values = new Float32Array(this._ring.columns);
    (['util', 'memory'] as const).forEach((field, f) => {
      const all = new Tally();
      for (let g = 0; g < count; g++) {
        const byte = frame[field][i * count + g] ?? UNKNOWN;
        const value = byte === UNKNOWN ? NaN : byte;
        values[f * count + g] = value;
        all.take(value);
      }
      values.set([all.mean, all.count ? all.low : NaN, all.count ? all.high : NaN], 2 * count + 3 * f);
    });
    values.set([frame.host[2 * i] ?? NaN, frame.host[2 * i + 1] ?? NaN], 2 * count + 6);
    this._ring.push(t, values);
  }

  private _ring = ringOf(0);
}

function ringOf(gpus: number): Ring {
  return new Ring(2 * gpus + TOGETHER.length, CAPACITY);
}
