/** The rows of one kernel by its events, and the transitions of its runs. No DOM. */

import type { IChanges, IRunRow, IStateSnapshot, ITargetRow, IWorkspaceRow } from '../protocol';

const ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'canceled', 'lost']);

export function isLive(row: IRunRow): boolean {
  return !ENDED.has(row.state);
}

/** What an event has changed in the rows. */
export interface IDifference {
  /** Handles of runs that came, changed or went; `null` for none, empty for too many to name. */
  readonly runs: readonly string[] | null;
  readonly targets: boolean;
  readonly workspaces: boolean;
}

/** Newest first; by name where two began at once, so that rows keep their places. */
function newer(a: IRunRow, b: IRunRow): number {
  return b.created - a.created || (a.handle < b.handle ? -1 : a.handle > b.handle ? 1 : 0);
}

export class Rows {
  runs: readonly IRunRow[] = [];
  targets: readonly ITargetRow[] = [];
  /** The connected workspaces. */
  workspaces: readonly IWorkspaceRow[] = [];
  current = '';
  more = 0;
  /** Why the targets cannot be read, by the kernel; else empty. */
  trouble = '';
  /** A snapshot has come. */
  known = false;

  /** Runs that are no trials: those are parts of their sweep. */
  get own(): readonly IRunRow[] {
    if (this._ownOf !== this.runs) {
      this._ownOf = this.runs;
      this._own = this.runs.some(row => row.parent) ? this.runs.filter(row => !row.parent) : this.runs;
    }
    return this._own;
  }

  run(handle: string): IRunRow | undefined {
    return this._byHandle.get(handle);
  }

  target(name: string): ITargetRow | undefined {
    return this.targets.find(row => row.name === name);
  }

  snapshot(event: IStateSnapshot): IDifference {
    const before = this._byHandle;
    this._byHandle = new Map(event.runs.map(row => [row.handle, this._same(before.get(row.handle), row)]));
    this.runs = [...this._byHandle.values()].sort(newer);
    this.targets = event.targets.map(row => this._same(this.target(row.name), row));
    this.workspaces = event.workspaces.map(row => this._same(this._workspace(row.name), row));
    this.current = event.current;
    this.more = event.more;
    this.trouble = event.trouble;
    this.known = true;
    return { runs: [], targets: true, workspaces: true };
  }

  changes(event: IChanges): IDifference {
    const touched: string[] = [];
    let moved = false;
    for (const row of event.runs) {
      const before = this._byHandle.get(row.handle);
      const now = this._same(before, row);
      if (now !== before) {
        this._byHandle.set(row.handle, now);
        touched.push(row.handle);
        moved = moved || before === undefined || before.created !== now.created;
      }
    }
    for (const handle of event.gone) {
      if (this._byHandle.delete(handle)) {
        touched.push(handle);
        moved = true;
      }
    }
    if (moved) {
      this.runs = [...this._byHandle.values()].sort(newer);
    } else if (touched.length > 0) {
      this.runs = this.runs.map(row => this._byHandle.get(row.handle) ?? row);
    }
    if (event.targets !== null) {
      this.targets = event.targets.map(row => this._same(this.target(row.name), row));
    }
    if (event.workspaces !== null) {
      this.workspaces = event.workspaces.map(row => this._same(this._workspace(row.name), row));
    }
    if (event.current !== null) {
      this.current = event.current;
    }
    if (event.trouble !== null) {
      this.trouble = event.trouble;
    }
    return {
      runs: touched.length > 0 ? touched : null,
      targets: event.targets !== null || event.current !== null,
      workspaces: event.workspaces !== null
    };
  }

  private _workspace(name: string): IWorkspaceRow | undefined {
    return this.workspaces.find(row => row.name === name);
  }

  /** The old object where nothing has changed; the new one frozen else. */
  private _same<T extends object>(before: T | undefined, now: T): T {
    return before !== undefined && JSON.stringify(before) === JSON.stringify(now) ? before : Object.freeze(now);
  }

  private _byHandle = new Map<string, IRunRow>();
  private _own: readonly IRunRow[] = [];
  private _ownOf: readonly IRunRow[] | null = null;
}

/** Transitions of runs of which a person should be notified, over all kernels that follow them. */
export class TransitionWatcher {
  /**
   * The transitions that these rows bring, which the followed kernel has just sent.
   *
   * @param isWhole whether they are all its rows: then a row that is new here is an old run
   */
  update(rows: Iterable<IRunRow>, isWhole = false): { row: IRunRow; what: 'ended' | 'attention' }[] {
    const transitions: { row: IRunRow; what: 'ended' | 'attention' }[] = [];
    let newest = this._newest;
    for (const row of rows) {
      // Another kernel may know another run by the same handle.
      const key = `${row.handle} ${row.created}`;
      const before = this._known.get(key);
      const live = isLive(row);
      // A run may end before the kernel has sent its first row.
      const isNew = !before && !isWhole && this._newest > 0 && row.created > this._newest;
      newest = Math.max(newest, row.created);
      if (!live && (before?.live || isNew)) {
        transitions.push({ row, what: 'ended' });
      } else if (live && before && row.attention && row.attention !== before.attention) {
        transitions.push({ row, what: 'attention' });
      }
      if (live || before || isNew) {
        // A message that disappears and reappears is shown once.
        this._known.set(key, { live, attention: row.attention || (before?.attention ?? '') });
      }
    }
    this._newest = newest;
    return transitions;
  }

  /** Latest submit among the rows so far, in unix seconds. */
  private _newest = 0;
  private readonly _known = new Map<string, { live: boolean; attention: string }>();
}
