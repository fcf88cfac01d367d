/** The second press of a double click does not do a thing twice. */

/** Milliseconds in which a person's second click belongs to the first. */
const DOUBLE_MS = 800;

/** Which doings are under way, or are over only just. */
export class Presses {
  constructor(private readonly _now: () => number = () => performance.now()) {}

  /** Do it, unless it is being done; what is named by `same` is not done for the time of a double click either. */
  async once(key: string, act: (same: (again: string) => void) => Promise<void>): Promise<void> {
    const now = this._now();
    for (const [known, at] of this._begun) {
      if (now - at >= DOUBLE_MS) {
        this._begun.delete(known);
      }
    }
    if (this._doing.has(key) || this._begun.has(key)) {
      return;
    }
    this._doing.add(key);
    try {
      await act(again => this._begun.set(again, this._now()));
    } finally {
      this._doing.delete(key);
    }
  }

  private readonly _begun = new Map<string, number>();
  private readonly _doing = new Set<string>();
}
