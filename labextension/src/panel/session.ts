/** How it stands with one kernel, from its signs of life and our questions. No DOM, no JupyterLab. */

import { Client, NoAnswer, Refused } from '../client';
import type { IOperations, PanelEvent } from '../protocol';
import { isEvent, IWants, NOTHING, payload, Sequence } from './events';
import { IDifference, Rows } from './rows';
import type { ConnectionState } from './tokens';

/** After a page was loaded JupyterLab holds messages back for up to 3 s while a cell runs. */
const FIRST = 8000;
/** A kernel in which a cell runs sends something every 2 s. */
const SILENCE = 5000;
const HELLO = 2000;
const AGAIN = 3000;

export interface ILoaded {
  readonly status: string;
  readonly ename: string;
  readonly evalue: string;
}

/** One kernel connection, as a session needs it (see port.ts); a fake one in the tests. */
export interface IPort {
  readonly client: Pick<Client, 'greet' | 'request'>;
  /** Jupyter's word for the kernel. */
  readonly status: string;
  readonly connected: boolean;
  /** Listen to what the kernel sends on a comm of this id. */
  listen(comm: string, got: (event: unknown, buffers: DataView[]) => void): { dispose(): void };
  /** Run the line that loads the extension. */
  load(): Promise<ILoaded>;
}

export interface ITimers {
  set(run: () => void, ms: number): unknown;
  clear(timer: unknown): void;
  now(): number;
}

const TIMERS: ITimers = {
  set: (run, ms) => setTimeout(run, ms),
  clear: timer => clearTimeout(timer as number),
  now: () => Date.now()
};

/** Who is told. */
export interface ISessionOwner {
  stateChanged(): void;
  rowsChanged(difference: IDifference): void;
  event(event: PanelEvent, buffers: DataView[]): void;
  gpuWhy(why: string): void;
}

export class Session {
  constructor(
    private readonly _port: IPort,
    private readonly _owner: ISessionOwner,
    private readonly _newId: () => string,
    private readonly _timers: ITimers = TIMERS
  ) {}

  readonly rows = new Rows();

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

  get busy(): boolean {
    return this._busy;
  }

  /** Ask the kernel what it is. */
  begin(): void {
    this._forget();
    this._busy = this._port.status === 'busy';
    if (this._port.status === 'dead' || this._port.status === 'terminating') {
      this._set('dead');
      return;
    }
    this._set(this._starting ? 'starting' : 'connecting');
    void this._probe(FIRST);
  }

  dispose(): void {
    this._forget();
    this._disposed = true;
  }

  /** Jupyter has another word for the kernel. */
  statusChanged(status: string): void {
    if (status === 'dead' || status === 'terminating') {
      this._forget();
      this._busy = false;
      this._set('dead');
    } else if (status === 'restarting' || status === 'autorestarting') {
      this._forget();
      this._busy = false;
      this._restarting = true;
      this._young = true;
      this._set('starting');
    } else if (this._restarting && status !== 'unknown') {
      this._restarting = false;
      this.begin();
    }
  }

  /** The page has lost the server, or found it again. */
  connectionChanged(connected: boolean): void {
    if (this._state === 'dead') {
      return;
    }
    if (!connected) {
      this._turn += 1;
      this._asking = false;
      this._stopTimer();
      if (!this._restarting && this._state !== 'starting' && this._state !== 'connecting') {
        this._set('reconnecting');
      }
    } else if (this._restarting) {
      this._restarting = false;
      this.begin();
    } else if (!this._asking) {
      void this._probe(FIRST);
    }
  }

  /** A cell has begun or ended: not one of our own questions. */
  cell(runs: boolean): void {
    this._setBusy(runs);
    // The answer that is on its way may be older than the cell's end.
    this._ranWhileAsking = this._ranWhileAsking || (this._asking && !runs);
    if (!runs && (this._state === 'not-loaded' || this._state === 'missing')) {
      // It may have loaded us. `missing` stays until we are there.
      void this._probe(HELLO);
    }
  }

  /** Anything came from the kernel. */
  heard(): void {
    this._lastSeen = this._timers.now();
    if (this._state === 'not-responding' && !this._asking) {
      void this._probe(HELLO);
    }
  }

