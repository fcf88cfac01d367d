/** Active runs in JupyterLab's panel of running sessions. */

import type { IRunningSessionManagers, IRunningSessions } from '@jupyterlab/running';
import { Signal } from '@lumino/signaling';
import { isLive } from '../kernel/rows';
import type { IRunRow } from '../protocol';
import { stateWord } from '../sections/runText';
import { cancelIcon, runsIcon } from './icons';
import { CommandIDs, IPanelContext } from './tokens';

class RunningRuns implements IRunningSessions.IManager {
  constructor(private readonly _context: IPanelContext) {
    const { model, trans } = _context;
    this.name = trans.__('Training runs');
    this.shutdownLabel = trans.__('Cancel…');
    this.shutdownAllLabel = trans.__('Cancel all');
    this.shutdownAllConfirmationText = trans.__('Cancel all live training runs of this kernel?');
    let before = '';
    model.runsChanged.connect(() => {
      // Metrics change twice a second, but this list shows states only.
      const now = this._live.map(row => `${row.handle} ${stateWord(row, trans)} ${row.name}`).join();
      if (now !== before) {
        before = now;
        this.runningChanged.emit();
      }
    });
  }

  readonly name: string;
  readonly shutdownLabel: string;
  readonly shutdownAllLabel: string;
  readonly shutdownAllConfirmationText: string;
  readonly shutdownItemIcon = cancelIcon;
  readonly runningChanged: Signal<IRunningSessions.IManager, void> = new Signal(this);

  running(): IRunningSessions.IRunningItem[] {
    const { app, trans } = this._context;
    return this._live.map(row => ({
      className: 'jp-AmlRunning-item',
      context: row.handle,
      icon: () => runsIcon,
      label: () => row.name,
      labelTitle: () => row.handle,
      detail: () => stateWord(row, trans),
      open: () => {
        const id = app.commands.hasCommand(CommandIDs.runOpen) ? CommandIDs.runOpen : CommandIDs.open;
        void app.commands.execute(id, { handle: row.handle });
      },
      shutdown: () => void app.commands.execute(CommandIDs.runCancel, { handle: row.handle })
    }));
  }

  refreshRunning(): void {
    this.runningChanged.emit();
  }

  /** Cancel all runs without a dialog: JupyterLab has already shown its own. */
  shutdownAll(): void {
    const handles = this._live.map(row => row.handle);
    void this._context.app.commands.execute(CommandIDs.runCancel, { handles, confirmed: true });
  }

  private get _live(): readonly IRunRow[] {
    return this._context.model.runs.filter(isLive);
  }
}

export function addToRunning(context: IPanelContext, managers: IRunningSessionManagers): void {
  managers.add(new RunningRuns(context));
}
