/** Selecting a range of time by dragging over a chart. */

/** An event that bubbles from the chart; its detail is a range in Unix seconds. */
export const TIME_SELECTED = 'amltrain-time-selected';

/** Class of a node around charts on which a time can be selected. */
export const SELECTABLE = 'jp-mod-timed';

/** Pixels below which a drag is a click. */
const MIN_DRAG = 4;

/** Where a chart draws its lines, and the time of both edges in Unix seconds. */
export interface ITimePlot {
  area: { left: number; right: number; top: number; bottom: number };
  span: readonly [number, number];
}

interface IDrag {
  plot: ITimePlot;
  pointer: number;
  x: number;
}

/** The time under a pointer, within the chart. */
export function timeAt({ area, span }: ITimePlot, x: number): number {
  const share = Math.max(0, Math.min(1, (x - area.left) / (area.right - area.left || 1)));
  return span[0] + share * (span[1] - span[0]);
}

export class Brush {
  /**
   * @param _node holds the charts; it is positioned
   * @param _plotAt the chart of time below a pointer
   */
  constructor(
    private readonly _node: HTMLElement,
    private readonly _plotAt: (event: PointerEvent) => ITimePlot | null
  ) {
    this._shade.className = 'jp-AmlRun-brush';
    _node.addEventListener('pointerdown', this._down);
    _node.addEventListener('pointermove', this._move);
    _node.addEventListener('pointerup', this._up);
    _node.addEventListener('pointercancel', this._cancel);
  }

  dispose(): void {
    this._node.removeEventListener('pointerdown', this._down);
    this._node.removeEventListener('pointermove', this._move);
    this._node.removeEventListener('pointerup', this._up);
    this._node.removeEventListener('pointercancel', this._cancel);
    this._cancel();
  }

  private readonly _down = (event: PointerEvent): void => {
    const plot = event.button === 0 && this._node.closest(`.${SELECTABLE}`) ? this._plotAt(event) : null;
    if (plot) {
      this._drag = { plot, pointer: event.pointerId, x: event.clientX };
    }
  };

  private readonly _move = (event: PointerEvent): void => {
    const drag = this._drag;
    if (!drag || drag.pointer !== event.pointerId || (Math.abs(event.clientX - drag.x) < MIN_DRAG && !this._shade.parentNode)) {
      return;
    }
    this._node.setPointerCapture(drag.pointer);
    const { area } = drag.plot;
    const inside = (x: number) => Math.max(area.left, Math.min(area.right, x));
    const [from, to] = [inside(drag.x), inside(event.clientX)].sort((a, b) => a - b);
    const outer = this._node.getBoundingClientRect();
    Object.assign(this._shade.style, {
      left: `${from - outer.left}px`,
      width: `${to - from}px`,
      top: `${area.top - outer.top}px`,
      height: `${area.bottom - area.top}px`
    });
    this._node.append(this._shade);
  };

  private readonly _up = (event: PointerEvent): void => {
    const drag = this._drag;
    const wasDragged = this._shade.parentNode !== null;
    this._cancel();
    if (drag && wasDragged && drag.pointer === event.pointerId) {
      const detail = [timeAt(drag.plot, drag.x), timeAt(drag.plot, event.clientX)].sort((a, b) => a - b);
      if (detail[1] > detail[0]) {
        this._node.dispatchEvent(new CustomEvent(TIME_SELECTED, { bubbles: true, detail }));
      }
    }
  };

  private readonly _cancel = (): void => {
    this._drag = null;
    this._shade.remove();
  };

  private readonly _shade = document.createElement('div');
  private _drag: IDrag | null = null;
}
