/**
 * The whole history of one node in fixed memory: least, mean and most of stretches of ticks.
 *
 * The kernel does the same (`jupyter_amltrain/runs/pyramid.py`). When all buckets are used, pairs are
 * merged, so a spike stays visible whatever the age of the run.
 */

export class Pyramid {
  constructor(
    readonly columns: number,
    readonly capacity: number
  ) {
    if (capacity < 2 || capacity % 2) {
      throw new Error(`a pyramid needs an even number of buckets, not ${capacity}`);
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
