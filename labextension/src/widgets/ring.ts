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
    const place = this.next % this.capacity;
    this._t[place] = t;
    for (let c = 0; c < this.columns; c++) {
      this._y[c * this.capacity + place] = values[at + c * stride];
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
