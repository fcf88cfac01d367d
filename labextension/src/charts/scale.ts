/** From data to pixels: limits, ticks and labels of axes, paths. Pure functions. */

import { clock } from '../format';
import type { IAxis } from '../protocol';

/** Values along x; null and NaN are holes. */
export type Row = ArrayLike<number | null>;

/** Smallest and largest finite value, or null when there is none. */
export function extent(values: Row): [number, number] | null {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value !== null && Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low <= high ? [low, high] : null;
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
  const positions: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    // Rounded to the step's own digits: 3 * 0.1 is 0.30000000000000004.
    positions.push(Number((i * step).toPrecision(12)));
  }
  return positions;
}

/** Ticks of an axis of time or steps, about. */
export const X_TICKS = 4;

/** Steps on a clock: seconds, minutes, hours that a person counts in. */
export function timeTicks(high: number, count = X_TICKS): number[] {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
  const raw = high / Math.max(1, count);
  const step = steps.find(s => s >= raw) ?? Math.ceil(raw / 86400) * 86400;
  const positions: number[] = [];
  for (let at = 0; at <= high * (1 + 1e-9); at += step) {
    positions.push(at);
  }
  return positions;
}

export type Scale = (value: number) => number;

/** Linear map of `[low, high]` to `[from, to]`. */
export function linear(low: number, high: number, from: number, to: number): Scale {
  const k = (to - from) / (high - low || 1);
  return value => from + (value - low) * k;
}

const known = (value: number | null | undefined): value is number =>
  value !== null && value !== undefined && Number.isFinite(value);

/** SVG path of a line with gaps where a value is missing; a lone point becomes a dot's worth of line. */
export function path(x: ArrayLike<number>, y: Row, sx: Scale, sy: Scale): string {
  let text = '';
  let open = false;
  for (let i = 0; i < Math.min(x.length, y.length); i++) {
    const value = y[i];
    if (!known(value) || !Number.isFinite(x[i])) {
      open = false;
      continue;
    }
    const at = `${sx(x[i]).toFixed(1)},${sy(value).toFixed(1)}`;
    text += open ? `L${at}` : `M${at}`;
    text += open || known(y[i + 1]) ? '' : 'h0.01';
    open = true;
  }
  return text;
}

/** Closed SVG path between two lines; stretches without both are left out. */
export function area(x: ArrayLike<number>, { low, high }: { low: Row; high: Row }, sx: Scale, sy: Scale): string {
  let text = '';
  const point = (i: number, y: Row) => `${sx(x[i]).toFixed(1)},${sy(y[i] as number).toFixed(1)}`;
  for (let begin = 0, end = 0; begin < x.length; begin = end + 1) {
    const [upper, lower]: string[][] = [[], []];
    for (end = begin; end < x.length && known(low[end]) && known(high[end]); end++) {
      upper.push(point(end, high));
      lower.unshift(point(end, low));
    }
    text += upper.length ? `M${[...upper, ...lower].join('L')}Z` : '';
  }
  return text;
}

