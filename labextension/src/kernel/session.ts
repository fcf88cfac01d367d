/** Connection state machine of one kernel, from its signs of life and our requests. No DOM, no JupyterLab. */

import type { ConnectionState } from '../panel/tokens';
import type { IKindsReply, IOperations, PanelEvent } from '../protocol';
import { IProbe, KernelClient, KernelKind, messageOf, NoAnswer, Refused } from './client';
import { EventStream, ISubscription } from './events';
import type { IDifference, Rows } from './rows';

/** Milliseconds: after a page was loaded JupyterLab holds messages back for up to 3 s while a cell runs. */
const FIRST_PROBE_TIMEOUT_MS = 8000;
const PROBE_TIMEOUT_MS = 2000;
/** Milliseconds between two probes of a kernel that does not answer. */
const PROBE_INTERVAL_MS = 3000;
/** Probes at that pace; then ever fewer, since a kernel answers all of them when it wakes up. */
const MAX_EAGER_PROBES = 10;
const MAX_PROBE_INTERVAL_MS = 30000;
/** Milliseconds: a kernel in which a cell runs sends something every 2 s. */
const SILENCE_TIMEOUT_MS = 5000;

/** Milliseconds for the reply of an idle kernel to the line that loads the extension: it is lost in a restart. */
const LOAD_TIMEOUT_MS = 20000;

export interface ILoadReply {
  readonly status: string;
  readonly ename: string;
  readonly evalue: string;
}

/** What a session needs of one kernel connection (see connection.ts); a fake one in the tests. */
export interface ITransport {
  readonly client: Pick<KernelClient, 'probe' | 'request' | 'trust' | 'doubt'>;
  /** Jupyter's status of the kernel. */
  readonly status: string;
  /** Receive the messages of the kernel on the comm with this id. */
  listen(comm: string, received: (event: unknown, buffers: DataView[]) => void): { dispose(): void };
  /** Run the line that loads the extension. */
  load(): Promise<ILoadReply>;
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

/** Receives the changes of a session. */
export interface ISessionListener {
  stateChanged(): void;
  rowsChanged(difference: IDifference): void;
  event(event: PanelEvent, buffers: DataView[]): void;
  gpuReasonChanged(): void;
}

/**
 * The session of one kernel connection, shared by the panel, the tabs and the cell outputs.
 *
 * It probes the kernel, keeps the event stream open while something is wanted, and takes every sign of life into
 * its state.
 */
export class KernelSession {
  constructor(
    private readonly _transport: ITransport,
    /** Receives the changes while the panel follows this kernel; null otherwise. */
    public listener: ISessionListener | null,
    newId: () => string,
    private readonly _timers: ITimers = TIMERS
  ) {
    this._prober = new Prober(_transport, _timers);
    this._forms = new FormCache(() => this.request('kinds', {}));
    this._stream = new EventStream(
      {
        newId,
        now: () => _timers.now(),
        listen: (comm, received) => _transport.listen(comm, received),
        request: (op, values) => this.request(op, values),
        post: values => void _transport.client.request('events', values).catch(() => undefined)
      },
      {
        rowsChanged: difference => this._rowsChanged(difference),
        event: (event, buffers) => this.listener?.event(event, buffers),
        gpuReason: reason => this._setGpuReason(reason),
        heard: event => this._eventHeard(event)
      }
    );
  }

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

  get rows(): Rows {
    return this._stream.rows;
  }

  /** Why no GPUs are streamed; may be empty. */
  get gpuReason(): string {
    return this._gpuReason;
  }

  /** Probe the kernel for the first time, or from the beginning. */
  begin(): void {
    this._forget();
    this._transport.client.doubt();
    this._setBusy(this._transport.status === 'busy');
    if (this._transport.status === 'dead' || this._transport.status === 'terminating') {
      this._setState('dead');
      return;
    }
    this._setState(this._isStarting ? 'starting' : 'connecting');
    void this._probe(FIRST_PROBE_TIMEOUT_MS);
  }

  /** Probe the kernel whatever its state; rows that are shown stay until the new ones are there. */
  refresh(): void {
    if (this._state !== 'ready' && this._state !== 'not-responding' && this._state !== 'reconnecting') {
      this.begin();
      return;
    }
    this._stream.unsubscribe();
    this._forget();
    void this._probe(PROBE_TIMEOUT_MS);
  }

  /** Tell the kernel that the page goes away. */
  unsubscribe(): void {
    this._stream.unsubscribe();
  }

  dispose(): void {
    this._disposed = true;
    this._forget();
  }