  /** What the page wants of the events from now on. */
  want(wants: IWants): void {
    const before = JSON.stringify(this._wants);
    this._wants = wants;
    if (before === JSON.stringify(wants)) {
      return;
    }
    if (this._comm && this._state === 'ready') {
      void this._send();
    }
    this._watch();
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
      } else if (error instanceof NoAnswer && this._state === 'ready') {
        void this._probe(HELLO);
      }
      throw error;
    }
  }

  /** Load the extension in the kernel. */
  async connect(): Promise<void> {
    if (this._state !== 'not-loaded' && this._state !== 'missing') {
      return;
    }
    const turn = ++this._turn;
    this._stopTimer();
    this._set('loading');
    let answer = await this._load();
    if (turn === this._turn && answer.status === 'aborted') {
      // A cell before us failed, and took with it what waited behind.
      answer = await this._load();
    }
    if (turn !== this._turn) {
      return;
    }
    if (answer.status === 'ok') {
      await this._probe(FIRST);
    } else if (answer.ename === 'ModuleNotFoundError' && answer.evalue.includes('jupyter_amltrain')) {
      this._set('missing', answer.evalue);
    } else {
      this._set('not-loaded', [answer.ename, answer.evalue].filter(Boolean).join(': '));
    }
  }

  private async _load(): Promise<ILoaded> {
    try {
      return await this._port.load();
    } catch (error) {
      return { status: 'error', ename: '', evalue: error instanceof Error ? error.message : String(error) };
    }
  }

  private get _starting(): boolean {
    return this._restarting || this._young || this._port.status === 'starting';
  }

  private async _probe(ms: number): Promise<void> {
    const turn = ++this._turn;
    this._stopTimer();
    this._asking = true;
    this._ranWhileAsking = false;
    const found = await this._port.client.greet(ms);
    if (turn !== this._turn || this._disposed) {
      return;
    }
    this._young = this._young && found.kind === 'not-responding';
    if (found.kind === 'ready') {
      this._lastSeen = this._timers.now();
      this._setBusy(found.busy);
      await this._subscribe(turn);
      if (turn === this._turn) {
        this._asking = false;
      }
      return;
    }
    this._asking = false;
    if (found.kind === 'not-responding') {
      this._set(this._starting ? 'starting' : 'not-responding');
      this._later(AGAIN, () => void this._probe(HELLO));
      return;
    }
    this._lastSeen = this._timers.now();
    if (found.kind === 'not-loaded') {
      this._drop();
      this._set(this._state === 'missing' ? 'missing' : 'not-loaded', this._detailOf('missing'));
      if (this._ranWhileAsking) {
        void this._probe(HELLO);
      }
    } else {
      this._drop();
      this._set('other-version', found.detail);
    }
  }

  private _detailOf(state: ConnectionState): string {
    return this._state === state ? this._detail : '';
  }

  private async _subscribe(turn: number): Promise<void> {
    if (!this._comm) {
      const id = this._newId();
      this._sequence = new Sequence();
      try {
        const listener = this._port.listen(id, (event, buffers) => this._got(id, event, buffers));
        this._comm = { id, dispose: () => listener.dispose() };
      } catch (error) {
        this._set('not-responding', error instanceof Error ? error.message : String(error));
        this._later(AGAIN, () => void this._probe(HELLO));
        return;
      }
    }
    if (this._wants.shown === '') {
      this._set('ready');
      return;
    }
    const sent = await this._send();
    if (turn !== this._turn || this._disposed) {
      return;
    }
    if (!sent) {
      this._set(this.rows.known ? 'not-responding' : 'connecting', this._failure);
      this._later(AGAIN, () => void this._probe(HELLO));
    } else if (this.rows.known) {
      this._set('ready');
    } else {
      // The snapshot makes us ready; should it be lost, we ask again.
      this._later(AGAIN, () => void this._probe(HELLO));
    }
  }

  /** Say what we want; the last word counts, one at a time. */
  private async _send(): Promise<boolean> {
    if (this._sending) {
      this._unsent = true;
      return this._sending;
    }
    this._sending = this._sendAll();
    const done = await this._sending;
    this._sending = null;
    return done;
  }

  private async _sendAll(): Promise<boolean> {
    do {
      this._unsent = false;
      const comm = this._comm;
      if (!comm) {
        return false;
      }
      try {
        const wants = this._wants;
        const reply = await this.request('events', payload(comm.id, this._sequence.last, wants));
        if (comm === this._comm && wants.gpus) {
          this._owner.gpuWhy(reply.why);
        }
      } catch (error) {
        this._failure = error instanceof Refused ? error.message : '';
        return false;
      }
    } while (this._unsent);
    this._failure = '';
    return true;
  }

  private _got(comm: string, event: unknown, buffers: DataView[]): void {
    if (comm !== this._comm?.id || !isEvent(event)) {
      return;
    }
    this._lastSeen = this._timers.now();
    if (!this._sequence.take(event)) {
      this._gap();
      return;
    }
    this._gapAt = 0;
    if (event.type === 'snapshot') {
      this._owner.rowsChanged(this.rows.snapshot(event));
    } else if (event.type === 'changes') {
      this._owner.rowsChanged(this.rows.changes(event));
    } else {
      if (event.type === 'beat') {
        this._setBusy(true);
      }
      this._owner.event(event, buffers);
    }
    if (this._state !== 'ready' && this.rows.known) {
      this._turn += 1;
      this._asking = false;
      this._stopTimer();
      this._set('ready');
    }
    if ('renew' in event && event.renew) {
      void this._send();
    }
  }

  /** Events are missing: what comes next is of no use before the snapshot. */
  private _gap(): void {
    const now = this._timers.now();
    if (now - this._gapAt > HELLO) {
      this._gapAt = now;
      void this._send();
    }
  }

  private _setBusy(busy: boolean): void {
    if (this._busy !== busy) {
      this._busy = busy;
      this._owner.stateChanged();
    }
    this._watch();
  }

  /** While a cell runs and we are seen, silence means something. */
  private _watch(): void {
    if (this._state !== 'ready' || !this._busy || this._wants.shown !== 'panel' || this._timer !== undefined) {
      return;
    }
    const left = Math.max(this._lastSeen + SILENCE - this._timers.now(), 100);
    this._later(left, () => {
      if (this._state !== 'ready' || !this._busy || this._wants.shown !== 'panel') {
        return;
      }
      if (this._timers.now() - this._lastSeen >= SILENCE) {
        void this._probe(HELLO);
      } else {
        this._watch();
      }
    });
  }

  private _set(state: ConnectionState, detail = ''): void {
    const changed = state !== this._state || detail !== this._detail;
    this._state = state;
    this._detail = detail;
    if (changed && !this._disposed) {
      this._owner.stateChanged();
    }
    this._watch();
  }

  private _later(ms: number, run: () => void): void {
    this._stopTimer();
    this._timer = this._timers.set(() => {
      this._timer = undefined;
      run();
    }, ms);
  }

  private _stopTimer(): void {
    if (this._timer !== undefined) {
      this._timers.clear(this._timer);
      this._timer = undefined;
    }
  }

  private _drop(): void {
    this._comm?.dispose();
    this._comm = null;
  }

  /** Whatever was asked is of no use now. */
  private _forget(): void {
    this._turn += 1;
    this._asking = false;
    this._stopTimer();
    this._drop();
  }

  private _state: ConnectionState = 'connecting';
  private _detail = '';
  private _failure = '';
  private _lastSeen = 0;
  private _busy = false;
  private _restarting = false;
  /** Restarted, and has not answered since. */
  private _young = false;
  private _asking = false;
  private _ranWhileAsking = false;
  private _disposed = false;
  /** Answers to questions of an earlier turn are of no use. */
  private _turn = 0;
  private _timer: unknown;
  private _wants: IWants = NOTHING;
  private _comm: { id: string; dispose(): void } | null = null;
  private _sequence = new Sequence();
  private _sending: Promise<boolean> | null = null;
  private _unsent = false;
  private _gapAt = 0;
}
