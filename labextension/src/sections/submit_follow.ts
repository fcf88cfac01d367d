/** Following the active cell of the notebook: when to look at it again. */

import type { Cell } from '@jupyterlab/cells';
import type { IPanelContext } from '../panel/tokens';

/** Milliseconds after which a change in the notebook is followed. */
const SETTLE = 120;

/** The same for what a person types. */
export const TYPING = 400;

export class CellFollower {
  /** Calls `settled` a while after the last change, as long as it is `seen`. */
  constructor(
    private readonly _context: IPanelContext,
    private readonly _seen: () => boolean,
    private readonly _settled: () => void
  ) {
    const { tracker } = _context;
    tracker.activeCellChanged.connect(this.follow, this);
    tracker.selectionChanged.connect(this._changed, this);
  }

  /** Follow the cell that is the active one now. */
  follow(): void {
    const cell = this._context.model.notebook?.content.activeCell ?? null;
    if (cell !== this._cell) {
      this._cell?.model?.contentChanged.disconnect(this._typed, this);
      this._cell = cell;
      cell?.model?.contentChanged.connect(this._typed, this);
    }
    this.later();
  }

  /** Look again after `wait` milliseconds, if nothing else comes until then. */
  later(wait = SETTLE): void {
    this.cancel();
    if (this._seen()) {
      this._timer = setTimeout(this._settled, wait);
    }
  }

  /** Who looks now need not do so again later. */
  cancel(): void {
    clearTimeout(this._timer);
  }

  dispose(): void {
    this.cancel();
    const { tracker } = this._context;
    tracker.activeCellChanged.disconnect(this.follow, this);
    tracker.selectionChanged.disconnect(this._changed, this);
    this._cell?.model?.contentChanged.disconnect(this._typed, this);
    this._cell = null;
  }

  private _changed(): void {
    this.later();
  }

  private _typed(): void {
    this.later(TYPING);
  }

  private _cell: Cell | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}
