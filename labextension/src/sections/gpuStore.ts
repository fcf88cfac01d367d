/** The last ten minutes of every GPU, as ticks come, with mean and range of each tick. Pure. */

import { Ring, Tally } from '../charts/series';
import type { IGpuFrame } from '../panel/tokens';

/** Ticks that are kept: ten minutes at one a second. */
export const CAPACITY = 600;

/** A byte that stands for *cannot tell*. */
const UNKNOWN = 255;

/** What of a GPU is measured. */
export type GpuField = 'util' | 'memory';

/** Mean, lowest and highest of all GPUs at one tick; NaN where none can tell. */
export interface IRange {
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

/** What all GPUs together have in the ring, behind the columns of each. */
const TOGETHER = ['util mean', 'util low', 'util high', 'memory mean', 'memory low', 'memory high', 'cpu', 'host'] as const;
export type Together = (typeof TOGETHER)[number];

/** Seconds between the ticks of a frame: what they say themselves, where they are slower than announced. */
function periodOf(frame: IGpuFrame): number {
  const steps = Array.from(frame.t.subarray(1), (t, i) => t - frame.t[i]).sort((a, b) => a - b);
  const announced = frame.head.period > 0 ? frame.head.period : 1;
  return steps.length >= 8 ? Math.max(announced, steps[steps.length >> 1]) : announced;
}

/**
 * Ticks of equal distance: time that passed without one is filled with ticks that tell nothing, so a
 * tick's place says when it was.
 */
export class GpuStore {
  /** As requested; empty before the first frame. */
  source = '';
  labels: readonly string[] = [];
  /** What each is called: `GPU 0 MIG 1`. */
  titles: readonly string[] = [];
  names: readonly string[] = [];
  /** Bytes of each GPU. */
  sizes: readonly (number | null)[] = [];
  /** Places of the GPUs that the driver has lost. */
  lost: readonly number[] = [];
  cpus: number | null = null;
  hostSize: number | null = null;
  period = 1;
  note = '';
  ended = false;

  /** Ticks ever written; the newest has the number `total - 1`. */
  get total(): number {
    return this._ring.next;
  }

  /** Ticks that are there. */
  get length(): number {
    return this._ring.length;
  }

  /** Number of GPUs. */
  get count(): number {
    return this.labels.length;
  }

  /** Forget everything. */
  clear(source = ''): void {
    Object.assign(this, { source, labels: [], titles: [], names: [], sizes: [], lost: [], cpus: null, hostSize: null });
    Object.assign(this, { period: 1, note: '', ended: false });
    this._ring = ringOf(0);
  }

  /**
   * Take a frame in.
   *
   * @returns whether anything has changed; ticks that nobody can place (the first frame was missed) are dropped
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

  /** Unix seconds of a tick, `i` from the oldest. */
  time(i: number): number {
    return this._ring.t(i);
  }

  /** Percent, or NaN. */
  value(field: GpuField, i: number, gpu: number): number {
    return this._at(gpu + (field === 'util' ? 0 : this.count), i);
  }

  range(field: GpuField, i: number): IRange {
    const first = 2 * this.count + TOGETHER.indexOf(`${field} mean`);
    return { mean: this._at(first, i), low: this._at(first + 1, i), high: this._at(first + 2, i) };
  }

  /** Each tick of one GPU: percent, or NaN. */
  row(field: GpuField, gpu: number): Float32Array {
    return this._row(gpu + (field === 'util' ? 0 : this.count));
  }

  /** Each tick of all GPUs (percent) or of the host (percent of one core, bytes), or NaN. */
  together(name: Together): Float32Array {
    return this._row(2 * this.count + TOGETHER.indexOf(name));
  }

  /** Last tick at which any GPU could tell, of the last few; -1 for none. */
  get latest(): number {
    for (let i = this.length - 1; i >= Math.max(0, this.length - 3); i--) {
      if (!Number.isNaN(this.range('util', i).mean) || !Number.isNaN(this.range('memory', i).mean)) {
        return i;
      }
    }
    return -1;
  }

  /** Whether any tick has this. */
  has(what: GpuField | 'cpu' | 'host'): boolean {
    const row = this.together(what === 'util' || what === 'memory' ? `${what} mean` : what);
    return row.some(value => !Number.isNaN(value));
  }

  /** Mean of a GPU over the ticks numbered `from` to `to` (without), counted as `total` counts; NaN for none. */
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
      // One tick may be late by most of a period; two in a row are a gap.
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
