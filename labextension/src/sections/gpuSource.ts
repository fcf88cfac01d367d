/** Source of the GPUs section: the available runs and targets, and the selected one. */

import { ISignal, Signal } from '@lumino/signaling';
import type { IRunRow, ITargetRow } from '../protocol';
import { TERMINAL } from '../record';

/** Choice that follows the current target. */
export const IN_USE = '';

const TARGET = 'target:';

export interface IOption {
  /** Argument of `choose`. */
  value: string;
  kind: 'in use' | 'target' | 'running' | 'run';
  /** Name of the target or run. */
  name: string;
}

export const targetSource = (name: string): string => TARGET + name;

/** Name of the target of a source; empty if the source is a run. */
export const targetOf = (source: string): string => (source.startsWith(TARGET) ? source.slice(TARGET.length) : '');

/** Names of runs, with the handle for equal names. */
function names(rows: readonly IRunRow[]): Map<string, string> {
  const seen = new Map<string, number>();
  rows.forEach(row => seen.set(row.name, (seen.get(row.name) ?? 0) + 1));
  return new Map(rows.map(row => [row.handle, (seen.get(row.name) ?? 0) > 1 ? `${row.name} (${row.handle})` : row.name]));
}

/** Available options, which always include the chosen one. */
export function options(current: string, runs: readonly IRunRow[], chosen: string): IOption[] {
  const found: IOption[] = current ? [{ value: IN_USE, kind: 'in use', name: current }] : [];
  const target = targetOf(chosen);
  if (target) {
    found.push({ value: chosen, kind: 'target', name: target });
  }
  const live = runs.filter(row => !TERMINAL.has(row.state) && row.state !== 'preparing' && row.state !== 'queued');
  const listed = chosen === IN_USE || target !== '' || live.some(row => row.handle === chosen);
  const other = listed ? undefined : runs.find(row => row.handle === chosen);
  const named = names(other ? [...live, other] : live);
  live.forEach(row => found.push({ value: row.handle, kind: 'running', name: named.get(row.handle) ?? row.name }));
  if (!listed) {
    // Use the handle until the row of the run arrives.
    found.push({ value: chosen, kind: 'run', name: named.get(chosen) ?? chosen });
  }
  return found;
}

/** Choice of the GPU source: one for each panel, shared by its section and the commands. */
export class GpuChoice {
  /** `IN_USE`, `target:<name>` or a handle. */
  get chosen(): string {
    return this._chosen;
  }

  readonly changed: ISignal<this, void> = new Signal<this, void>(this);
  /** Emitted when a command requests to show the section. */
  readonly revealed: ISignal<this, void> = new Signal<this, void>(this);

  choose(chosen: string): void {
    if (chosen !== this._chosen) {
      this._chosen = chosen;
      this._known = false;
      this._on = null;
      (this.changed as Signal<this, void>).emit();
    }
  }

  /** Choose a source, sample it, and bring the section to the front. */
  reveal(chosen: string): void {
    this._chosen = chosen;
    this._known = false;
    this._on = true;
    (this.changed as Signal<this, void>).emit();
    (this.revealed as Signal<this, void>).emit();
  }

  /**
   * Reset the choice if its run or target was among the rows and no longer is: deleted, or of another kernel.
   * A choice that was never among them is kept: a command may name a run before its row arrives.
   *
   * @returns whether the choice was reset
   */
  settle(runs: readonly IRunRow[], targets: readonly ITargetRow[]): boolean {
    const target = targetOf(this._chosen);
    const known = target ? targets.some(row => row.name === target) : runs.some(row => row.handle === this._chosen);
    // Without any runs, a new kernel may not have sent its rows yet.
    const gone = this._chosen !== IN_USE && this._known && !known && (target !== '' || runs.length > 0);
    this._known = known || (this._known && !gone);
    if (gone) {
      this.choose(IN_USE);
    }
    return gone;
  }

  /** Set the user's decision whether to watch this source. */
  set on(on: boolean) {
    this._on = on;
    (this.changed as Signal<this, void>).emit();
  }

  /** Whether to watch the source. A run is sampled anyway; sampling a target uses its resources. */
  watches(automatic: boolean): boolean {
    return this._on ?? (this._isTarget ? automatic : true);
  }

  /** Source to request from the kernel. */
  source(current: string): string {
    return this._chosen === IN_USE ? (current ? targetSource(current) : '') : this._chosen;
  }

  private get _isTarget(): boolean {
    return this._chosen === IN_USE || targetOf(this._chosen) !== '';
  }

  private _chosen = IN_USE;
  /** Whether the row of the chosen source was among the rows. */
  private _known = false;
  private _on: boolean | null = null;
}

const choices = new WeakMap<object, GpuChoice>();

/** Return the choice of a panel. */
export function choiceOf(context: object): GpuChoice {
  let choice = choices.get(context);
  if (!choice) {
    choices.set(context, (choice = new GpuChoice()));
  }
  return choice;
}