  /** Jupyter's status of the kernel has changed. */
  statusChanged(status: string): void {
    if (status === 'dead' || status === 'terminating') {
      this._forget();
      this._setBusy(false);
      this._restarting = false;
      this._setState('dead');
    } else if (status === 'restarting' || status === 'autorestarting') {
      this._forget();
      this._setBusy(false);
      this._restarting = true;
      this._transport.client.doubt();
      this._unansweredSinceStart = true;
      this._setState('starting');
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
      this._cancelProbe();
      if (!this._restarting && this._state !== 'starting' && this._state !== 'connecting') {
        this._setState('reconnecting');
      }
    } else if (this._restarting) {
      this._restarting = false;
      this.begin();
    } else if (!this._prober.busy) {
      void this._probe(FIRST_PROBE_TIMEOUT_MS);
    }
  }

  /** A cell is on its way to the kernel: one that blocks the interpreter at once does not report that it runs. */
  cellSent(): void {
    this._cellPending = true;
    this._cellSentAt = this._timers.now();
    this._setBusy(true);
  }

  /** A cell has begun or ended: not one of our own requests. */
  cellRuns(runs: boolean): void {
    this._cellPending = false;
    this._setBusy(runs);
    // The answer that is on its way may be older than the cell's end.
    this._prober.cellEndedMeanwhile ||= !runs;
    if (!runs && !this._prober.busy && (this._state === 'not-loaded' || this._state === 'missing')) {
      // It may have loaded the extension. `missing` stays until it has.
      void this._probe(PROBE_TIMEOUT_MS);
    }
  }

  /** Anything came from the kernel. */
  heard(): void {
    this._lastSeen = this._timers.now();
    if (this._state === 'not-responding' && !this._prober.busy) {
      void this._probe(PROBE_TIMEOUT_MS);
    }
  }

  /** Subscribe to these events from now on. */
  subscribe(wanted: ISubscription): void {
    const before = JSON.stringify(this._stream.requested);
    this._stream.requested = wanted;
    if (before === JSON.stringify(wanted)) {
      return;
    }
    if (this._state === 'ready') {
      void this._stream.subscribe();
    } else if (this._postponed && this._stream.isWanted) {
      void this._probe(PROBE_TIMEOUT_MS);
    }
    this._watchSilence();
  }

  /** Request one operation; rejects with `Refused` or `NoAnswer`, and takes silence into the state. */
  async request<K extends keyof IOperations>(
    op: K,
    values: IOperations[K]['payload'],
    ms?: number
  ): Promise<IOperations[K]['reply']> {
    try {
      const reply = await this._transport.client.request(op, values, ms);
      this.heard();
      return reply;
    } catch (error) {
      if (error instanceof Refused) {
        this.heard();
      } else if (error instanceof NoAnswer && !this._prober.busy) {
        this._prober.doubt();
        if (this._state === 'ready') {
          void this._probe(PROBE_TIMEOUT_MS);
        }
      }
      throw error;
    }
  }

  /** The forms of this kernel: requested once, and again when they may be others. */
  kinds(): Promise<IKindsReply> {
    return this._forms.get();
  }

  /**
   * State of the connected kernel, for a cell output that is about to send a request.
   *
   * Probes a kernel in an unknown state, at most every few seconds; nothing else does while the panel does not follow the
   * kernel.
   */
  async kind(): Promise<KernelKind> {
    const quiet = this._state === 'dead' || this._state === 'reconnecting' || this._state === 'loading';
    if (!quiet && !this._restarting && this._prober.isDue) {
      void this._probe(PROBE_TIMEOUT_MS);
    }
    return this._prober.answer(PROBE_TIMEOUT_MS);
  }

  /** Load the extension in the kernel. */
  async load(): Promise<void> {
    if (this._state !== 'not-loaded' && this._state !== 'missing') {
      return;
    }
    this._cancelProbe();
    const turn = this._prober.turn;
    const isCurrent = () => turn === this._prober.turn;
    this._setState('loading');
    let reply = await this._attemptLoad();
    if (reply.status === 'aborted' && isCurrent()) {
      // A cell before the line failed, and everything queued behind it was dropped.
      reply = await this._attemptLoad();
    }
    if (!isCurrent()) {
      return;
    }
    if (reply.status === 'ok') {
      this._transport.client.trust();
      await this._probe(FIRST_PROBE_TIMEOUT_MS);
    } else if (reply.status === 'lost') {
      this._setState('connecting');
      await this._probe(FIRST_PROBE_TIMEOUT_MS);
    } else if (reply.ename === 'ModuleNotFoundError' && reply.evalue.includes('jupyter_amltrain')) {
      this._setState('missing', reply.evalue);
    } else {
      this._setState('not-loaded', [reply.ename, reply.evalue].filter(Boolean).join(': '));
    }
  }

