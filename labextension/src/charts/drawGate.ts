/** Draw scheduler: limits the draw rate and skips hidden charts. */

export interface ITimers {
  now(): number;
  set(callback: () => void, ms: number): unknown;
  clear(timer: unknown): void;
}

export const browserTimers: ITimers = {
  now: () => performance.now(),
  set: (callback, ms) => window.setTimeout(callback, ms),
  clear: timer => window.clearTimeout(timer as number)
};

/** Milliseconds until one looks again whether the charts have come into view. */
const VISIBILITY_INTERVAL_MS = 750;

export class DrawGate {
  /**
   * @param _draw draws everything
   * @param _seen whether anybody could see it
   * @param _rate draws a second, at most
   */
  constructor(
    private readonly _draw: () => void,
    private readonly _seen: () => boolean,
    private readonly _rate: () => number,
    private readonly _timers: ITimers = browserTimers
  ) {}

  /** Schedule a drawing within `ms` milliseconds; changes until then are drawn together. */
  dirty(ms = 0): void {
    this._dirty = true;
    if (this._timer !== null && this._timers.now() + ms < this._due) {
      this._timers.clear(this._timer);
      this._timer = null;
    }
    this._schedule(ms);
  }

  /** What could be seen has changed: look now. */
  look(): void {
    if (this._dirty) {
      this._timers.clear(this._timer);
      this._timer = null;
      this._schedule(0);
    }
  }

  /** Draw now, seen or not. */
  force(): void {
    this._timers.clear(this._timer);
    this._timer = null;
    this._now();
  }

  dispose(): void {
    this._timers.clear(this._timer);
    this._disposed = true;
  }

  private _schedule(atLeast: number): void {
    if (this._disposed || this._timer !== null) {
      return;
    }
    const rest = this._last + 1000 / Math.max(0.1, this._rate()) - this._timers.now();
    const wait = Math.max(atLeast, rest, 0);
    this._due = this._timers.now() + wait;
    this._timer = this._timers.set(
      () => {
        this._timer = null;
        if (this._seen()) {
          this._now();
        } else {
          this._schedule(VISIBILITY_INTERVAL_MS);
        }
      },
      wait
    );
  }

  private _now(): void {
    if (!this._disposed) {
      this._dirty = false;
      this._last = this._timers.now();
      this._draw();
    }
  }

  private _dirty = false;
  private _timer: unknown = null;
  private _due = 0;
  private _last = -Infinity;
  private _disposed = false;
}
