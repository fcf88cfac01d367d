/** Samples of every GPU in the last ten minutes, with mean and range of each tick. Independent of the DOM. */

import { ITicks, Ring, Tally } from '../charts/series';
import type { IGpuFrame } from '../panel/tokens';
import type { IGpus } from '../protocol';

/** Number of ticks kept: ten minutes at one tick per second. */
export const CAPACITY = 600;

/** Measured quantities of a GPU. */
export type GpuField = 'util' | 'memory';

/** Mean, lowest and highest value of all GPUs at one tick; NaN if none is known. */
export interface IRange {
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

/** Columns of the ring for the host; then come the utilization of each GPU, its memory, and those for all GPUs. */
const HOST = ['cpu', 'host'] as const;
const TOGETHER = ['util mean', 'util low', 'util high', 'memory mean', 'memory low', 'memory high'] as const;
export type Together = (typeof HOST)[number] | (typeof TOGETHER)[number];

/** What a source says of its GPUs once. */
type Facts = Pick<IGpus, 'labels' | 'nodes' | 'names' | 'memory' | 'cpus' | 'host_memory'>;
const NO_FACTS: Facts = { labels: [], nodes: [], names: [], memory: [], cpus: null, host_memory: null };

/** Seconds between the ticks of a frame: the median of its times if it is longer than the announced period. */
function periodOf({ head, ticks }: IGpuFrame): number {
  const steps = Array.from(ticks?.t.subarray(1) ?? [], (t, i) => t - (ticks?.t[i] ?? t)).sort((a, b) => a - b);
  const announced = head.period > 0 ? head.period : 1;
  return steps.length >= 8 ? Math.max(announced, steps[steps.length >> 1]) : announced;
}

/**
 * Store of equidistant ticks: gaps are filled with ticks of unknown values, so the index of a tick
 * determines its time.
 */
export class GpuStore {
  /** Source as requested; empty before the first frame. */
  source = '';
  facts = NO_FACTS;
  /** Indices of the GPUs that the driver has lost. */
  lost: readonly number[] = [];
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
    return this.facts.labels.length;
  }

  /** Remove all data. */
  clear(source = ''): void {
    Object.assign(this, { source, facts: NO_FACTS, lost: [], period: 1, note: '', ended: false });
    this._ring = ringOf(0);
  }

  /**
   * Add the ticks of a frame.
   *
   * @returns whether the data has changed; ticks without a preceding first frame are dropped
   */
  push(frame: IGpuFrame): boolean {
    const { head, ticks } = frame;
    if (head.first || (head.source !== this.source && !ticks)) {
      this.clear(head.source);
      this.facts = head;
      this.period = periodOf(frame);
      this._ring = ringOf(this.count);
    } else if (head.source !== this.source) {
      return false;
    }
    this.note = head.note;
    this.lost = head.lost;
    this.ended = head.ended;
    for (let i = 0; ticks && ticks.y.length === ticks.count * (HOST.length + 2 * this.count) && i < ticks.count; i++) {
      this._tick(ticks, i);
    }
    return true;
  }

  /** Time of a tick in Unix seconds; `i` counts from the oldest. */
  time(i: number): number {
    return this._ring.t(i);
  }

  /** Value in percent, or NaN. */
  value(field: GpuField, i: number, gpu: number): number {
    return this._at(this._column(field, gpu), i);
  }

  range(field: GpuField, i: number): IRange {
    const first = this._together(`${field} mean`);
    return { mean: this._at(first, i), low: this._at(first + 1, i), high: this._at(first + 2, i) };
  }

  /** Values of one GPU at each tick, in percent or NaN. */
  row(field: GpuField, gpu: number): Float32Array {
    return this._row(this._column(field, gpu));
  }

  /** Values at each tick for all GPUs (percent) or for the host (percent of one core, bytes), or NaN. */
  together(name: Together): Float32Array {
    return this._row(this._together(name));
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

  private _column(field: GpuField, gpu: number): number {
    return HOST.length + gpu + (field === 'util' ? 0 : this.count);
  }

  private _together(name: Together): number {
    const host = (HOST as readonly string[]).indexOf(name);
    return host < 0 ? this._column('util', 2 * this.count) + (TOGETHER as readonly string[]).indexOf(name) : host;
  }

  private _at(column: number, i: number): number {
    return i >= 0 && i < this.length ? this._ring.value(column, i) : NaN;
  }

  private _row(column: number): Float32Array {
    return Float32Array.from({ length: this.length }, (_, i) => this._ring.value(column, i));
  }

  private _tick({ t, y, count }: ITicks, i: number): void {
    if (this.length) {
      const missing = Math.round((t[i] - this.time(this.length - 1)) / this.period) - 1;
      const nothing = new Float32Array(this._ring.columns).fill(NaN);
      // One tick may be late by almost a period; two in a row are a gap.
      for (let k = Math.min(missing, CAPACITY); missing > 1 && k > 0; k--) {
        this._ring.push(t[i] - k * this.period, nothing);
      }
    }
    const values = new Float32Array(this._ring.columns);
    for (let column = 0; column * count < y.length; column++) {
      values[column] = y[column * count + i];
    }
    for (const field of ['util', 'memory'] as const) {
      const all = new Tally();
      const first = this._column(field, 0);
      for (let column = first; column < first + this.count; column++) {
        all.take(values[column]);
      }
      values.set([all.mean, all.count ? all.low : NaN, all.count ? all.high : NaN], this._together(`${field} mean`));
    }
    this._ring.push(t[i], values);
  }

  private _ring = ringOf(0);
}

function ringOf(gpus: number): Ring {
  return new Ring(HOST.length + 2 * gpus + TOGETHER.length, CAPACITY);
}