  /** Run the line that loads the extension; `lost`: no answer, although no cell is running. */
  private _attemptLoad(): Promise<ILoadReply> {
    let timer: unknown;
    const lost = new Promise<ILoadReply>(resolve => {
      const look = () => {
        timer = this._timers.set(() => (this._busy ? look() : resolve({ status: 'lost', ename: '', evalue: '' })), LOAD_TIMEOUT_MS);
      };
      look();
    });
    return Promise.race([attemptLoad(this._transport), lost]).finally(() => this._timers.clear(timer));
  }

  private get _isStarting(): boolean {
    return this._restarting || this._unansweredSinceStart || this._transport.status === 'starting';
  }

  private async _probe(ms: number): Promise<void> {
    if (this._disposed) {
      return; // a request of before has just failed
    }
    this._postponed = false;
    const result = await this._prober.probe(ms);
    if (!result) {
      return;
    }
    const { turn } = this._prober;
    this._unansweredSinceStart = this._unansweredSinceStart && result.kind === 'not-responding';
    if (result.kind === 'not-responding') {
      this._prober.done(turn);
      this._setState(this._isStarting ? 'starting' : 'not-responding');
      this._probeLater();
      return;
    }
    this._prober.answered();
    this._lastSeen = this._timers.now();
    if (result.kind === 'ready') {
      // It answers before it takes the cell that was sent before.
      this._setBusy(result.busy || this._cellPending);
      await this._openStream(turn);
      this._prober.done(turn);
      this._watchSilence();
      return;
    }
    this._prober.done(turn);
    this._stream.drop();
    if (result.kind === 'other-version') {
      this._setState('other-version', result.detail);
      return;
    }
    const missing = this._state === 'missing';
    this._setState(missing ? 'missing' : 'not-loaded', missing ? this._detail : '');
    if (this._prober.cellEndedMeanwhile) {
      void this._probe(PROBE_TIMEOUT_MS);
    }
  }

  /** Subscribe after the first reply of the kernel. */
  private async _openStream(turn: number): Promise<void> {
    const sent = await this._stream.subscribe();
    if (turn !== this._prober.turn) {
      return;
    }
    if (!sent) {
      this._setState(this.rows.known ? 'not-responding' : 'connecting', this._stream.failure);
      this._probeLater();
    } else if (this.rows.known || !this._stream.isWanted) {
      this._setState('ready');
    } else {
      // The snapshot makes the session ready; if it is lost, the next probe requests another.
      this._probeLater();
    }
  }

  private _rowsChanged(difference: IDifference): void {
    if (difference.workspaces) {
      this._forms.forget();
    }
    this.listener?.rowsChanged(difference);
  }

  private _setGpuReason(reason: string): void {
    if (this._gpuReason !== reason) {
      this._gpuReason = reason;
      this.listener?.gpuReasonChanged();
    }
  }

  private _eventHeard(event: PanelEvent | null): void {
    this._lastSeen = this._timers.now();
    this._prober.answered();
    if (event?.type === 'beat') {
      this._setBusy(true);
    }
    if (event && this._state !== 'ready' && this.rows.known) {
      this._cancelProbe();
      this._setState('ready');
      this._stream.catchUp();
    }
  }

  private _setState(state: ConnectionState, detail = ''): void {
    const changed = state !== this._state || detail !== this._detail;
    this._state = state;
    this._detail = detail;
    if (changed) {
      this._changed();
    }
    this._watchSilence();
  }

  private _setBusy(busy: boolean): void {
    if (this._busy !== busy) {
      this._busy = busy;
      this._changed();
    }
    this._watchSilence();
  }

  private _changed(): void {
    if (this._state !== 'ready' && this._state !== 'not-responding') {
      this._forms.forget();
    }
    if (!this._disposed) {
      this.listener?.stateChanged();
    }
  }

  /** While a cell runs and the panel is seen, silence means that the kernel does not respond. */
  private _watchSilence(): void {
    const isWatched = () =>
      !this._disposed && this._state === 'ready' && this._busy && this._stream.requested.shown === 'panel';
    if (!isWatched() || this._prober.busy || this._prober.planned) {
      return;
    }
    const left = () => Math.max(this._lastSeen, this._cellSentAt) + SILENCE_TIMEOUT_MS - this._timers.now();
    this._prober.plan(Math.max(left(), 100), () => {
      if (isWatched() && left() <= 0) {
        void this._probe(PROBE_TIMEOUT_MS);
      } else {
        this._watchSilence();
      }
    });
  }

  /** Probe again some time later; where nothing is wanted then, as soon as something is. */
  private _probeLater(): void {
    this._prober.planNext(() => {
      this._postponed = !this._stream.isWanted;
      if (!this._postponed) {
        void this._probe(PROBE_TIMEOUT_MS);
      }
    });
  }

