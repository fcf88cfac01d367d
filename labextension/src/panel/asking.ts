/** Asking a kernel that may not answer what it is: one question at a time, and when to ask the next. No DOM. */

import type { IGreeting } from '../client';
import type { IPort, ITimers } from './peer';

const AGAIN = 3000;
/** Questions at that pace; then ever fewer, since a kernel answers all of them when it wakes up. */
const EAGER = 10;
const SELDOM = 30000;

export class Asking {
  constructor(
    private readonly _port: IPort,
    private readonly _timers: ITimers
  ) {}

  /** A question is on its way, or its answer is being dealt with. */
  get busy(): boolean {
    return this._busy;
  }

  /** A moment is planned for something. */
  get planned(): boolean {
    return this._timer !== undefined;
  }

  /** Changes whenever what was asked before is of no use any more. */
  get turn(): number {
    return this._turn;
  }

  /** A cell ended since the question was asked: the answer may be older. */
  ranMeanwhile = false;

  /** Ask; `null` when the answer is of no use by the time it comes. `busy` until `cease` or `done`. */
  async greet(ms: number): Promise<IGreeting | null> {
    this.cease();
    const turn = this._turn;
    this._busy = true;
    this.ranMeanwhile = false;
    const found = await this._port.client.greet(ms);
    return turn === this._turn ? found : null;
  }

  /** The answer has been dealt with, unless another turn has begun. */
  done(turn: number): void {
    if (turn === this._turn) {
      this._busy = false;
    }
  }

  /** There was an answer. */
  answered(): void {
    this._misses = 0;
  }

  /** There was none: plan the next question. */
  again(run: () => void): void {
    this._misses += 1;
    this.later(Math.min(AGAIN * Math.max(1, this._misses - EAGER), SELDOM), run);
  }

  /** The one thing to be done later. */
  later(ms: number, run: () => void): void {
    this._stop();
    this._timer = this._timers.set(() => {
      this._timer = undefined;
      run();
    }, ms);
  }

  /** What was asked is of no use now, and nothing is planned. */
  cease(): void {
    this._turn += 1;
    this._busy = false;
    this._stop();
  }

  private _stop(): void {
    if (this._timer !== undefined) {
      this._timers.clear(this._timer);
      this._timer = undefined;
    }
  }

  private _busy = false;
  private _turn = 0;
  private _misses = 0;
  private _timer: unknown;
}
