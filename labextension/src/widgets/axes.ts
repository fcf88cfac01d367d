/** Axes of a dashboard: visible range of time or steps, limits, ticks, titles and controls. */

import type { WidgetModel } from '@jupyter-widgets/base';
import { IPoints } from '../charts/series';
import { metricAxis, roundAxis, stepAxis, timeAxis } from '../charts/scale';
import type { IAxis } from '../protocol';
import type { ILayout, MetricStore } from './frames';

export type Span = [number, number];

/** Shown before there is a tick (seconds). */
const EMPTY = 10;

/** Shown at least (seconds). */
const MIN_SPAN_S = 1;

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
    return newest - from < MIN_SPAN_S ? [from, from + MIN_SPAN_S] : [from, newest];
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

/** Mark an axis of unix seconds with the time since `start`. */
export function markTime(axis: IScaleModel | undefined, [from, to]: Span, start: number): void {
  const { ticks, labels } = timeAxis(from - start, to - start);
  markAxis(axis, ticks.map(mark => mark + start), labels);
}

/** What a chart says of its value axis. */
interface IValueAxis {
  metric: boolean;
  unit: string;
  /** the values are powers of ten */
  log: boolean;
  /** as long as the values fit */
  fixed: IAxis | null;
  /** room for two ticks only */
  low: boolean;
}

/** The value axes of one dashboard; those that are not named here are left alone. */
export class YRanges {
  /** To be called for every mark before `apply`. */
  add(scale: IScaleModel | undefined, rows: readonly Float32Array[], what: Partial<IValueAxis> = {}): void {
    if (!scale) {
      return;
    }
    const found = this._now.get(scale);
    const range = found?.range ?? [Infinity, -Infinity];
    for (const row of rows) {
      for (const value of row) {
        if (Number.isFinite(value)) {
          range[0] = Math.min(range[0], value);
          range[1] = Math.max(range[1], value);
        }
      }
    }
    this._now.set(scale, { range, what: { metric: false, unit: '', log: false, fixed: null, low: false, ...what } });
  }

  /** @param axisOf the axis that shows a scale */
  apply(axisOf: (scale: IScaleModel) => IScaleModel | undefined = () => undefined): void {
    this._now.forEach(({ range: [from, to], what }, scale) => {
      const { metric, unit, log, fixed, low } = what;
      if (from <= to) {
        const { min, max, ticks, labels } = metric ? metricAxis(from, to, log) : fixed && to <= fixed.max ? fixed : roundAxis(to, unit);
        if (scale.get('min') !== min || scale.get('max') !== max) {
          // Room for the width of a line would show as a tick below zero.
          scale.set_state({ allow_padding: false, min, max });
        }
        const ends = (values: readonly any[]) => (low ? [values[0], values[values.length - 1]] : values);
        markAxis(axisOf(scale), ends(ticks), ends(labels));
      } else if ((scale.get('max') ?? null) === null) {
        // No data so far: bqplot cannot draw an axis without limits.
        const min = scale.get('min') ?? 0;
        scale.set_state({ min, max: min + 1 });
      }
    });
    this._now.clear();
  }

  private readonly _now = new Map<IScaleModel, { range: [number, number]; what: IValueAxis }>();
}

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

  /**
   * Let an axis show the steps of a metric.
   *
   * @param start unix seconds of the zero, where the axis is time
   */
  apply(name: string, scale: IScaleModel | null, axis: IScaleModel | undefined, start: number | null = null): void {
    const span = this.shown(name);
    if (!scale || !span) {
      return;
    }
    const { min, max, ticks, labels } = stepAxis(...span);
    if (scale.get('min') !== min || scale.get('max') !== max) {
      scale.set_state({ allow_padding: false, min, max });
    }
    if (start !== null) {
      markTime(axis, [min, max], start);
    } else {
      markAxis(axis, ticks, labels);
    }
  }

  private readonly _chosen = new Map<string, Span>();
}

/** Whether there are times, and no value at any of them. */
export function untold({ x, y }: IPoints): boolean {
  return x.length > 0 && y.every(row => row.every(value => !Number.isFinite(value)));
}

/** The part of the feed's model that is steered. */
export interface ISteered {
  readonly span: ShownSpan;
  readonly steps: ShownSteps;
  readonly layout: ILayout;
  readonly start: number;
  readonly newest: number;
  readonly shown: Span;
  get(name: string): any;
  listenTo(object: any, events: string, callback: (...args: any[]) => void): any;
}

export class Controls {
  constructor(
    private readonly _feed: ISteered,
    private readonly _redraw: () => void
  ) {
    const [window, follow, pause] = ['window', 'follow', 'pause'].map(name => _feed.get(name) as WidgetModel | null);
    this._scale = _feed.get('xscale');
    this._follow = follow;
    const { span } = _feed;
    span.window = this._seconds(window) ?? span.window;
    span.follow = follow?.get('value') !== false;
    if (window) {
      _feed.listenTo(window, 'change:index', () => {
        span.resize(this._seconds(window) ?? 0, _feed.start, _feed.newest);
        if (span.chosen) {
          this._put(span.chosen);
        }
        _redraw();
      });
    }
    if (follow) {
      _feed.listenTo(follow, 'change:value', () => {
        if (this._own) {
          return;
        }
        if (follow.get('value')) {
          span.follow = true;
          span.chosen = null;
          _feed.steps.reset();
        } else {
          span.choose(_feed.shown);
        }
        _redraw();
      });
    }
    if (pause) {
      const hold = () => (this.held = pause.get('value') ? _feed.newest : null);
      hold();
      _feed.listenTo(pause, 'change:value', () => {
        hold();
        _redraw();
      });
    }
  }

  /** Unix seconds at which the picture is held, or null while it moves. */
  held: number | null = null;

  /** Let the axis show this, unless the person has chosen something else. */
  move(span: Span): void {
    if (this._feed.span.follow) {
      this._put(span);
    }
  }

  /** A person has zoomed or panned to this time. */
  choose(span: Span): void {
    this._leave(span);
    this._put(span);
  }

  /** A person has zoomed or panned to these steps of a metric. */
  chooseSteps(name: string, span: Span): void {
    this._leave(this._feed.shown);
    this._feed.steps.choose(name, span);
  }

  /** Nothing follows the newest data any more. */
  private _leave(shown: Span): void {
    const first = this._feed.span.follow;
    this._feed.span.choose(shown);
    this._own = true;
    this._follow?.set_state({ value: false });
    this._own = false;
    clearTimeout(this._timer);
    this._timer = setTimeout(this._redraw, first ? 50 : 150);
  }

  private _put([t0, t1]: Span): void {
    this._scale?.set_state({ min: t0, max: t1 });
  }

  /** The dropdown tells the page which choice it is, and its label; not its value. */
  private _seconds(window: WidgetModel | null): number | null {
    const i = window?.get('index');
    if (!window || typeof i !== 'number') {
      return null;
    }
    return this._feed.layout.windows?.[i] ?? secondsOf(String(window.get('_options_labels')?.[i] ?? ''));
  }

  private readonly _scale: WidgetModel | null;
  private readonly _follow: WidgetModel | null;
  private _own = false;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}
