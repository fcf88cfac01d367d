/** Limits of the value axes that follow their data: round, and never of no height. Pure but for `YRanges`. */

const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

/** bqplot spreads four ticks over an axis: three steps between them. */
const INTERVALS = 3;

/**
 * Round limits around a range.
 *
 * @param low fixed lower limit, or null
 */
export function roundLimits(from: number, to: number, low: number | null): [number, number] {
  const bottom = low ?? from;
  const height = to - bottom > 0 ? to - bottom : Math.abs(to) * 0.2 || 1;
  const power = 10 ** Math.floor(Math.log10(height / INTERVALS));
  for (const factor of [...STEPS, ...STEPS.map(step => 10 * step)]) {
    const step = factor * power;
    const start = low ?? Math.floor(bottom / step + 1e-9) * step;
    if (start + INTERVALS * step >= to - 1e-9 * height) {
      return [Number(start.toPrecision(12)), Number((start + INTERVALS * step).toPrecision(12))];
    }
  }
  return [bottom, to];
}

interface IScaleModel {
  get(name: string): any;
  set_state(state: Record<string, unknown>): void;
}

/** The value axes of one dashboard; those with limits from the kernel are left alone. */
export class YRanges {
  /** To be called for every mark before `apply`. */
  add(scale: IScaleModel | undefined, rows: readonly Float32Array[]): void {
    if (!scale) {
      return;
    }
    if (!this._own.has(scale)) {
      // Room for the width of a line would show as a tick below zero.
      scale.set_state({ allow_padding: false });
      // The first time it has what the kernel gave it.
      const [min, max] = [scale.get('min') ?? null, scale.get('max') ?? null];
      this._own.set(scale, max === null ? { low: min } : null);
    }
    if (!this._own.get(scale)) {
      return;
    }
    const range = this._now.get(scale) ?? [Infinity, -Infinity];
    for (const row of rows) {
      for (const value of row) {
        if (Number.isFinite(value)) {
          range[0] = Math.min(range[0], value);
          range[1] = Math.max(range[1], value);
        }
      }
    }
    this._now.set(scale, range);
  }

  apply(): void {
    this._now.forEach(([from, to], scale) => {
      if (from <= to) {
        const [min, max] = roundLimits(from, to, this._own.get(scale)?.low ?? null);
        if (scale.get('min') !== min || scale.get('max') !== max) {
          scale.set_state({ min, max });
        }
      } else if (this._own.get(scale) && (scale.get('max') ?? null) === null) {
        // Nothing has been told so far: bqplot cannot draw an axis without limits.
        const min = scale.get('min') ?? 0;
        scale.set_state({ min, max: min + 1 });
      }
    });
    this._now.clear();
  }

  private readonly _own = new Map<IScaleModel, { low: number | null } | null>();
  private readonly _now = new Map<IScaleModel, [number, number]>();
}