/** Index of the value nearest to `at` in an ascending array, or -1. */
export function nearest(x: ArrayLike<number>, at: number): number {
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

const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

/** Steps between the ticks of an axis with round limits. */
const INTERVALS = 3;

/** Ticks of a metric's axis, at most. */
const TICKS = 5;

/** Part of a metric's range that is left free above and below its line. */
const AIR = 0.05;

const BYTES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** Longer units do not fit beside an axis; the title has them. */
const MAX_UNIT_LENGTH = 3;

/** A round number of at least `high`, of which there are `INTERVALS` round parts. */
function roundLimit(high: number): number {
  const height = high > 0 ? high : 1;
  const power = 10 ** Math.floor(Math.log10(height / INTERVALS));
  const step = [...STEPS, ...STEPS.map(step => 10 * step)].find(factor => INTERVALS * factor * power >= height - 1e-9 * height);
  return Number((INTERVALS * (step ?? 100) * power).toPrecision(12));
}

/** Labels of the ticks of one axis: as many digits as tell them apart and make them true. */
export function tickLabels(values: readonly number[]): string[] {
  const size = Math.max(...values.map(Math.abs));
  const steps = values.slice(1).map((value, i) => Math.abs(value - values[i]));
  const error = 1e-3 * Math.min(...steps, size || 1);
  const far = size >= 1e6 || (size > 0 && size < 1e-3);
  const short = (value: number, digits: number) => {
    const [mantissa, power] = value.toExponential(digits - 1).split('e');
    return `${Number(mantissa)}e${Number(power)}`;
  };
  const text = (value: number, digits: number) =>
    value === 0 ? '0' : far ? short(value, digits) : String(Number(value.toPrecision(digits)));
  for (let digits = 1; digits < 15; digits++) {
    const labels = values.map(value => text(value, digits));
    if (labels.every((label, i) => Math.abs(Number(label) - values[i]) <= error)) {
      return labels;
    }
  }
  return values.map(String);
}

/**
 * The axis of a metric: the data with a little air, round ticks inside.
 *
 * @param log whether the values are powers of ten
 */
export function metricAxis(from: number, to: number, log = false): IAxis {
  // A constant series is drawn in the middle of its axis.
  const half = to > from ? 0 : Math.abs(from) * 0.1 || 1;
  const [low, high] = [from - half, to + half];
  const air = AIR * (high - low);
  const [min, max] = [low - air, high + air];
  const marks = from >= to ? [from] : log ? logTicks(min, max) : ticks(min, max, TICKS);
  return { min, max, ticks: marks, labels: log ? marks.map(mark => tickLabels([10 ** mark])[0]) : tickLabels(marks) };
}

/** Ticks between two powers of ten: at whole powers, with few of these at 2 and 5 times them, else at any. */
function logTicks(min: number, max: number): number[] {
  const whole = ticks(min, max, TICKS, true);
  if (whole.length > 2) {
    return whole;
  }
  const fine: number[] = [];
  for (let power = Math.floor(min); power <= max; power++) {
    fine.push(...[1, 2, 5].map(factor => power + Math.log10(factor)).filter(mark => mark >= min && mark <= max));
  }
  return fine.length > 1 ? fine : ticks(min, max, TICKS - 2).map(mark => Math.log10(Number((10 ** mark).toPrecision(2))));
}

/** The axis of a measured quantity from zero to a round limit, marked at both ends and between. */
export function roundAxis(to: number, unit = ''): IAxis {
  const isBytes = unit === 'bytes' || unit === 'MiB';
  const base = unit === 'MiB' ? 1024 ** 2 : 1;
  const power = isBytes ? Math.max(0, Math.floor(Math.log2(to * base || 1) / 10)) : 0;
  const one = 1024 ** power / base;
  const top = roundLimit(to / one);
  const marks = Array.from({ length: INTERVALS + 1 }, (_, i) => Number(((i * top) / INTERVALS).toPrecision(12)));
  const name = isBytes ? BYTES[power] : unit.length <= MAX_UNIT_LENGTH ? unit : '';
  const labels = tickLabels(marks).map(label => `${label} ${name}`.trim());
  return { min: 0, max: top * one, ticks: marks.map(mark => mark * one), labels };
}

/** The axis of steps; a single one is in the middle. */
export function stepAxis(from: number, to: number): IAxis {
  const [min, max] = to > from ? [from, to] : [from - 1, from + 1];
  const marks = to > from ? ticks(min, max, X_TICKS, true) : [from];
  return { min, max, ticks: marks, labels: tickLabels(marks) };
}

/** The axis of seconds since a start, marked at times of a clock. */
export function timeAxis(from: number, to: number): IAxis {
  const marks = timeTicks(to, X_TICKS * Math.max(1, Math.round(to / Math.max(1e-6, to - from)))).filter(mark => mark >= from - 1e-6);
  return { min: from, max: to, ticks: marks, labels: marks.map(clock) };
}