  private _cancelProbe(): void {
    this._prober.cancel();
    this._postponed = false;
  }

  /** Drop all pending requests: the kernel has been replaced. */
  private _forget(): void {
    this._cancelProbe();
    this._cellPending = false;
    this._prober.answered();
    this._prober.doubt();
    this._stream.drop();
  }

  private readonly _prober: Prober;
  private readonly _forms: FormCache;
  private readonly _stream: EventStream;
  private _state: ConnectionState = 'connecting';
  private _detail = '';
  private _lastSeen = 0;
  private _busy = false;
  private _gpuReason = '';
  /** A cell was sent and nothing was heard of it. */
  private _cellPending = false;
  private _cellSentAt = 0;
  private _restarting = false;
  /** Restarted, and has not answered since. */
  private _unansweredSinceStart = false;
  private _disposed = false;
  /** Nothing was wanted when it was time to probe again. */
  private _postponed = false;
}

/** Probes of a kernel that may not answer: one at a time, and when to send the next. */
class Prober {
  constructor(
    private readonly _transport: ITransport,
    private readonly _timers: ITimers
  ) {}

  /** A cell has ended since the probe was sent: its answer may be older. */
  cellEndedMeanwhile = false;

  /** A probe is on its way, or its answer is being dealt with. */
  get busy(): boolean {
    return this._busy;
  }

  /** Something is planned for later. */
  get planned(): boolean {
    return this._timer !== undefined;
  }

  /** Changes whenever earlier answers become useless. */
  get turn(): number {
    return this._turn;
  }

  /** Nothing is known of the kernel, and it was not probed only just. */
  get isDue(): boolean {
    const unknown = this._kind === null || this._kind === 'not-responding';
    return unknown && !this._busy && !this.planned && this._timers.now() - this._probedAt > PROBE_INTERVAL_MS;
  }

  /** Probe; `null` when the answer is useless by the time it comes. `busy` until `cancel` or `done`. */
  async probe(ms: number): Promise<IProbe | null> {
    this.cancel();
    const turn = this._turn;
    this._busy = true;
    this.cellEndedMeanwhile = false;
    this._probedAt = this._timers.now();
    const pending = (this._pending = this._transport.client.probe(ms));
    const result = await pending;
    if (turn !== this._turn) {
      return null;
    }
    this._pending = null;
    this._kind = result.kind;
    return result;
  }

  /** What is at the other end by the last probe; waits for one that is on its way for at most `ms`. */
  async answer(ms: number): Promise<KernelKind> {
    if (this._kind !== 'ready' && this._pending) {
      const late = new Promise<null>(resolve => this._timers.set(() => resolve(null), ms));
      const result = await Promise.race([this._pending.then(({ kind }) => kind), late]);
      return result ?? this._kind ?? 'not-responding';
    }
    return this._kind ?? 'not-responding';
  }

  /** Discard the known state of the kernel. */
  doubt(): void {
    this._kind = null;
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

  /** There was none: plan the next probe. */
  planNext(run: () => void): void {
    this._misses += 1;
    const factor = Math.max(1, this._misses - MAX_EAGER_PROBES);
    this.plan(Math.min(PROBE_INTERVAL_MS * factor, MAX_PROBE_INTERVAL_MS), run);
  }

  /** Plan the one thing that is to be done later. */
  plan(ms: number, run: () => void): void {
    this._stop();
    this._timer = this._timers.set(() => {
      this._timer = undefined;
      run();
    }, ms);
  }

  /** Make earlier answers useless, and plan nothing. */
  cancel(): void {
    this._turn += 1;
    this._busy = false;
    this._pending = null;
    this._stop();
  }

  private _stop(): void {
    if (this._timer !== undefined) {
      this._timers.clear(this._timer);
      this._timer = undefined;
    }
  }

  private _kind: KernelKind | null = null;
  private _pending: Promise<IProbe> | null = null;
  private _probedAt = 0;
  private _busy = false;
  private _turn = 0;
  private _misses = 0;
  private _timer: unknown;
}

/** The forms of one kernel. */
export class FormCache {
  constructor(private readonly _request: () => Promise<IKindsReply>) {}

  /** The forms; a refusal is not stored. */
  get(): Promise<IKindsReply> {
    if (this._stored) {
      return this._stored;
    }
    const stored = (this._stored = this._request());
    stored.catch(() => {
      if (stored === this._stored) {
        this._stored = null;
      }
    });
    return stored;
  }

  forget(): void {
    this._stored = null;
  }

  private _stored: Promise<IKindsReply> | null = null;
}

async function attemptLoad(transport: ITransport): Promise<ILoadReply> {
  try {
    return await transport.load();
  } catch (error) {
    return { status: 'error', ename: '', evalue: messageOf(error) };
  }
}
