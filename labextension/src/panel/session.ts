/** How it stands with one kernel, from its signs of life and our questions. No DOM, no JupyterLab. */

import { NoAnswer, Refused } from '../client';
import type { IOperations, PanelEvent } from '../protocol';
import { Asking } from './asking';
import type { IWants } from './events';
import { loadInto } from './loading';
import { Listening } from './listening';
import { IPort, ISessionOwner, ITimers, TIMERS } from './peer';
import type { Rows } from './rows';
import { Subscription } from './subscription';

/** After a page was loaded JupyterLab holds messages back for up to 3 s while a cell runs. */
const FIRST = 8000;
const HELLO = 2000;

export class Session extends Listening {
  constructor(
    private readonly _port: IPort,
    private readonly _owner: ISessionOwner,
    newId: () => string,
    timers: ITimers = TIMERS
  ) {
    super(new Asking(_port, timers), timers);
    this._events = new Subscription(_port, _owner, {
      newId,
      now: () => timers.now(),
      request: (op, values) => this.request(op, values),
      heard: event => this._got(event)
    });
  }

  get rows(): Rows {
    return this._events.rows;
  }

  /** Ask the kernel what it is. */
  begin(): void {
    this._forget();
    this.setBusy(this._port.status === 'busy');
    if (this._port.status === 'dead' || this._port.status === 'terminating') {
      this.stand('dead');
      return;
    }
    this.stand(this._starting ? 'starting' : 'connecting');
    void this._probe(FIRST);
  }

  /** Ask anew, whatever is believed; rows that are seen stay until the new ones are there. */
  refresh(): void {
    if (this.state !== 'ready' && this.state !== 'not-responding' && this.state !== 'reconnecting') {
      this.begin();
      return;
    }
    this._events.bye();
    this._forget();
    void this._probe(HELLO);
  }

  /** The page goes away. */
  bye(): void {
    this._events.bye();
  }

  dispose(): void {
    this._disposed = true;
    this._forget();
  }

  /** Jupyter has another word for the kernel. */
  statusChanged(status: string): void {
    if (status === 'dead' || status === 'terminating') {
      this._forget();
      this.setBusy(false);
      this._restarting = false;
      this.stand('dead');
    } else if (status === 'restarting' || status === 'autorestarting') {
      this._forget();
      this.setBusy(false);
      this._restarting = true;
      this._young = true;
      this.stand('starting');
    } else if (this._restarting && status !== 'unknown') {
      this._restarting = false;
      this.begin();
    }
  }

  /** The page has lost the server, or found it again. */
  connectionChanged(connected: boolean): void {
    if (this.state === 'dead') {
      return;
    }
    if (!connected) {
      this._cease();
      if (!this._restarting && this.state !== 'starting' && this.state !== 'connecting') {
        this.stand('reconnecting');
      }
    } else if (this._restarting) {
      this._restarting = false;
      this.begin();
    } else if (!this.asking.busy) {
      void this._probe(FIRST);
    }
  }

  /** A cell has begun or ended: not one of our own questions. */
  cell(runs: boolean): void {
    this.cellHeard(runs);
    // The answer that is on its way may be older than the cell's end.
    this.asking.ranMeanwhile ||= !runs;
    if (!runs && !this.asking.busy && (this.state === 'not-loaded' || this.state === 'missing')) {
      // It may have loaded us. `missing` stays until we are there.
      void this._probe(HELLO);
    }
  }

  /** Anything came from the kernel. */
  heard(): void {
    this.heardNow();
    if (this.state === 'not-responding' && !this.asking.busy) {
      void this._probe(HELLO);
    }
  }

  /** What the page wants of the events from now on. */
  want(wants: IWants): void {
    const before = JSON.stringify(this._events.wants);
    this._events.wants = wants;
    if (before === JSON.stringify(wants)) {
      return;
    }
    if (this.state === 'ready') {
      void this._events.tell();
    } else if (this._postponed && this._events.wanted) {
      void this._probe(HELLO);
    }
    this.said();
  }

