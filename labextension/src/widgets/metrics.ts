/** Points of the script's own metrics, in fixed memory. */

import { IMetrics } from './frames';
import { IRows } from './history';

/** Points kept of one metric; when there are more, pairs become their low and high. */
const KEPT = 8192;

class Metric {
  t: number[] = [];
  v: number[] = [];

  add(t: readonly number[], v: readonly (number | null)[]): void {
    for (let i = 0; i < Math.min(t.length, v.length); i++) {
      this.t.push(t[i]);
      this.v.push(v[i] ?? NaN);
    }
    while (this.t.length > KEPT) {
      this._thin();
    }
  }

  /** Of every four points, the lowest and the highest stay. */
  private _thin(): void {
    const [t, v]: [number[], number[]] = [[], []];
    for (let i = 0; i < this.t.length; i += 4) {
      let [low, high] = [i, i];
      for (let j = i; j < Math.min(i + 4, this.t.length); j++) {
        low = this.v[j] < this.v[low] ? j : low;
        high = this.v[j] > this.v[high] ? j : high;
      }
      for (const j of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) {
        t.push(this.t[j]);
        v.push(this.v[j]);
      }
    }
    [this.t, this.v] = [t, v];
  }
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
      metric.add(points.t ?? [], points.v ?? []);
    }
  }

  /** Rows of one column; null for a metric that has not come. */
  rows(name: string): IRows | null {
    const metric = this._metrics.get(name);
    if (!metric) {
      return null;
    }
    const value = (_: number, i: number) => metric.v[i];
    const t = (i: number) => metric.t[i];
    // Points of a metric may lie hours apart: no step is long enough to be a hole.
    return { length: metric.t.length, base: 0, raw: true, step: Infinity, t, low: value, mean: value, high: value };
  }

  private readonly _metrics = new Map<string, Metric>();
}
