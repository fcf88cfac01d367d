/** Which stretch of time the charts show: the newest so many seconds, or what the person chose. */

export type Span = [number, number];

/** Shown before there is a tick (seconds). */
const EMPTY = 10;

/** Shown at least (seconds). */
const LEAST = 1;

export class ShownSpan {
  /** Seconds; 0 shows everything. */
  window = 300;

  /** The right edge moves with the newest tick. */
  follow = true;

  /** What was chosen by zooming and panning, while it does not follow. */
  chosen: Span | null = null;

  /** Unix seconds from and to. */
  at(start: number, newest: number): Span {
    if (!this.follow && this.chosen) {
      return this.chosen;
    }
    if (!Number.isFinite(newest)) {
      const now = Date.now() / 1000;
      return [now - EMPTY, now];
    }
    const oldest = Number.isFinite(start) ? start : newest;
    const from = this.window ? Math.max(oldest, newest - this.window) : oldest;
    // A run that has just begun has its first points at the left.
    return newest - from < LEAST ? [from, from + LEAST] : [from, newest];
  }

  /** A zoom or a pan by the person. */
  choose(span: Span): void {
    this.follow = false;
    this.chosen = span;
  }

  /** Another window: the right edge stays where it is. */
  resize(seconds: number, start: number, newest: number): void {
    const [, right] = this.at(start, newest);
    this.window = seconds;
    if (!this.follow && this.chosen) {
      this.chosen = seconds ? [right - seconds, right] : [start, newest];
    }
  }
}

const UNITS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };

/** Seconds of a choice's label such as `5 min`, `1 h`; 0 (everything) for one without a length. */
export function secondsOf(label: string): number {
  const found = /(\d+(?:\.\d+)?)\s*([smhdw])/i.exec(label);
  return found ? Number(found[1]) * UNITS[found[2].toLowerCase()] : 0;
}
