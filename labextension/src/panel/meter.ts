/** Mean use of the GPUs of the target in use, for the status bar; null: nobody measures it. No DOM. */

import type { PanelEvent } from '../protocol';
import { meanUtil } from './frames';
import type { IGpuFrame } from './tokens';

export class Meter {
  constructor(private readonly _changed: (value: number | null) => void) {}

  /** Nobody measures it any more. */
  stop(): void {
    this._set(null);
  }

  /** Another kernel's is meant; nothing is told. */
  forget(): void {
    this._value = null;
  }

  /** The target in use is this one: what another one's GPUs did says nothing of it. */
  target(current: string): void {
    if (current !== this._target) {
      this._target = current;
      this._set(null);
    }
  }

  /** Ticks have come, of the target in use or of something else. */
  frame(frame: IGpuFrame, current: string): void {
    if (frame.head.source === `target:${current}`) {
      this._set(meanUtil(frame));
    }
  }

  /** The kernel has said it. */
  event(event: PanelEvent): void {
    if (event.type === 'meter') {
      this._set(event.util);
    }
  }

  private _set(value: number | null): void {
    if (value !== this._value) {
      this._value = value;
      this._changed(value);
    }
  }

  private _target = '';
  private _value: number | null = null;
}
