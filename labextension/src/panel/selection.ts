/** Selection of the panel, used by commands without arguments. */

import { ISignal, Signal } from '@lumino/signaling';

class Selection {
  /** Handles of the selected runs, in the order of selection. */
  get runs(): readonly string[] {
    return this._runs;
  }

  set runs(handles: readonly string[]) {
    if (handles.join('\n') !== this._runs.join('\n')) {
      this._runs = Object.freeze([...handles]);
      this._changed.emit();
    }
  }

  /** Name of the selected target; empty for none. */
  get target(): string {
    return this._target;
  }

  set target(name: string) {
    if (name !== this._target) {
      this._target = name;
      this._changed.emit();
    }
  }

  get changed(): ISignal<Selection, void> {
    return this._changed;
  }

  private _runs: readonly string[] = [];
  private _target = '';
  private readonly _changed = new Signal<Selection, void>(this);
}

/** Selection of this page. */
export const selection = new Selection();

/** Handles of the runs that a command applies to: its arguments, else the selection. */
export function chosenRuns(args: { readonly [key: string]: unknown }): readonly string[] {
  if (Array.isArray(args.handles)) {
    return args.handles.filter((handle): handle is string => typeof handle === 'string');
  }
  return typeof args.handle === 'string' && args.handle ? [args.handle] : selection.runs;
}
