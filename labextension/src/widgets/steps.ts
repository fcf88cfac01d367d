/** Which steps the charts of the metrics show: all, or what the person chose of one. */

import { ticks } from '../charts/scale';
import type { MetricStore } from './metrics';
import type { Span } from './span';
import { IScaleModel, markAxis, tickLabels } from './yrange';

/** Ticks of an axis of steps, about. */
const TICKS = 4;

export class ShownSteps {
  constructor(private readonly _metrics: () => MetricStore) {}

  /** First and last step of a metric; null before its first point. */
  all(name: string): Span | null {
    const rows = this._metrics().rows(name);
    return rows?.length ? [rows.t(0), rows.t(rows.length - 1)] : null;
  }

  /** The steps that are shown of a metric. */
  shown(name: string): Span | null {
    return this._chosen.get(name) ?? this.all(name);
  }

  /** A zoom or a pan by the person. */
  choose(name: string, span: Span): void {
    const all = this.all(name);
    if (all && span[0] <= all[0] && span[1] >= all[1]) {
      this._chosen.delete(name);
    } else {
      this._chosen.set(name, span);
    }
  }

  /** Show all steps of all metrics again. */
  reset(): void {
    this._chosen.clear();
  }

  /** Let an axis show the steps of a metric. */
  apply(name: string, scale: IScaleModel | null, axis: IScaleModel | undefined): void {
    const span = this.shown(name);
    if (!scale || !span) {
      return;
    }
    // The only step stands in the middle of its axis.
    const [min, max] = span[1] > span[0] ? span : [span[0] - 1, span[0] + 1];
    if (scale.get('min') !== min || scale.get('max') !== max) {
      scale.set_state({ allow_padding: false, min, max });
    }
    const marks = span[1] > span[0] ? ticks(min, max, TICKS, true) : [span[0]];
    markAxis(axis, marks, tickLabels(marks));
  }

  private readonly _chosen = new Map<string, Span>();
}
