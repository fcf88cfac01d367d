/** The last ten minutes of every GPU, as ticks come: a ring with mean and range. Pure. */

import type { IGpuFrame } from '../panel/tokens';

/** Ticks that are kept: ten minutes at one a second. */
export const CAPACITY = 600;

/** A byte that stands for *cannot tell*. */
export const UNKNOWN = 255;

/** What of a GPU is measured. */
export type GpuField = 'util' | 'memory';

/** Mean, lowest and highest of all GPUs at one tick; NaN where none can tell. */
export interface IRange {
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

const NOTHING: IRange = { mean: NaN, low: NaN, high: NaN };

interface IRings {
  cells: Uint8Array;
  mean: Float32Array;
  low: Float32Array;
  high: Float32Array;
}

function rings(count: number): IRings {
  const empty = () => new Float32Array(CAPACITY).fill(NaN);
  return { cells: new Uint8Array(CAPACITY * count).fill(UNKNOWN), mean: empty(), low: empty(), high: empty() };
}

/** Seconds between the ticks of a frame: what they say themselves, where they are slower than announced. */
function periodOf(frame: IGpuFrame): number {
  const steps: number[] = [];
  for (let i = 1; i < frame.t.length; i++) {
    steps.push(frame.t[i] - frame.t[i - 1]);
  }
  steps.sort((a, b) => a - b);
  const announced = frame.head.period > 0 ? frame.head.period : 1;
  return steps.length >= 8 ? Math.max(announced, steps[steps.length >> 1]) : announced;
}

/**
 * Ticks of equal distance: time that passed without one is filled with ticks that tell nothing, so a
 * tick's place says when it was.
 */
export class GpuStore {
  /** As it was asked for; empty before the first frame. */
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
  total = 0;
  /** Ticks that are there. */
  length = 0;
  /** Grows when all that was there is replaced. */
  epoch = 0;

  /** Number of GPUs. */
  get count(): number {
    return this.labels.length;
  }

  /** Forget everything. */
  clear(source = ''): void {
    Object.assign(this, { source, labels: [], titles: [], names: [], sizes: [], lost: [], cpus: null, hostSize: null });
    Object.assign(this, { period: 1, note: '', ended: false, total: 0, length: 0 });
    this.epoch += 1;
    this._allot(0);
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
      this._allot(head.labels.length);
    } else if (head.source !== this.source) {
      return false;
    }
    this.note = head.note;
    this.lost = head.lost ?? [];
    this.ended = head.ended;
    const count = this.count;
    if (frame.util.length >= head.n * count) {
      for (let i = 0; i < head.n; i++) {
        this._tick(frame, i);
      }
    }
    return true;
  }

  /** Unix seconds of a tick, `i` from the oldest. */
  time(i: number): number {
    return this._t[this._slot(i)];
  }

  /** Percent, or NaN. */
  value(field: GpuField, i: number, gpu: number): number {
    const byte = this._rings[field].cells[this._slot(i) * this.count + gpu];
    return byte === UNKNOWN || byte === undefined ? NaN : byte;
  }

  range(field: GpuField, i: number): IRange {
    if (i < 0 || i >= this.length) {
      return NOTHING;
    }
    const { mean, low, high } = this._rings[field];
    const slot = this._slot(i);
    return { mean: mean[slot], low: low[slot], high: high[slot] };
  }

  /** Percent of one core, or NaN. */
  hostCpu(i: number): number {
    return this._cpu[this._slot(i)];
  }

  /** Bytes, or NaN. */
  hostMemory(i: number): number {
    return this._held[this._slot(i)];
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
    for (let i = 0; i < this.length; i++) {
      const value =
        what === 'cpu' ? this.hostCpu(i) : what === 'host' ? this.hostMemory(i) : this.range(what, i).mean;
      if (!Number.isNaN(value)) {
        return true;
      }
    }
    return false;
  }

  /** Mean of a GPU over the ticks numbered `from` to `to` (without), counted as `total` counts; NaN for none. */
  mean(field: GpuField, gpu: number, from: number, to: number): number {
    const { cells } = this._rings[field];
    let [sum, known] = [0, 0];
    for (let k = Math.max(from, this.total - this.length); k < Math.min(to, this.total); k++) {
      const byte = cells[(k % CAPACITY) * this.count + gpu];
      if (byte !== UNKNOWN) {
        sum += byte;
        known += 1;
      }
    }
    return known ? sum / known : NaN;
  }

  private _slot(i: number): number {
    return (this.total - this.length + i) % CAPACITY;
  }

  private _tick(frame: IGpuFrame, i: number): void {
    const { count } = this;
    const t = frame.t[i];
    if (this.length) {
      const before = this.time(this.length - 1);
      const missing = Math.round((t - before) / this.period) - 1;
      // One tick may be late by most of a period; two in a row are a gap.
      for (let k = 1; missing > 1 && k <= Math.min(missing, CAPACITY); k++) {
        this._hole(t - (Math.min(missing, CAPACITY) - k + 1) * this.period);
      }
    }
    const slot = this._next(t);
    for (const field of ['util', 'memory'] as const) {
      const ring = this._rings[field];
      let [sum, known, low, high] = [0, 0, Infinity, -Infinity];
      for (let g = 0; g < count; g++) {
        const byte = frame[field][i * count + g] ?? UNKNOWN;
        ring.cells[slot * count + g] = byte;
        if (byte !== UNKNOWN) {
          sum += byte;
          known += 1;
          low = Math.min(low, byte);
          high = Math.max(high, byte);
        }
      }
      ring.mean[slot] = known ? sum / known : NaN;
      ring.low[slot] = known ? low : NaN;
      ring.high[slot] = known ? high : NaN;
    }
    this._cpu[slot] = frame.host[2 * i] ?? NaN;
    this._held[slot] = frame.host[2 * i + 1] ?? NaN;
  }

  private _hole(t: number): void {
    const slot = this._next(t);
    for (const ring of [this._rings.util, this._rings.memory]) {
      ring.cells.fill(UNKNOWN, slot * this.count, (slot + 1) * this.count);
      ring.mean[slot] = ring.low[slot] = ring.high[slot] = NaN;
    }
    this._cpu[slot] = this._held[slot] = NaN;
  }

  private _next(t: number): number {
    const slot = this.total % CAPACITY;
    this.total += 1;
    this.length = Math.min(this.length + 1, CAPACITY);
    this._t[slot] = t;
    return slot;
  }

  private _allot(count: number): void {
    this._rings = { util: rings(count), memory: rings(count) };
  }

  private readonly _t = new Float64Array(CAPACITY);
  private readonly _cpu = new Float32Array(CAPACITY).fill(NaN);
  private readonly _held = new Float32Array(CAPACITY).fill(NaN);
  private _rings: Record<GpuField, IRings> = { util: rings(0), memory: rings(0) };
}
