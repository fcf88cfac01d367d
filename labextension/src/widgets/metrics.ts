/** Points of the script's own metrics, in fixed memory. */

import { IMetrics } from './frames';
import { IRows } from './history';

/** Points kept of one metric; when there are more, pairs become their low and high. */
const KEPT = 8192;

interface IPoint {
  step: number;
  /** how many points of the metric were logged before */
  index: number;
  value: number;
}

class Metric {
  add(steps: readonly number[], indices: readonly number[], values: readonly (number | null)[]): void {
    for (let i = 0; i < Math.min(steps.length, values.length); i++) {
      const last = this._points[this._points.length - 1];
      const point = { step: steps[i], index: indices[i] ?? (last ? last.index + 1 : 0), value: values[i] ?? NaN };
      this._stepless = this._stepless && (!last || point.step === last.step);
      this._ordered = this._ordered && (!last || point.step >= last.step);
      this._points.push(point);
    }
    while (this._points.length > KEPT) {
      this._thin();
    }
  }

  /** Along the x axis: by step, or by order where none was given. */
  rows(): IRows {
    if (!this._ordered) {
      // A script may go back to an earlier step: a line that turns around says nothing.
      this._points.sort((a, b) => a.step - b.step || a.index - b.index);
      this._ordered = true;
    }
    const points = this._points;
    const x = this._stepless && points.length > 1 ? (i: number) => points[i].index : (i: number) => points[i].step;
    const value = (_: number, i: number) => points[i].value;
    // Steps may lie far apart: no distance is long enough to be a hole.
    return { length: points.length, base: 0, raw: true, step: Infinity, t: x, low: value, mean: value, high: value };
  }

  /** Of every four points, the lowest and the highest stay. */
  private _thin(): void {
    const all = this._points;
    const kept: IPoint[] = [];
    for (let i = 0; i < all.length; i += 4) {
      let [low, high] = [i, i];
      for (let j = i; j < Math.min(i + 4, all.length); j++) {
        low = all[j].value < all[low].value ? j : low;
        high = all[j].value > all[high].value ? j : high;
      }
      kept.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]).map(j => all[j]));
    }
    this._points = kept;
  }

  private _points: IPoint[] = [];
  /** all points have the same step */
  private _stepless = true;
  private _ordered = true;
}

export class MetricStore {
  take(message: IMetrics): void {
    if (message.all) {
      this._metrics.clear();
    }
    for (const [name, points] of Object.entries(message.values)) {
      let metric = this._metrics.get(name);
      if (!metric) {
        this._metrics.set(name, (metric = new Metric()));
      }
      metric.add(points.s ?? [], points.i ?? [], points.v ?? []);
    }
  }

  /** Rows of one column, whose `t` is the step; null for a metric that has not come. */
  rows(name: string): IRows | null {
    return this._metrics.get(name)?.rows() ?? null;
  }

  private readonly _metrics = new Map<string, Metric>();
}