  async request<K extends keyof IOperations>(
    op: K,
    values: IOperations[K]['payload'],
    ms?: number
  ): Promise<IOperations[K]['reply']> {
    try {
      const reply = await this._port.client.request(op, values, ms);
      this.heard();
      return reply;
    } catch (error) {
      if (error instanceof Refused) {
        this.heard();
      } else if (error instanceof NoAnswer && this.state === 'ready' && !this.asking.busy) {
        void this._probe(HELLO);
      }
      throw error;
    }
  }

  /** Load the extension in the kernel. */
  async connect(): Promise<void> {
    if (this.state !== 'not-loaded' && this.state !== 'missing') {
      return;
    }
    this._cease();
    const turn = this.asking.turn;
    const still = () => turn === this.asking.turn;
    this.stand('loading');
    const { state, detail } = await loadInto(this._port, still);
    if (still() && state === 'ready') {
      await this._probe(FIRST);
    } else if (still()) {
      this.stand(state, detail);
    }
  }

  private get _starting(): boolean {
    return this._restarting || this._young || this._port.status === 'starting';
  }

  private async _probe(ms: number): Promise<void> {
    if (this._disposed) {
      return; // a request of before has just failed
    }
    this._postponed = false;
    const found = await this.asking.greet(ms);
    if (!found) {
      return;
    }
    const { turn } = this.asking;
    this._young = this._young && found.kind === 'not-responding';
    if (found.kind === 'not-responding') {
      this.asking.done(turn);
      this.stand(this._starting ? 'starting' : 'not-responding');
      this._again();
      return;
    }
    this.asking.answered();
    this.heardNow();
    if (found.kind === 'ready') {
      // It answers before it takes the cell that was sent before.
      this.setBusy(found.busy || this.cellOnItsWay);
      await this._subscribe(turn);
      this.asking.done(turn);
      this.said();
      return;
    }
    this.asking.done(turn);
    this._events.drop();
    if (found.kind === 'other-version') {
      this.stand('other-version', found.detail);
      return;
    }
    const missing = this.state === 'missing';
    this.stand(missing ? 'missing' : 'not-loaded', missing ? this.detail : '');
    if (this.asking.ranMeanwhile) {
      void this._probe(HELLO);
    }
  }

  /** The kernel is there: say what is wanted. */
  private async _subscribe(turn: number): Promise<void> {
    const sent = await this._events.tell();
    if (turn !== this.asking.turn) {
      return;
    }
    if (!sent) {
      this.stand(this.rows.known ? 'not-responding' : 'connecting', this._events.failure);
      this._again();
    } else if (this.rows.known || !this._events.wanted) {
      this.stand('ready');
    } else {
      // The snapshot makes us ready; should it be lost, we ask again.
      this._again();
    }
  }

  private _got(event: PanelEvent | null): void {
    this.heardNow();
    this.asking.answered();
    if (event?.type === 'beat') {
      this.setBusy(true);
    }
    if (event && this.state !== 'ready' && this.rows.known) {
      this._cease();
      this.stand('ready');
      this._events.catchUp();
    }
  }

  protected changed(): void {
    if (!this._disposed) {
      this._owner.stateChanged();
    }
  }

  protected get listening(): boolean {
    return !this._disposed && this.state === 'ready' && this.busy && this._events.wants.shown === 'panel';
  }

  protected silent(): void {
    void this._probe(HELLO);
  }

  /** Ask once more, later; where nobody looks then, as soon as somebody does. */
  private _again(): void {
    this.asking.again(() => {
      this._postponed = !this._events.wanted;
      if (!this._postponed) {
        void this._probe(HELLO);
      }
    });
  }

  private _cease(): void {
    this.asking.cease();
    this._postponed = false;
  }

  /** Whatever was asked is of no use now, and who answered is another. */
  private _forget(): void {
    this._cease();
    this.cellForgotten();
    this.asking.answered();
    this._events.drop();
  }

  private readonly _events: Subscription;
  private _restarting = false;
  /** Restarted, and has not answered since. */
  private _young = false;
  private _disposed = false;
  /** Nobody looked when it was time to ask again. */
  private _postponed = false;
}
