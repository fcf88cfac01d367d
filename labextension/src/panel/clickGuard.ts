/** Guards against the second press of a double click. No DOM but its events. */

/** Milliseconds in which a person's second click belongs to the first. */
const DOUBLE_CLICK_MS = 800;

/** Which doings are under way, or are over only just. */
export class ClickGuard {
  constructor(private readonly _now: () => number = () => performance.now()) {}

  /** Do it, unless it is being done; what is named by `same` is not done for the time of a double click either. */
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

/** The part of a mouse's event that is looked at. */
export interface IPress {
  readonly type: string;
  /** How many clicks in a row this is. */
  readonly detail: number;
  readonly target: EventTarget | null;
  preventDefault(): void;
  stopPropagation(): void;
}

const TYPES = ['mousedown', 'mouseup', 'click', 'dblclick'] as const;

/**
 * A double click is about what its first click was on.
 *
 * The first click chooses a row, and then its details take the room where the row was: the second would press what has
 * come under the pointer.
 */
export class DoubleClicks {
  /**
   * @param keyOf - the row that a node is in, or null
   * @param open - what a double click does
   */
  constructor(
    private readonly _keyOf: (node: EventTarget | null) => string | null,
    private readonly _open: (key: string) => void,
    private readonly _page: Pick<Document, 'addEventListener' | 'removeEventListener'> = document
  ) {
    // Before anybody else hears of it: the second click may be on another's button.
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
