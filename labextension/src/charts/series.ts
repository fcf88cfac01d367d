/**
 * Series of the charts in fixed memory, and the reducer to the width of a chart.
 *
 * A `Ring` keeps the newest ticks one by one, a `MinMaxHistory` the whole history as least, mean and most of stretches.
 * `lines`, `band` and `means` make points of them; highs and lows survive.
 */

/** Ticks of one node: `t[j]` and `y[c * stride + j]`. */
export interface ITicks {
  node: number;
  first: number;
  count: number;
  t: Float64Array;
  y: Float32Array;
}

/** All that the kernel keeps of one node. */
export interface INodeSnapshot {
  node: number;
  next: number;
  ring: number;
  buckets: number;
  width: number;
  partial: number;
  t: Float64Array;
  y: Float32Array;
  bucketT: Float64Array;
  bucketY: Float32Array;
}

/** The newest ticks of one node: fixed memory, columns in one block. */
export class Ring {
  constructor(
    readonly columns: number,
    readonly capacity: number
  ) {
    this._t = new Float64Array(capacity);
    this._y = new Float32Array(columns * capacity);
  }

  /** Sequence number of the tick that comes next. */
  next = 0;

  get length(): number {
    return this._length;
  }

  /** Sequence number of the oldest tick that is kept. */
  get first(): number {
    return this.next - this._length;
  }

  /** Append the tick `next`; its values are `values[at + c * stride]`. */
  push(t: number, values: Float32Array, at = 0, stride = 1): void {
    const slot = this.next % this.capacity;
    this._t[slot] = t;
    for (let c = 0; c < this.columns; c++) {
      this._y[c * this.capacity + slot] = values[at + c * stride];
    }
    this.next += 1;
    this._length = Math.min(this._length + 1, this.capacity);
  }

  /** Forget all ticks; the one that comes next has the number `next`. */
  reset(next: number): void {
    this.next = next;
    this._length = 0;
  }

  /** Unix seconds of the i-th kept tick, the oldest first. */
  t(i: number): number {
    return this._t[(this.first + i) % this.capacity];
  }

  /** Value of a column at the i-th kept tick. */
  value(column: number, i: number): number {
    return this._y[column * this.capacity + ((this.first + i) % this.capacity)];
  }

  private readonly _t: Float64Array;
  private readonly _y: Float32Array;
  private _length = 0;
}

/**
 * The whole history of one node in fixed memory: least, mean and most of stretches of ticks.
 *
 * The kernel does the same (`jupyter_amltrain/kernel/min_max_history.py`). When all buckets are used, pairs are
 * merged, so a spike stays visible whatever the age of the run.
 */

export class MinMaxHistory {
  constructor(
    readonly columns: number,
    readonly capacity: number
  ) {
    if (capacity < 2 || capacity % 2) {
      throw new Error(`a history needs an even number of buckets, not ${capacity}`);
    }
    const size = columns * capacity;
    this._t = new Float64Array(capacity);
    this._min = new Float32Array(size);
    this._mean = new Float32Array(size);
    this._max = new Float32Array(size);
    this._count = new Uint32Array(size);
  }

  /** Ticks that a full bucket holds. */
  width = 1;

  /** Ticks in the last bucket. */
  partial = 0;

  get length(): number {
    return this._length;
  }

  /** Add one tick; its values are `values[at + c * stride]`. */
  push(t: number, values: Float32Array, at = 0, stride = 1): void {
    if (!this._length || this.partial === this.width) {
      if (this._length === this.capacity) {
        this._merge();
      }
      this._open(t);
    }
    const b = this._length - 1;
    for (let c = 0; c < this.columns; c++) {
      const value = values[at + c * stride];
      if (Number.isNaN(value)) {
        continue;
      }
      const i = c * this.capacity + b;
      const n = ++this._count[i];
      if (n === 1) {
        this._min[i] = this._mean[i] = this._max[i] = value;
      } else {
        this._min[i] = Math.min(this._min[i], value);
        this._max[i] = Math.max(this._max[i], value);
        this._mean[i] += (value - this._mean[i]) / n;
      }
    }
    this.partial += 1;
  }

