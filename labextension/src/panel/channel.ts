/** The events of a kernel on one comm: what we want goes out, what comes is put in order. No DOM. */

import { Refused } from '../client';
import type { IOperations, PanelEvent } from '../protocol';
import { isEvent, IWants, NOTHING, payload, Sequence } from './events';
import type { IPort } from './peer';

/** Milliseconds in which a second gap is taken for the first. */
const GAP = 2000;

export interface IChannelOwner {
  /** What is wanted now. */
  wants(): IWants;
  now(): number;
  request(op: 'events', values: IOperations['events']['payload']): Promise<IOperations['events']['reply']>;
  /** An event has come, in order. */
  got(event: PanelEvent, buffers: DataView[]): void;
  /** Something has come that cannot be used. */
  heard(): void;
  gpuWhy(why: string): void;
}

export class EventChannel {
  constructor(
    private readonly _port: IPort,
    private readonly _id: string,
    private readonly _owner: IChannelOwner
  ) {
    this._listener = _port.listen(_id, (event, buffers) => this._got(event, buffers));
  }

  dispose(): void {
    this._disposed = true;
    this._listener.dispose();
  }

  /** The kernel's sentence when it refused; else empty. */
  get failure(): string {
    return this._failure;
  }

  /** The kernel does not know what is wanted now. */
  get behind(): boolean {
    return JSON.stringify(this._told) !== JSON.stringify(this._owner.wants());
  }

  /** Say what is wanted; one message at a time, the last word counts. */
  send(): Promise<boolean> {
    if (this._sending) {
      this._unsent = true;
      return this._sending;
    }
    return (this._sending = this._sendAll());
  }

  /** Tell the kernel that nobody listens any more, without waiting for anything. */
  bye(): void {
    this._told = NOTHING;
    this._port.client.request('events', payload(this._id, this._sequence.last, NOTHING)).catch(() => undefined);
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
    const wants = this._owner.wants();
    try {
      const reply = await this._owner.request('events', payload(this._id, this._sequence.last, wants));
      this._told = wants;
      this._failure = '';
      if (!this._disposed && wants.gpus) {
        this._owner.gpuWhy(reply.why);
      }
      return true;
    } catch (error) {
      this._told = null;
      this._failure = error instanceof Refused ? error.message : '';
      return false;
    }
  }

  private _got(event: unknown, buffers: DataView[]): void {
    if (this._disposed || !isEvent(event)) {
      return;
    }
    if (!this._sequence.take(event)) {
      this._owner.heard();
      this._gap();
      return;
    }
    this._gapAt = -GAP;
    this._owner.got(event, buffers);
    // What is on its way is an answer, too.
    if ('renew' in event && event.renew && !this._sending && !this._disposed) {
      void this.send();
    }
  }

  /** Events are missing: what comes next is of no use before the snapshot. */
  private _gap(): void {
    const now = this._owner.now();
    if (now - this._gapAt > GAP) {
      this._gapAt = now;
      void this.send();
    }
  }

  private readonly _listener: { dispose(): void };
  private readonly _sequence = new Sequence();
  /** What the kernel has answered to; `null` when that is not known. */
  private _told: IWants | null = NOTHING;
  private _failure = '';
  private _sending: Promise<boolean> | null = null;
  private _unsent = false;
  private _gapAt = -GAP;
  private _disposed = false;
}
