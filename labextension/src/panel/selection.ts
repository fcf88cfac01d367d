/** Selection of the panel: commands without arguments act on it. */

import { ISignal, Signal } from '@lumino/signaling';

class Selection {
  /** Handles, in the order in which they were chosen. */
  get runs(): readonly string[] {
    return this._runs;
  }

  set runs(handles: readonly string[]) {
    if (handles.join('\n') !== this._runs.join('\n')) {
      this._runs = Object.freeze([...handles]);
      this._changed.emit();
    }
  }

  /** Name of a target; empty for none. */
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

/** The one of this page. */
export const selection = new Selection();

/** The run that a command is about: its argument, else the one that is selected. */
export function chosenRuns(args: { readonly [key: string]: unknown }): readonly string[] {
  if (Array.isArray(args.handles)) {
    return args.handles.filter((handle): handle is string => typeof handle === 'string');
  }
  return typeof args.handle === 'string' && args.handle ? [args.handle] : selection.runs;
}
