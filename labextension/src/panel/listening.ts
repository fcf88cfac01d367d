/** While a cell runs and somebody looks, silence means something. No DOM. */

import type { Asking } from './asking';
import type { ITimers } from './peer';
import { Standing } from './standing';

/** A kernel in which a cell runs sends something every 2 s. */
const SILENCE = 5000;

export abstract class Listening extends Standing {
  constructor(
    protected readonly asking: Asking,
    private readonly _clock: ITimers
  ) {
    super();
  }

  /** A cell is on its way to the kernel: one that at once takes the interpreter for long does not say that it runs. */
  cellSent(): void {
    this._sent = true;
    this._sentAt = this._clock.now();
    this.setBusy(true);
  }

  /** Something is to be heard: a cell runs and we are seen. */
  protected abstract get listening(): boolean;
  /** Nothing was heard for too long. */
  protected abstract silent(): void;

  /** Anything came from the kernel. */
  protected heardNow(): void {
    this.seen(this._clock.now());
  }

  /** A cell was sent and nothing was heard of it. */
  protected get cellOnItsWay(): boolean {
    return this._sent;
  }

  /** The kernel has said that a cell has begun or ended. */
  protected cellHeard(runs: boolean): void {
    this._sent = false;
    this.setBusy(runs);
  }

  /** Whoever it was sent to is another now. */
  protected cellForgotten(): void {
    this._sent = false;
  }

  protected said(): void {
    if (!this.listening || this.asking.busy || this.asking.planned) {
      return;
    }
    const left = () => Math.max(this.lastSeen, this._sentAt) + SILENCE - this._clock.now();
    this.asking.later(Math.max(left(), 100), () => {
      if (this.listening && left() <= 0) {
        this.silent();
      } else {
        this.said();
      }
    });
  }

  private _sent = false;
  private _sentAt = 0;
}
