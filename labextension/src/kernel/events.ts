/** The event stream of one kernel: the subscription of the page, the order of the events, and their rows. No DOM. */

import { ISignal, Signal } from '@lumino/signaling';
import type { IOperations, PanelEvent } from '../protocol';
import { Refused } from './client';
import { IDifference, Rows } from './rows';

export type Shown = 'panel' | 'status' | '';

/** Everything that this page wants of the kernel's events, without the comm and the number that go with it. */
export interface ISubscription {
  readonly shown: Shown;
  readonly gpus: string;
  readonly looks: readonly string[];
  readonly details: readonly string[];
  readonly meter: number;
}

export const NO_SUBSCRIPTION: ISubscription = { shown: '', gpus: '', looks: [], details: [], meter: 0 };

/** Past runs whose details one subscription may name. */
const MAX_DETAILS = 30;
/** Milliseconds in which a second gap counts as the first. */
const GAP_INTERVAL_MS = 2000;
/** Milliseconds to collect subscription changes before notifying the kernel. */
const GATHER_MS = 60;
/** Milliseconds for which past runs have to stay in view before their details are requested. */
const DETAILS_DELAY_MS = 250;

/** Kernel interface of an event stream. */
export interface IEventSource {
  readonly newId: () => string;
  readonly now: () => number;
  /** Receive the messages of the kernel on the comm with this id. */
  listen(comm: string, received: (event: unknown, buffers: DataView[]) => void): { dispose(): void };
  /** Send a subscription and take silence into the state of the session. */
  request(op: 'events', values: Payload): Promise<IOperations['events']['reply']>;
  /** Send a subscription without waiting for the reply. */
  post(values: Payload): void;
}

/** Where the events go. */
export interface IEventListener {
  rowsChanged(difference: IDifference): void;
  /** An event that does not carry rows. */
  event(event: PanelEvent, buffers: DataView[]): void;
  gpuReason(reason: string): void;
  /** The kernel was heard; `event` is the one that came, `null` for one out of order. */
  heard(event: PanelEvent | null): void;
}

type Payload = IOperations['events']['payload'];

/** The subscription of this page to one kernel: over one comm at a time. */
export class EventStream {
  constructor(
    private readonly _source: IEventSource,
    private readonly _listener: IEventListener
  ) {}

  readonly rows = new Rows();

  /** The current subscription. */
  requested: ISubscription = NO_SUBSCRIPTION;

  get isWanted(): boolean {
    return this.requested.shown !== '';
  }

  /** The kernel's message when it refused; else empty. */
  get failure(): string {
    return this._comm?.failure ?? '';
  }

  /** Send the subscription to the kernel; return whether it was acknowledged. */
  async subscribe(): Promise<boolean> {
    if (!this.isWanted && !this._comm?.isBehind(this.requested)) {
      return true;
    }
    this._comm ??= new EventComm(this._source, () => this.requested, {
      rowsChanged: difference => this._listener.rowsChanged(difference),
      gpuReason: reason => this._listener.gpuReason(reason),
      heard: event => this._listener.heard(event),
      event: (event, buffers) => this._receive(event, buffers)
    });
    return this._comm.send();
  }

  /** Send the changes that could not be delivered while the kernel was not responding. */
  catchUp(): void {
    if (this._comm?.isBehind(this.requested)) {
      void this.subscribe();
    }
  }

  /** Tell the kernel that this page does not listen any more, without waiting for an answer. */
  unsubscribe(): void {
    this._comm?.unsubscribe();
  }

  /** Drop the comm: the kernel does not know this page any more. */
  drop(): void {
    this._comm?.dispose();
    this._comm = null;
  }

  private _receive(event: PanelEvent, buffers: DataView[]): void {
    if (event.type === 'snapshot') {
      this._listener.rowsChanged(this.rows.snapshot(event));
    } else if (event.type === 'changes') {
      this._listener.rowsChanged(this.rows.changes(event));
    } else {
      this._listener.event(event, buffers);
    }
    this._listener.heard(event);
  }

  private _comm: EventComm | null = null;
}

/** One comm: subscriptions go out one at a time, events are put in order. */
class EventComm {
  constructor(
    private readonly _source: IEventSource,
    private readonly _requested: () => ISubscription,
    private readonly _listener: IEventListener
  ) {
    this._id = _source.newId();
    this._comm = _source.listen(this._id, (event, buffers) => this._receive(event, buffers));
  }

  /** The kernel's message when it refused; else empty. */
  failure = '';

  dispose(): void {
    this._disposed = true;
    this._comm.dispose();
  }

  /** The kernel does not know that this is wanted. */
  isBehind(requested: ISubscription): boolean {
    return JSON.stringify(this._acknowledged) !== JSON.stringify(requested);
  }

  /** Send the subscription; one message at a time, with the latest change. */
  send(): Promise<boolean> {
    if (this._sending) {
      this._unsent = true;
      return this._sending;
    }
    return (this._sending = this._sendAll());
  }

  unsubscribe(): void {
    this._acknowledged = NO_SUBSCRIPTION;
    this._source.post(this._payload(NO_SUBSCRIPTION));
  }

