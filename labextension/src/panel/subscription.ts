/** What the page wants of one kernel's events, and the rows that came: over all comms, one after the other. No DOM. */

import type { IOperations, PanelEvent } from '../protocol';
import { EventChannel } from './channel';
import { IWants, NOTHING } from './events';
import type { IPort, ISessionOwner } from './peer';
import { Rows } from './rows';

export interface ISubscriber {
  readonly newId: () => string;
  readonly now: () => number;
  request(op: 'events', values: IOperations['events']['payload']): Promise<IOperations['events']['reply']>;
  /** The kernel was heard; `event` is the one that came, `null` for one that cannot be used. */
  heard(event: PanelEvent | null): void;
}

export class Subscription {
  constructor(
    private readonly _port: IPort,
    private readonly _owner: ISessionOwner,
    private readonly _subscriber: ISubscriber
  ) {}

  readonly rows = new Rows();

  /** What is wanted now. */
  wants: IWants = NOTHING;

  /** Somebody wants something. */
  get wanted(): boolean {
    return this.wants.shown !== '';
  }

  /** The kernel's sentence when it refused; else empty. */
  get failure(): string {
    return this._channel?.failure ?? '';
  }

  /** Tell the kernel what is wanted; whether it knows now. */
  async tell(): Promise<boolean> {
    if (!this.wanted && !this._channel?.behind) {
      return true;
    }
    const { newId, now } = this._subscriber;
    this._channel ??= new EventChannel(this._port, newId(), {
      now,
      wants: () => this.wants,
      request: (op, values) => this._subscriber.request(op, values),
      got: (event, buffers) => this._got(event, buffers),
      heard: () => this._subscriber.heard(null),
      gpuWhy: why => this._owner.gpuWhy(why)
    });
    return this._channel.send();
  }

  /** Tell what the kernel was not told while it did not answer. */
  catchUp(): void {
    if (this._channel?.behind) {
      void this.tell();
    }
  }

  /** Tell the kernel that nobody listens, without waiting for an answer. */
  bye(): void {
    this._channel?.bye();
  }

  /** The kernel knows nothing of us any more. */
  drop(): void {
    this._channel?.dispose();
    this._channel = null;
  }

  private _got(event: PanelEvent, buffers: DataView[]): void {
    if (event.type === 'snapshot') {
      this._owner.rowsChanged(this.rows.snapshot(event));
    } else if (event.type === 'changes') {
      this._owner.rowsChanged(this.rows.changes(event));
    } else {
      this._owner.event(event, buffers);
    }
    this._subscriber.heard(event);
  }

  private _channel: EventChannel | null = null;
}
