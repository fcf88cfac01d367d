/** Guards against the second press of a double click. Independent of the DOM except for its events. */

/** Maximum interval in milliseconds between the two clicks of a double click. */
const DOUBLE_CLICK_MS = 800;

/** Registry of actions in progress or completed within the time of a double click. */
export class ClickGuard {
  constructor(private readonly _now: () => number = () => performance.now()) {}

  /** Run an action unless it is in progress; also ignore the keys passed to `same` for the time of a double click. */
  async once(key: string, act: (same: (again: string) => void) => Promise<void>): Promise<void> {
    const now = this._now();
    for (const [known, at] of this._recent) {
      if (now - at >= DOUBLE_CLICK_MS) {
        this._recent.delete(known);
      }
    }
    if (this._running.has(key) || this._recent.has(key)) {
      return;
    }
    this._running.add(key);
    try {
      await act(again => this._recent.set(again, this._now()));
    } finally {
      this._running.delete(key);
    }
  }

  private readonly _recent = new Map<string, number>();
  private readonly _running = new Set<string>();
}

/** Properties of a mouse event that the guard reads. */
export interface IPress {
  readonly type: string;
  /** Number of consecutive clicks. */
  readonly detail: number;
  readonly target: EventTarget | null;
  preventDefault(): void;
  stopPropagation(): void;
}

const TYPES = ['mousedown', 'mouseup', 'click', 'dblclick'] as const;

/**
 * Apply a double click to the row of its first click.
 *
 * The first click selects a row, whose details may then appear in its place: the second click would press the control
 * that has moved under the pointer.
 */
export class DoubleClicks {
  /**
   * @param keyOf - key of the row that contains a node, or null
   * @param open - action of a double click
   */
  constructor(
    private readonly _keyOf: (node: EventTarget | null) => string | null,
    private readonly _open: (key: string) => void,
    private readonly _page: Pick<Document, 'addEventListener' | 'removeEventListener'> = document
  ) {
    // Listen in the capture phase, before all other handlers: the second click may be on an unrelated button.
    TYPES.forEach(type => this._page.addEventListener(type, this._heard, true));
  }

  end(): void {
    TYPES.forEach(type => this._page.removeEventListener(type, this._heard, true));
  }

  private readonly _heard = (event: IPress): void => {
    if (event.detail < 2) {
      if (event.type === 'mousedown') {
        this._first = this._keyOf(event.target);
      }
      return;
    }
    if (this._first === null) {
      return;
    }
    if (this._keyOf(event.target) !== this._first) {
      event.preventDefault();
      event.stopPropagation();
    }
    if (event.type === 'dblclick') {
      this._open(this._first);
    }
  };

  private _first: string | null = null;
}
