/** Source of the GPU section: the available runs and targets, and the selected one. */

import { ISignal, Signal } from '@lumino/signaling';
import type { IRunRow, ITargetRow } from '../protocol';
import { TERMINAL } from '../record';

/** The choice that follows the target in use. */
export const IN_USE = '';

const TARGET = 'target:';

export interface IOption {
  /** What `choose` takes. */
  value: string;
  kind: 'in use' | 'target' | 'running' | 'run';
  /** Name of the target or run. */
  name: string;
}

export const targetSource = (name: string): string => TARGET + name;

/** Name of the target that a source means, or empty. */
export const targetOf = (source: string): string => (source.startsWith(TARGET) ? source.slice(TARGET.length) : '');

/** Names of runs, with the handle where two names are equal. */
function names(rows: readonly IRunRow[]): Map<string, string> {
  const seen = new Map<string, number>();
  rows.forEach(row => seen.set(row.name, (seen.get(row.name) ?? 0) + 1));
  return new Map(rows.map(row => [row.handle, (seen.get(row.name) ?? 0) > 1 ? `${row.name} (${row.handle})` : row.name]));
}

/** What there is to choose from, the chosen one always among it. */
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
    // By its handle while its row has not come.
    found.push({ value: chosen, kind: 'run', name: named.get(chosen) ?? chosen });
  }
  return found;
}

/** What was chosen: one for each panel, shared by its section and the commands. */
export class GpuChoice {
  /** `IN_USE`, `target:<name>` or a handle. */
  get chosen(): string {
    return this._chosen;
  }

  readonly changed: ISignal<this, void> = new Signal<this, void>(this);
  /** Somebody wants to see it. */
  readonly revealed: ISignal<this, void> = new Signal<this, void>(this);

  choose(chosen: string): void {
    if (chosen !== this._chosen) {
      this._chosen = chosen;
      this._known = false;
      this._on = null;
      (this.changed as Signal<this, void>).emit();
    }
  }

  /** Choose, sample, and bring the section to the front. */
  reveal(chosen: string): void {
    this._chosen = chosen;
    this._known = false;
    this._on = true;
    (this.changed as Signal<this, void>).emit();
    (this.revealed as Signal<this, void>).emit();
  }

  /**
   * Take the choice back when its run or target was among the rows and is no longer: deleted, or of another kernel.
   * What was never among them is waited for: a command may name a run before its row comes.
   *
   * @returns whether it was taken back
   */
  settle(runs: readonly IRunRow[], targets: readonly ITargetRow[]): boolean {
    const target = targetOf(this._chosen);
    const known = target ? targets.some(row => row.name === target) : runs.some(row => row.handle === this._chosen);
    // No runs at all: a kernel that has just begun may not have told them yet.
    const gone = this._chosen !== IN_USE && this._known && !known && (target !== '' || runs.length > 0);
    this._known = known || (this._known && !gone);
    if (gone) {
      this.choose(IN_USE);
    }
    return gone;
  }

  /** The user's choice for this source. */
  set on(on: boolean) {
    this._on = on;
    (this.changed as Signal<this, void>).emit();
  }

  /** Whether it is to be watched. A run samples anyway; to sample a target costs it something. */
  watches(automatic: boolean): boolean {
    return this._on ?? (this._isTarget ? automatic : true);
  }

  /** The source requested from the kernel. */
  source(current: string): string {
    return this._chosen === IN_USE ? (current ? targetSource(current) : '') : this._chosen;
  }

  private get _isTarget(): boolean {
    return this._chosen === IN_USE || targetOf(this._chosen) !== '';
  }

  private _chosen = IN_USE;
  /** Its row was seen. */
  private _known = false;
  private _on: boolean | null = null;
}

const choices = new WeakMap<object, GpuChoice>();

/** The one choice of a panel. */
export function choiceOf(context: object): GpuChoice {
  let choice = choices.get(context);
  if (!choice) {
    choices.set(context, (choice = new GpuChoice()));
  }
  return choice;
}
