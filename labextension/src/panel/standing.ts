/** What is believed of one kernel. No DOM. */

import type { ConnectionState } from './tokens';

export abstract class Standing {
  get state(): ConnectionState {
    return this._state;
  }

  get detail(): string {
    return this._detail;
  }

  /** Milliseconds since 1970; 0 for never. */
  get lastSeen(): number {
    return this._lastSeen;
  }

  /** A cell runs. */
  get busy(): boolean {
    return this._busy;
  }

  /** Anything of it is another. */
  protected abstract changed(): void;
  /** Something was said of it, the same or another. */
  protected abstract said(): void;

  protected stand(state: ConnectionState, detail = ''): void {
    const changed = state !== this._state || detail !== this._detail;
    this._state = state;
    this._detail = detail;
    if (changed) {
      this.changed();
    }
    this.said();
  }

  protected setBusy(busy: boolean): void {
    if (this._busy !== busy) {
      this._busy = busy;
      this.changed();
    }
    this.said();
  }

  protected seen(now: number): void {
    this._lastSeen = now;
  }

  private _state: ConnectionState = 'connecting';
  private _detail = '';
  private _lastSeen = 0;
  private _busy = false;
}
