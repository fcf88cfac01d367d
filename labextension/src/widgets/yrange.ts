/** Limits and ticks of the value axes that follow their data. Pure but for `YRanges`. */

import { ticks, widen } from '../charts/scale';

const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

/** Steps between the ticks of an axis with round limits. */
const INTERVALS = 3;

/** Ticks of a metric's axis, at most. */
const TICKS = 5;

/** Part of a metric's range that is left free above and below its line. */
const AIR = 0.05;

const BYTES = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

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

/** An axis: its limits, and where it is marked with what. */
export interface IAxis {
  min: number;
  max: number;
  ticks: number[];
  labels: string[];
}

/** The axis of a metric: the data with a little air, round ticks inside. */
export function metricAxis(from: number, to: number): IAxis {
  const [low, high] = widen([from, to]);
  const air = AIR * (high - low);
  const [min, max] = [low - air, high + air];
  const marks = from < to ? ticks(min, max, TICKS) : [from];
  return { min, max, ticks: marks, labels: tickLabels(marks) };
}

/**
 * The axis of a measured quantity: round limits, marked at both ends and between.
 *
 * @param low fixed lower limit, or null
 */
export function roundAxis(from: number, to: number, low: number | null, unit = ''): IAxis {
  const power = unit === 'bytes' ? Math.min(BYTES.length - 1, Math.max(0, Math.floor(Math.log2(to || 1) / 10))) : 0;
  const one = 1024 ** power;
  const [min, max] = roundLimits(from / one, to / one, low === null ? null : low / one);
  const marks = Array.from({ length: INTERVALS + 1 }, (_, i) => {
    return Number((min + (i * (max - min)) / INTERVALS).toPrecision(12));
  });
  const labels = tickLabels(marks).map(label => (unit === 'bytes' ? `${label} ${BYTES[power]}` : label));
  return { min: min * one, max: max * one, ticks: marks.map(mark => mark * one), labels };
}

export interface IScaleModel {
  get(name: string): any;
  set_state(state: Record<string, unknown>): void;
}

/** Mark an axis with these ticks, unless it is marked so already. */
export function markAxis(axis: IScaleModel | undefined, values: readonly number[], labels: readonly string[]): void {
  const old = axis?.get('tick_values') as ArrayLike<number> | null | undefined;
  const keys = Object.fromEntries(values.map((value, i) => [String(value), labels[i]]));
  const same = old && old.length === values.length && values.every((value, i) => value === old[i]);
  if (axis && !(same && JSON.stringify(axis.get('tick_labels')) === JSON.stringify(keys))) {
    // With a number of ticks bqplot would leave some of them out.
    axis.set_state({ num_ticks: null, tick_labels: keys, tick_values: Float64Array.from(values) });
  }
}

interface IOwned {
  low: number | null;
  metric: boolean;
  unit: string;
}

/** The value axes of one dashboard; those with limits from the kernel are left alone. */
export class YRanges {
  /** To be called for every mark before `apply`. */
  add(
    scale: IScaleModel | undefined,
    rows: readonly Float32Array[],
    { metric = false, unit = '' }: { metric?: boolean; unit?: string } = {}
  ): void {
    if (!scale) {
      return;
    }
    if (!this._own.has(scale)) {
      // Room for the width of a line would show as a tick below zero.
      scale.set_state({ allow_padding: false });
      // The first time it has what the kernel gave it.
      const [min, max] = [scale.get('min') ?? null, scale.get('max') ?? null];
      this._own.set(scale, max === null ? { low: min, metric, unit } : null);
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

  /** @param axisOf the axis that shows a scale */
  apply(axisOf: (scale: IScaleModel) => IScaleModel | undefined = () => undefined): void {
    this._now.forEach(([from, to], scale) => {
      const own = this._own.get(scale);
      if (from <= to && own) {
        const axis = own.metric ? metricAxis(from, to) : roundAxis(from, to, own.low, own.unit);
        const { min, max } = axis;
        if (scale.get('min') !== min || scale.get('max') !== max) {
          scale.set_state({ min, max });
        }
        markAxis(axisOf(scale), axis.ticks, axis.labels);
      } else if (own && (scale.get('max') ?? null) === null) {
        // Nothing has been told so far: bqplot cannot draw an axis without limits.
        const min = scale.get('min') ?? 0;
        scale.set_state({ min, max: min + 1 });
      }
    });
    this._now.clear();
  }

  private readonly _own = new Map<IScaleModel, IOwned | null>();
  private readonly _now = new Map<IScaleModel, [number, number]>();
}
