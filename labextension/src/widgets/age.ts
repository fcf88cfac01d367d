/** How old the newest sample is, by the page's own clock. */

import { duration } from '../format';

/** Seconds by which a clock may differ before the difference is taken for the clocks' and not for a delay. */
const CLOCKS_AGREE = 5;

export class SampleAge {
  /**
   * A sample has arrived.
   *
   * @param taken unix seconds by the target's clock
   * @param now unix seconds by the page's clock
   */
  arrived(taken: number, now: number): void {
    this._taken = taken;
    this._delays.push(now - taken);
    if (this._delays.length > 60) {
      this._delays.shift();
    }
  }

  /** Seconds; NaN before the first sample. */
  at(now: number): number {
    if (!this._delays.length) {
      return NaN;
    }
    // The least delay is the difference of the clocks plus the way here.
    const least = Math.min(...this._delays);
    const skew = least < 0 || least > CLOCKS_AGREE ? least : 0;
    return Math.max(0, now - this._taken - skew);
  }

  private _taken = NaN;
  private readonly _delays: number[] = [];
}

/** `1.2 s`, `45 s`, `3 min 05 s`. */
export function ageText(seconds: number): string {
  return seconds < 9.95 ? `${seconds.toFixed(1)} s` : seconds < 59.5 ? `${Math.round(seconds)} s` : duration(seconds);
}
