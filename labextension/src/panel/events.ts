/** The events of one kernel: what the page wants of them, and in which order they came. No DOM. */

import type { IOperations, PanelEvent } from '../protocol';

export type Shown = 'panel' | 'status' | '';

/** The whole of what this page wants now, without the comm and the number that go with it. */
export interface IWants {
  readonly shown: Shown;
  readonly gpus: string;
  readonly looks: readonly string[];
  readonly details: readonly string[];
  readonly meter: number;
}

export const NOTHING: IWants = { shown: '', gpus: '', looks: [], details: [], meter: 0 };

/** Past runs whose details may be asked for at once. */
export const DETAILS = 30;

/** Events come in numbers without a gap; a snapshot begins anew. */
export class Sequence {
  /** Number of the last event in order; -1 for none. */
  last = -1;

  /** Whether the event may be used; false asks for a snapshot. */
  take(event: PanelEvent): boolean {
    if (event.type === 'snapshot' || event.seq === this.last + 1) {
      this.last = event.seq;
      return true;
    }
    return false;
  }
}

export function payload(comm: string, seq: number, wants: IWants): IOperations['events']['payload'] {
  return {
    comm,
    seq,
    shown: wants.shown,
    gpus: wants.gpus,
    looks: [...wants.looks],
    details: wants.details.slice(0, DETAILS),
    meter: wants.meter
  };
}

export function isEvent(value: unknown): value is PanelEvent {
  const event = value as { type?: unknown; seq?: unknown } | null;
  return typeof event === 'object' && event !== null && typeof event.type === 'string' && typeof event.seq === 'number';
}
