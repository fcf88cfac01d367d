/** What all parts of the page together want of the followed kernel. No DOM. */

import { ISignal, Signal } from '@lumino/signaling';
import { IWants, NOTHING } from './events';

/** Milliseconds in which wishes are gathered before the kernel is told. */
const GATHER = 60;
const DETAILS_AFTER = 250;

export class Wants {
  /**
   * @param visible Whether the page is seen.
   * @param meter Seconds between two looks at the GPUs while the panel is not; 0: never.
   */
  constructor(
    private readonly _visible: () => boolean,
    private readonly _meter: () => number
  ) {}

  /** Some time after something of it is another. */
  get changed(): ISignal<Wants, void> {
    return this._changed;
  }

  get now(): IWants {
    const looks = [...new Set([...this._looks].map(mark => mark.handle))];
    return this._shown && this._visible()
      ? { shown: 'panel', gpus: this._gpus, looks, details: this._details, meter: 0 }
      : { ...NOTHING, shown: 'status', meter: this._meter() };
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

  look(handle: string): { dispose(): void } {
    const mark = { handle };
    this._looks.add(mark);
    this.gather();
    return {
      dispose: () => {
        if (this._looks.delete(mark)) {
          this.gather();
        }
      }
    };
  }

  /** Past runs that stay in view for a moment. */
  details(handles: readonly string[]): void {
    clearTimeout(this._detailTimer);
    this._detailTimer = setTimeout(() => {
      this._details = handles;
      this.gather();
    }, DETAILS_AFTER);
  }

  /** Another kernel is followed: what was wanted of the last one's runs is of no use. */
  forget(): void {
    clearTimeout(this._detailTimer);
    this._details = [];
  }

  /** Tell soon. */
  gather(): void {
    clearTimeout(this._gathering);
    this._gathering = setTimeout(() => this._changed.emit(), GATHER);
  }

  private readonly _changed = new Signal<Wants, void>(this);
  private readonly _looks = new Set<{ handle: string }>();
  private _shown = false;
  private _gpus = '';
  private _details: readonly string[] = [];
  private _detailTimer: ReturnType<typeof setTimeout> | undefined;
  private _gathering: ReturnType<typeof setTimeout> | undefined;
}
