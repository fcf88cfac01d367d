/**
 * Zooming by the wheel and panning by dragging, in the page alone.
 *
 * bqplot's own PanZoom sends the limits to the kernel with every move, in a form that bqscales cannot read there.
 */

import type { ITimePlot } from '../charts/brush';
import type { IChartAxis } from './feed';
import type { Span } from './axes';

/** What is zoomed; a `StreamFeedModel` is one. */
export interface IZoomed {
  axisOf(figure: number): IChartAxis | null;
  choose(axis: IChartAxis, span: Span): void;
}

/** Part of what could be shown that is shown at least. */
const MIN_FRACTION = 1e-4;

/** A span, moved and cut to fit into the existing range. */
export function within([from, to]: Span, [first, last]: Span): Span {
  const width = Math.min(to - from, last - first);
  const start = Math.min(Math.max(from, first), last - width);
  return [start, start + width];
}

/**
 * The span after a turn of the wheel.
 *
 * @param share where the pointer is: 0 at the left edge, 1 at the right
 * @param delta of the wheel event, in pixels
 * @param least shortest span
 */
export function zoomed(shown: Span, all: Span, share: number, delta: number, least: number): Span {
  const width = Math.max(least, (shown[1] - shown[0]) * Math.exp(0.001 * delta));
  const at = shown[0] + share * (shown[1] - shown[0]);
  return within([at - share * width, at + (1 - share) * width], all);
}

interface IDrag {
  axis: IChartAxis;
  pointer: number;
  x: number;
  width: number;
}

export class Zoom {
  /**
   * @param _node holds the charts
   * @param _figureNodes the charts, in the order of the feed's figures
   */
  constructor(
    private readonly _feed: IZoomed,
    private readonly _node: HTMLElement,
    private readonly _figureNodes: () => (HTMLElement | null)[]
  ) {
    _node.addEventListener('wheel', this._wheel, { capture: true, passive: false });
    _node.addEventListener('pointerdown', this._down);
    _node.addEventListener('pointermove', this._move);
    _node.addEventListener('pointerup', this._up);
    _node.addEventListener('pointercancel', this._up);
  }

  dispose(): void {
    this._node.removeEventListener('wheel', this._wheel, { capture: true });
    this._node.removeEventListener('pointerdown', this._down);
    this._node.removeEventListener('pointermove', this._move);
    this._node.removeEventListener('pointerup', this._up);
    this._node.removeEventListener('pointercancel', this._up);
  }

  /** The chart of time below a pointer, for selecting a part of it. */
  timePlot(event: PointerEvent): ITimePlot | null {
    const found = this._at(event);
    return found && found[0].metric === null ? { area: found[1], span: found[0].shown } : null;
  }

  /** The axis and the drawing area of the chart below a pointer. */
  private _at(event: MouseEvent): [IChartAxis, DOMRect] | null {
    const figures = this._figureNodes();
    const i = figures.findIndex(node => node !== null && node.contains(event.target as Node));
    const area = i < 0 ? null : plot(figures[i]);
    const inside =
      area &&
      event.clientX >= area.left &&
      event.clientX <= area.right &&
      event.clientY >= area.top &&
      event.clientY <= area.bottom;
    const axis = inside ? this._feed.axisOf(i) : null;
    return axis && area ? [axis, area] : null;
  }

  private readonly _wheel = (event: WheelEvent): void => {
    const found = this._at(event);
    if (!found || !event.deltaY || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      return;
    }
    const [axis, area] = found;
    const { metric, shown, all } = axis;
    const share = (event.clientX - area.left) / area.width;
    const delta = event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_PIXEL ? 1 : 30);
    // A chart of two steps cannot be read; of time, a tick and the next one.
    const least = Math.min(all[1] - all[0], Math.max(MIN_FRACTION * (all[1] - all[0]), metric === null ? 1 : 2));
    const span = zoomed(shown, all, share, delta, least);
    if (span[0] === shown[0] && span[1] === shown[1]) {
      return; // nothing more to show: the page scrolls
    }
    event.preventDefault();
    event.stopPropagation();
    this._feed.choose(axis, span);
  };

  private readonly _down = (event: PointerEvent): void => {
    // With Shift a range is selected.
    const found = event.button === 0 && !event.shiftKey ? this._at(event) : null;
    if (found) {
      const [axis, area] = found;
      this._drag = { axis, pointer: event.pointerId, x: event.clientX, width: area.width };
    }
  };

  private readonly _move = (event: PointerEvent): void => {
    const drag = this._drag;
    if (!drag || drag.pointer !== event.pointerId) {
      return;
    }
    const { shown, all } = drag.axis;
    const moved = ((drag.x - event.clientX) / drag.width) * (shown[1] - shown[0]);
    const span = within([shown[0] + moved, shown[1] + moved], all);
    if (Math.abs(drag.x - event.clientX) < 3 || (span[0] === shown[0] && !this._node.hasPointerCapture(drag.pointer))) {
      return; // a click, or nothing beside what is shown
    }
    // From now on the pointer may leave the chart.
    this._node.setPointerCapture(drag.pointer);
    this._feed.choose(drag.axis, span);
  };

  private readonly _up = (event: PointerEvent): void => {
    if (this._drag?.pointer === event.pointerId) {
      this._drag = null;
    }
  };

  private _drag: IDrag | null = null;
}

/** Where a chart draws its lines. */
export function plot(figure: HTMLElement | null): DOMRect | null {
  const area = figure?.querySelector('.plotarea_background')?.getBoundingClientRect();
  return area && area.width ? area : null;
}