  /**
   * Take the kernel's state.
   *
   * @param count buckets
   * @param blocks min, mean and max, one after the other, each column after column
   */
  load(t: Float64Array, blocks: Float32Array, count: number, width: number, partial: number): void {
    const size = this.columns * count;
    this._length = count;
    this.width = width;
    this.partial = partial;
    this._t.set(t.subarray(0, count));
    for (let c = 0; c < this.columns; c++) {
      const [from, to] = [c * count, c * this.capacity];
      this._min.set(blocks.subarray(from, from + count), to);
      this._mean.set(blocks.subarray(size + from, size + from + count), to);
      this._max.set(blocks.subarray(2 * size + from, 2 * size + from + count), to);
      for (let b = 0; b < count; b++) {
        // How many of a bucket's ticks had a value is not sent: it only weighs later merges.
        const ticks = b === count - 1 ? partial : width;
        this._count[to + b] = Number.isNaN(this._mean[to + b]) ? 0 : ticks;
      }
    }
  }

  /** Unix seconds of the bucket's first tick. */
  t(b: number): number {
    return this._t[b];
  }

  min(column: number, b: number): number {
    return this._min[column * this.capacity + b];
  }

  mean(column: number, b: number): number {
    return this._mean[column * this.capacity + b];
  }

  max(column: number, b: number): number {
    return this._max[column * this.capacity + b];
  }

  private _open(t: number): void {
    const b = this._length;
    this._t[b] = t;
    for (let c = 0; c < this.columns; c++) {
      const i = c * this.capacity + b;
      this._min[i] = this._mean[i] = this._max[i] = NaN;
      this._count[i] = 0;
    }
    this._length += 1;
    this.partial = 0;
  }

  private _merge(): void {
    const half = this.capacity / 2;
    for (let b = 0; b < half; b++) {
      this._t[b] = this._t[2 * b];
      for (let c = 0; c < this.columns; c++) {
        const to = c * this.capacity + b;
        const one = c * this.capacity + 2 * b;
        const two = one + 1;
        const [n, m] = [this._count[one], this._count[two]];
        if (!n || !m) {
          const from = n ? one : two;
          this._min[to] = this._min[from];
          this._mean[to] = this._mean[from];
          this._max[to] = this._max[from];
        } else {
          this._min[to] = Math.min(this._min[one], this._min[two]);
          this._mean[to] = (n * this._mean[one] + m * this._mean[two]) / (n + m);
          this._max[to] = Math.max(this._max[one], this._max[two]);
        }
        this._count[to] = n + m;
      }
    }
    this._length = half;
    this.width *= 2;
  }

