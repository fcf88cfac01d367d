/** Whether cells show bars beside their lines: remembered by the browser, the same for all notebooks. */

import { ISignal, Signal } from '@lumino/signaling';

const KEY = 'jupyter-amltrain:line-bars';

class BarSetting {
  /** Emitted after a change. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get on(): boolean {
    return this._on;
  }

  set on(on: boolean) {
    this._on = on;
    try {
      localStorage.setItem(KEY, on ? '1' : '0');
    } catch {
      // A browser may refuse storage: then it is remembered until the page is loaded again.
    }
    this._changed.emit();
  }

  private _on = stored();
  private readonly _changed = new Signal<this, void>(this);
}

function stored(): boolean {
  try {
    return localStorage.getItem(KEY) !== '0';
  } catch {
    return true;
  }
}

export const barSetting = new BarSetting();
