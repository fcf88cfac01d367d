/** What a session needs of the world, and whom it tells: real ones in port.ts and model.ts, fakes in the tests. */

import type { Client } from '../client';
import type { PanelEvent } from '../protocol';
import type { IDifference } from './rows';

export interface ILoaded {
  readonly status: string;
  readonly ename: string;
  readonly evalue: string;
}

/** One kernel connection. */
export interface IPort {
  readonly client: Pick<Client, 'greet' | 'request'>;
  /** Jupyter's word for the kernel. */
  readonly status: string;
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

export const TIMERS: ITimers = {
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
