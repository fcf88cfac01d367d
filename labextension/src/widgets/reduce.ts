/** Rows of a window to at most so many points for a chart; highs and lows survive. Pure functions. */

import { find, IRows } from './history';

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
    private readonly _rows: number,
    private readonly _unit = 1000
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
    this._x[this._n] = t * this._unit;
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
export function lines({ rows, columns }: IPart, t0: number, t1: number, limit: number, unit = 1000): IPoints {
  const [from, to] = inside(rows, t0, t1);
  const n = to - from;
  const out = new Collector(limit + 4, columns.length, unit);
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
      out.point((before = t), row => (row === 0 ? sum.high : row === 1 ? sum.sum / sum.count : sum.low));
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

class Tally {
  low = Infinity;
  high = -Infinity;
  sum = 0;
  count = 0;

  add(rows: IRows, columns: readonly number[], i: number, tops = columns): void {
    columns.forEach((column, k) => {
      const mean = rows.mean(column, i);
      if (!Number.isNaN(mean)) {
        const top = rows.high(tops[k] ?? column, i);
        this.low = Math.min(this.low, rows.low(column, i));
        this.high = Math.max(this.high, rows.high(column, i), Number.isNaN(top) ? -Infinity : top);
        this.sum += mean;
        this.count += 1;
      }
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
