/**
 * The kernel's own controls, obeyed in the page: window, pause, follow, and what a person zooms to.
 *
 * They work while the kernel is busy or gone; nothing that is done here is sent anywhere by us.
 */

import type { WidgetModel } from '@jupyter-widgets/base';
import { ILayout } from './layout';
import { secondsOf, ShownSpan, Span } from './span';
import type { ShownSteps } from './steps';

/** The part of the feed's model that is steered. */
export interface ISteered {
  readonly span: ShownSpan;
  readonly steps: ShownSteps;
  readonly layout: ILayout;
  readonly shift: number;
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
    const [min, max] = [t0, t1].map(t => new Date((t + this._feed.shift) * 1000));
    this._scale?.set_state({ min, max });
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