  private readonly _t: Float64Array;
  private readonly _min: Float32Array;
  private readonly _mean: Float32Array;
  private readonly _max: Float32Array;
  private readonly _count: Uint32Array;
  private _length = 0;
}

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
    this.history = new MinMaxHistory(columns, buckets);
  }

  readonly ring: Ring;
  readonly history: MinMaxHistory;

  /** Unix seconds of the newest tick; NaN before the first. */
  get last(): number {
    return this.ring.length ? this.ring.t(this.ring.length - 1) : NaN;
  }

  /** Unix seconds of the oldest tick that left a trace. */
  get start(): number {
    return this.history.length ? this.history.t(0) : this.ring.length ? this.ring.t(0) : NaN;
  }

  /**
   * Append ticks; already known ones are skipped.
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
      this.history.push(ticks.t[j], ticks.y, j, ticks.count);
    }
    return true;
  }

  load(snapshot: INodeSnapshot): void {
    this.ring.reset(snapshot.next - snapshot.ring);
    for (let j = 0; j < snapshot.ring; j++) {
      this.ring.push(snapshot.t[j], snapshot.y, j, snapshot.ring);
    }
    this.history.load(
      snapshot.bucketT,
      snapshot.bucketY,
      Math.min(snapshot.buckets, this.history.capacity),
      snapshot.width,
      snapshot.partial
    );
  }

  /** The rows that reach back to `from`: single ticks where they are kept that long, else buckets. */
  rows(from: number): IRows {
    const { ring, history } = this;
    const enough = ring.length > 0 && (ring.t(0) <= from || ring.t(0) <= this.start);
    if (enough || !history.length) {
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
      length: history.length,
      base: 0,
      raw: history.width === 1,
      step: this._period * history.width,
      t: i => history.t(i),
      low: (column, i) => history.min(column, i),
      mean: (column, i) => history.mean(column, i),
      high: (column, i) => history.max(column, i)
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

/** x in milliseconds as bqplot's date scale wants it, or in steps; every row has memory of its own. */
export interface IPoints {
  x: Float64Array;
  y: Float32Array[];
}

export interface IPart {
  rows: IRows;
  columns: readonly number[];
  /** of a band: where its upper edge comes from; default the columns themselves */
  tops?: readonly number[];
}

/** Rows `[from, to)` for the window, with one more on each side so that lines reach the edges. */
function inside(rows: IRows, t0: number, t1: number): [number, number] {
  return [Math.max(0, find(rows, t0) - 1), Math.min(rows.length, find(rows, t1 + 1e-6) + 1)];
}

/** Seconds without a tick that are shown as a hole. */
const hole = (step: number) => Math.max(5 * step, 5);

/** Collects points; a hole in time becomes a point without values, so that no line crosses it. */
class Collector {
  constructor(
    room: number,
    private readonly _rows: number
  ) {
    this._x = new Float64Array(2 * room);
    this._y = Array.from({ length: _rows }, () => new Float32Array(2 * room));
  }

  hole(t: number): void {
    if (this._n) {
      const at = this._at(t);
      this._y.forEach(row => (row[at] = NaN));
    }
  }

  point(t: number, value: (row: number) => number): void {
    const at = this._at(t);
    for (let row = 0; row < this._rows; row++) {
      this._y[row][at] = value(row);
    }
  }

  done(): IPoints {
    return { x: this._x.slice(0, this._n), y: this._y.map(row => row.slice(0, this._n)) };
  }

  private _at(t: number): number {
    if (this._n === this._x.length) {
      const [x, y] = [this._x, this._y];
      this._x = new Float64Array(2 * x.length);
      this._x.set(x);
      this._y = y.map(row => {
        const more = new Float32Array(2 * row.length);
        more.set(row);
        return more;
      });
    }
    this._x[this._n] = t;
    return this._n++;
  }

  private _x: Float64Array;
  private _y: Float32Array[];
  private _n = 0;
}

/** Visit groups of `size` rows whose borders do not move when the window does. */
function groups(rows: IRows, from: number, to: number, size: number, visit: (a: number, b: number) => void): void {
  for (let a = from; a < to; ) {
    const b = Math.min(to, a + size - ((rows.base + a) % size));
    visit(a, b);
    a = b;
  }
}

/**
 * One line for each column: all ticks where they are few, else low and high of each group.
 *
 * @param unit what one of `t` is in x
 */
export function lines({ rows, columns }: IPart, t0: number, t1: number, limit: number): IPoints {
  const [from, to] = inside(rows, t0, t1);
  const n = to - from;
  const out = new Collector(limit + 4, columns.length);
  let before = NaN;
  const enter = (t: number) => {
    if (t - before > hole(rows.step)) {
      out.hole((t + before) / 2);
    }
  };
  if (rows.raw && n <= limit) {
    for (let i = from; i < to; i++) {
      enter(rows.t(i));
      out.point((before = rows.t(i)), row => rows.mean(columns[row], i));
    }
    return out.done();
  }
  const size = Math.max(1, Math.ceil((2 * n) / limit));
  const low = new Float32Array(columns.length);
  const high = new Float32Array(columns.length);
  const lowFirst = new Uint8Array(columns.length);
  groups(rows, from, to, size, (a, b) => {
    columns.forEach((column, row) => {
      let [lowest, highest, lowAt, highAt] = [NaN, NaN, 0, 1];
      for (let i = a; i < b; i++) {
        const [l, h] = [rows.low(column, i), rows.high(column, i)];
        if (!(l >= lowest)) {
          [lowest, lowAt] = Number.isNaN(l) ? [lowest, lowAt] : [l, i];
        }
        if (!(h <= highest)) {
          [highest, highAt] = Number.isNaN(h) ? [highest, highAt] : [h, i];
        }
      }
      low[row] = lowest;
      high[row] = highest;
      lowFirst[row] = lowAt <= highAt ? 1 : 0;
    });
    const first = rows.t(a);
    const last = b < rows.length ? rows.t(b - 1) : rows.t(b - 1) + (rows.raw ? 0 : rows.step / 2);
    enter(first);
    out.point(first, row => (lowFirst[row] ? low[row] : high[row]));
    out.point(rows.raw ? last : Math.max(last, first + (rows.step * (b - a)) / 2), row =>
      lowFirst[row] ? high[row] : low[row]
    );
    before = last;
  });
  return out.done();
}

/** High, mean and low over all columns of all parts, in this order of rows. */
export function band(parts: readonly IPart[], t0: number, t1: number, limit: number): IPoints {
  const out = new Collector(limit + 4, 3);
  const sum = new Tally();
  let before = NaN;
  const emit = (t: number, step: number) => {
    if (sum.count) {
      if (t - before > hole(step)) {
        out.hole((t + before) / 2);
      }
      out.point((before = t), row => (row === 0 ? sum.high : row === 1 ? sum.mean : sum.low));
    }
    sum.clear();
  };
  if (parts.length === 1) {
    const { rows, columns, tops } = parts[0];
    const [from, to] = inside(rows, t0, t1);
    groups(rows, from, to, Math.max(1, Math.ceil((to - from) / limit)), (a, b) => {
      for (let i = a; i < b; i++) {
        sum.add(rows, columns, i, tops);
      }
      emit(rows.t((a + b - 1) >> 1), rows.step * (b - a));
    });
    return out.done();
  }
  // Nodes tick at moments of their own: they meet in stretches of time.
  const step = Math.max(1e-3, ...parts.map(part => part.rows.step), (t1 - t0) / limit);
  const at = parts.map(({ rows }) => inside(rows, t0, t1));
  for (let bin = Math.floor(t0 / step) - 1; bin * step <= t1 + step; bin++) {
    parts.forEach(({ rows, columns, tops }, p) => {
      for (let i = at[p][0]; i < at[p][1] && rows.t(i) < (bin + 1) * step; i++) {
        sum.add(rows, columns, i, tops);
        at[p][0] = i + 1;
      }
    });
    emit((bin + 0.5) * step, step);
  }
  return out.done();
}

/** Least, mean and most of values as they come; NaN is passed over. */
export class Tally {
  low = Infinity;
  high = -Infinity;
  sum = 0;
  count = 0;

  get mean(): number {
    return this.count ? this.sum / this.count : NaN;
  }

  /** @param mean a value, or the mean of some of which `low` and `high` are the ends */
  take(mean: number, low = mean, high = mean): void {
    if (!Number.isNaN(mean)) {
      this.low = Math.min(this.low, low);
      this.high = Math.max(this.high, high);
      this.sum += mean;
      this.count += 1;
    }
  }

  /** Take columns of a row; `tops` are where their upper ends come from. */
  add(rows: IRows, columns: readonly number[], i: number, tops = columns): void {
    columns.forEach((column, k) => {
      const [high, top] = [rows.high(column, i), rows.high(tops[k] ?? column, i)];
      this.take(rows.mean(column, i), rows.low(column, i), Number.isNaN(top) ? high : Math.max(high, top));
    });
  }

  clear(): void {
    [this.low, this.high, this.sum, this.count] = [Infinity, -Infinity, 0, 0];
  }
}

/** Mean of one column in each of `bins` equal stretches of time; NaN where there is no value. */
export function means(rows: IRows, column: number, t0: number, t1: number, bins: number): Float32Array {
  const out = new Float32Array(bins).fill(NaN);
  const width = (t1 - t0) / bins;
  const sum = new Float64Array(bins);
  const count = new Uint32Array(bins);
  const end = Math.min(rows.length, find(rows, t1) + 1);
  for (let i = Math.max(0, find(rows, t0) - 1); i < end; i++) {
    const value = rows.mean(column, i);
    // A row stands for the time until the next one: else columns between two ticks stay empty.
    const next = i + 1 < rows.length ? Math.min(rows.t(i + 1), rows.t(i) + 3 * rows.step) : rows.t(i) + rows.step;
    const a = Math.max(0, Math.floor((rows.t(i) - t0) / width + 1e-6));
    const b = Math.min(bins, Math.max(a + 1, Math.floor((next - t0) / width + 1e-6)));
    for (let bin = a; bin < b && !Number.isNaN(value); bin++) {
      sum[bin] += value;
      count[bin] += 1;
    }
  }
  for (let bin = 0; bin < bins; bin++) {
    out[bin] = count[bin] ? sum[bin] / count[bin] : NaN;
  }
  return out;
}
