/** What the page knows of one node: the newest ticks one by one, all others in buckets. */

import { INodeSnapshot, ITicks } from './frames';
import { Pyramid } from './pyramid';
import { Ring } from './ring';

/** Rows along time, in one of the two resolutions. */
export interface IRows {
  length: number;
  /** grows by one with every row and never changes for a row, so that groups of rows stay the same */
  base: number;
  /** a row is one tick: its low, mean and high are the same value */
  raw: boolean;
  /** usual seconds between rows */
  step: number;
  t(i: number): number;
  low(column: number, i: number): number;
  mean(column: number, i: number): number;
  high(column: number, i: number): number;
}

export class NodeHistory {
  constructor(
    readonly columns: number,
    capacity: number,
    buckets: number,
    private readonly _period: number
  ) {
    this.ring = new Ring(columns, capacity);
    this.pyramid = new Pyramid(columns, buckets);
  }

  readonly ring: Ring;
  readonly pyramid: Pyramid;

  /** Unix seconds of the newest tick; NaN before the first. */
  get last(): number {
    return this.ring.length ? this.ring.t(this.ring.length - 1) : NaN;
  }

  /** Unix seconds of the oldest tick that left a trace. */
  get start(): number {
    return this.pyramid.length ? this.pyramid.t(0) : this.ring.length ? this.ring.t(0) : NaN;
  }

  /**
   * Take ticks that follow what is known; known ones are passed over.
   *
   * @returns false when ticks in between are missing: nothing is taken then
   */
  take(ticks: ITicks, acceptHole = false): boolean {
    const known = this.ring.next - ticks.first;
    if (known < 0 && !acceptHole) {
      return false;
    }
    if (known < 0) {
      this.ring.reset(ticks.first);
    }
    for (let j = Math.max(0, known); j < ticks.count; j++) {
      this.ring.push(ticks.t[j], ticks.y, j, ticks.count);
      this.pyramid.push(ticks.t[j], ticks.y, j, ticks.count);
    }
    return true;
  }

  load(snapshot: INodeSnapshot): void {
    this.ring.reset(snapshot.next - snapshot.ring);
    for (let j = 0; j < snapshot.ring; j++) {
      this.ring.push(snapshot.t[j], snapshot.y, j, snapshot.ring);
    }
    this.pyramid.load(
      snapshot.bucketT,
      snapshot.bucketY,
      Math.min(snapshot.buckets, this.pyramid.capacity),
      snapshot.width,
      snapshot.partial
    );
  }

  /** The rows that reach back to `from`: single ticks where they are kept that long, else buckets. */
  rows(from: number): IRows {
    const { ring, pyramid } = this;
    const enough = ring.length > 0 && (ring.t(0) <= from || ring.t(0) <= this.start);
    if (enough || !pyramid.length) {
      const value = (column: number, i: number) => ring.value(column, i);
      return {
        length: ring.length,
        base: ring.first,
        raw: true,
        step: this._period,
        t: i => ring.t(i),
        low: value,
        mean: value,
        high: value
      };
    }
    return {
      length: pyramid.length,
      base: 0,
      raw: pyramid.width === 1,
      step: this._period * pyramid.width,
      t: i => pyramid.t(i),
      low: (column, i) => pyramid.min(column, i),
      mean: (column, i) => pyramid.mean(column, i),
      high: (column, i) => pyramid.max(column, i)
    };
  }
}

/** First row at or after `at`. */
export function find(rows: IRows, at: number): number {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows.t(middle) < at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** Row nearest to `at`, or -1 when none is within a few steps of it. */
export function nearestRow(rows: IRows, at: number): number {
  const after = find(rows, at);
  const before = after - 1;
  // A bucket is named by its first tick: the one before `at` holds it.
  const close = rows.raw && after < rows.length && (before < 0 || rows.t(after) - at < at - rows.t(before));
  const i = close ? after : before;
  return i >= 0 && i < rows.length && Math.abs(rows.t(i) - at) <= 3 * rows.step + 1 ? i : -1;
}