  private async _sendAll(): Promise<boolean> {
    let done: boolean;
    do {
      this._unsent = false;
      done = await this._sendOne();
    } while (done && this._unsent && !this._disposed);
    this._sending = null;
    return done && !this._disposed;
  }

  private async _sendOne(): Promise<boolean> {
    const requested = this._requested();
    try {
      const reply = await this._source.request('events', this._payload(requested));
      this._acknowledged = requested;
      this.failure = '';
      if (!this._disposed && requested.gpus) {
        this._listener.gpuReason(reply.reason);
      }
      return true;
    } catch (error) {
      this._acknowledged = null;
      this.failure = error instanceof Refused ? error.message : '';
      return false;
    }
  }

  private _payload(requested: ISubscription): Payload {
    const { shown, gpus, meter } = requested;
    const details = requested.details.slice(0, MAX_DETAILS);
    return { comm: this._id, seq: this._last, shown, gpus, looks: [...requested.looks], details, meter };
  }

  private _receive(event: unknown, buffers: DataView[]): void {
    if (this._disposed || !isEvent(event)) {
      return;
    }
    // Events have numbers without a gap; a snapshot starts over.
    if (event.type !== 'snapshot' && event.seq !== this._last + 1) {
      this._listener.heard(null);
      this._gap();
      return;
    }
    this._last = event.seq;
    this._gapAt = -GAP_INTERVAL_MS;
    this._listener.event(event, buffers);
    // A subscription that is on its way answers, too.
    if ('renew' in event && event.renew && !this._sending && !this._disposed) {
      void this.send();
    }
  }

  /** Events were lost: later ones are ignored until the next snapshot. */
  private _gap(): void {
    const now = this._source.now();
    if (now - this._gapAt > GAP_INTERVAL_MS) {
      this._gapAt = now;
      void this.send();
    }
  }

  private readonly _id: string;
  private readonly _comm: { dispose(): void };
  /** Number of the last event in order; -1 for none. */
  private _last = -1;
  /** What the kernel has acknowledged; `null` when that is not known. */
  private _acknowledged: ISubscription | null = NO_SUBSCRIPTION;
  private _sending: Promise<boolean> | null = null;
  private _unsent = false;
  private _gapAt = -GAP_INTERVAL_MS;
  private _disposed = false;
}

function isEvent(value: unknown): value is PanelEvent {
  const event = value as { type?: unknown; seq?: unknown } | null;
  return typeof event === 'object' && event !== null && typeof event.type === 'string' && typeof event.seq === 'number';
}

/** Combined subscription of all parts of the page. */
export class PageSubscription {
  /**
   * @param visible Whether the page is seen.
   * @param meter Seconds between two samples of the GPUs while the panel is hidden; 0: never.
   */
  constructor(
    private readonly _visible: () => boolean,
    private readonly _meter: () => number
  ) {}

  /** Emitted some time after a part of it has changed. */
  get changed(): ISignal<PageSubscription, void> {
    return this._changed;
  }

  get now(): ISubscription {
    const looks = [...new Set([...this._viewers].map(viewer => viewer.handle))];
    return this._shown && this._visible()
      ? { shown: 'panel', gpus: this._gpus, looks, details: this._details, meter: 0 }
      : { ...NO_SUBSCRIPTION, shown: 'status', meter: this._meter() };
  }

  /** Whether a visible part of the page shows what a kernel knows. */
  get isUsed(): boolean {
    return this._visible() && (this._shown || this._viewers.size > 0);
  }

  get gpus(): string {
    return this._gpus;
  }

  set gpus(source: string) {
    if (source !== this._gpus) {
      this._gpus = source;
      this.gather();
    }
  }

  set shown(shown: boolean) {
    this._shown = shown;
    this.gather();
  }

  /** Follow the streams of a run until disposed of. */
  view(handle: string): { dispose(): void } {
    const viewer = { handle };
    this._viewers.add(viewer);
    this.gather();
    return {
      dispose: () => {
        if (this._viewers.delete(viewer)) {
          this.gather();
        }
      }
    };
  }

  /** Request the details of past runs that stay in view for a moment. */
  details(handles: readonly string[]): void {
    clearTimeout(this._detailTimer);
    this._detailTimer = setTimeout(() => {
      this._details = handles;
      this.gather();
    }, DETAILS_DELAY_MS);
  }

  /** Forget the past runs in view: another kernel is followed. */
  forget(): void {
    clearTimeout(this._detailTimer);
    this._details = [];
  }

  /** Emit `changed` soon. */
  gather(): void {
    clearTimeout(this._gathering);
    this._gathering = setTimeout(() => this._changed.emit(), GATHER_MS);
  }

  private readonly _changed = new Signal<PageSubscription, void>(this);
  private readonly _viewers = new Set<{ handle: string }>();
  private _shown = false;
  private _gpus = '';
  private _details: readonly string[] = [];
  private _detailTimer: ReturnType<typeof setTimeout> | undefined;
  private _gathering: ReturnType<typeof setTimeout> | undefined;
}
