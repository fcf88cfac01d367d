/** From data to pixels. Pure functions. */

/** Smallest and largest finite value, or null when there is none. */
export function extent(values: readonly (number | null)[]): [number, number] | null {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value !== null && Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low <= high ? [low, high] : null;
}

/** A range that has a width: a constant series lies in the middle of its own axis. */
export function widen([low, high]: [number, number]): [number, number] {
  if (high > low) {
    return [low, high];
  }
  const half = Math.abs(low) * 0.1 || 1;
  return [low - half, high + half];
}

/** Round steps (1, 2, 5 x 10^k) that give about `count` ticks inside the range. */
export function ticks(low: number, high: number, count: number, integer = false): number[] {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span) || count < 1) {
    return [low];
  }
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = ([1, 2, 5, 10].find(factor => factor * power >= raw * 0.999) ?? 10) * power;
  if (integer) {
    step = Math.max(1, Math.round(step));
  }
  const found: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    // Rounded to the step's own digits: 3 * 0.1 is 0.30000000000000004.
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

/** Steps on a clock: seconds, minutes, hours that a person counts in. */
export function timeTicks(high: number, count: number): number[] {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
  const raw = high / Math.max(1, count);
  const step = steps.find(s => s >= raw) ?? Math.ceil(raw / 86400) * 86400;
  const found: number[] = [];
  for (let at = 0; at <= high * (1 + 1e-9); at += step) {
    found.push(at);
  }
  return found;
}

/** Steps that are powers of two, so that the labels are round in binary units. */
export function byteTicks(high: number, count: number): number[] {
  const step = 2 ** Math.round(Math.log2(Math.max(1, high / Math.max(1, count))));
  const found: number[] = [];
  for (let at = 0; at <= high; at += step) {
    found.push(at);
  }
  return found;
}

export type Scale = (value: number) => number;

/** Linear map of `[low, high]` to `[from, to]`. */
export function linear(low: number, high: number, from: number, to: number): Scale {
  const k = (to - from) / (high - low || 1);
  return value => from + (value - low) * k;
}

/** SVG path of a line with gaps where a value is missing; a lone point becomes a dot's worth of line. */
export function path(
  x: readonly number[],
  y: readonly (number | null)[],
  sx: Scale,
  sy: Scale
): string {
  let text = '';
  let open = false;
  for (let i = 0; i < Math.min(x.length, y.length); i++) {
    const value = y[i];
    if (value === null || !Number.isFinite(value) || !Number.isFinite(x[i])) {
      open = false;
      continue;
    }
    const at = `${sx(x[i]).toFixed(1)},${sy(value).toFixed(1)}`;
    const next = y[i + 1];
    const alone = !open && (next === null || next === undefined || !Number.isFinite(next));
    text += open ? `L${at}` : `M${at}`;
    text += alone ? 'h0.01' : '';
    open = true;
  }
  return text;
}

/** Index of the value nearest to `at` in an ascending array, or -1. */
export function nearest(x: readonly number[], at: number): number {
  if (!x.length) {
    return -1;
  }
  let low = 0;
  let high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return Math.abs(x[low] - at) <= Math.abs(x[high] - at) ? low : high;
}
