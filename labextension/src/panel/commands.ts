/** Commands of the panel and of runs, except those that open a view of a run (see tabs/commands.ts). */

import { Clipboard, Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { copyIcon, LabIcon, refreshIcon } from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';
import { studioText } from '../azure/texts';
import { confirmCancel, names, requestCancel } from '../cancel';
import { addressOf } from '../links';
import { messageOf } from '../kernel/client';
import { isLive } from '../kernel/rows';
import { openMlflow, openPage } from '../mlflowPage';
import type { IRunRow } from '../protocol';
import { PANEL_ID } from '../tokens';
import { ClickGuard } from './clickGuard';
import { againIcon, cancelIcon, deleteIcon, linkIcon, plugIcon, runsIcon, whereIcon } from './icons';
import { chosenRuns, selection } from './selection';
import { CommandIDs, IPanelContext } from './tokens';

/** Milliseconds for the answer of a run: its agent waits for seconds, and a target may be far. */
const STACK_TIMEOUT_MS = 20000;

const DESCRIBED = {
  args: {
    type: 'object',
    properties: {
      handle: { type: 'string', description: 'Handle of the run, e.g. local/my-run-1; the selected one by default' },
      handles: { type: 'array', items: { type: 'string' }, description: 'Handles of several runs' },
      confirmed: { type: 'boolean', description: 'Cancel without a dialog: it was confirmed elsewhere' }
    }
  }
} as const;

interface IRunCommand {
  readonly id: string;
  readonly short: string;
  readonly long: string;
  readonly caption: string;
  readonly icon: LabIcon;
  /** Hide the command where it applies to no row. */
  readonly hides?: boolean;
  /** Selected rows to which the command applies; an empty result disables the command. */
  fits(rows: readonly IRunRow[]): readonly IRunRow[];
  /** Run the command. `same` names a run on which an immediate second press is a repetition of this one. */
  run(rows: readonly IRunRow[], same: (handle: string) => void, args: ReadonlyPartialJSONObject): Promise<void>;
}

/** Show an error notification with the message of the kernel. */
export function failed(title: string, error: unknown): void {
  const text = messageOf(error);
  Notification.error(text ? `${title}: ${text}` : title, { autoClose: 10000 });
}

const one = (rows: readonly IRunRow[]): readonly IRunRow[] => (rows.length === 1 ? rows : []);

/** Add the commands of runs and return the ids for the command palette. */
export function addRunCommands(context: IPanelContext): string[] {
  const { app, model, trans } = context;
  const { commands } = app;

  const rowsOf = (args: ReadonlyPartialJSONObject): IRunRow[] =>
    chosenRuns(args)
      .map(handle => model.run(handle))
      .filter((row): row is IRunRow => row !== undefined);

  const cancel = async (rows: readonly IRunRow[], confirmed: boolean) => {
    if (!confirmed && !(await confirmCancel(trans, rows))) {
      return;
    }
    const { ended, errors } = await requestCancel(trans, model, rows);
    ended.forEach(({ name, state }) =>
      Notification.info(trans.__('%1 has already ended: %2.', name, state), { autoClose: 5000 })
    );
    if (errors.length > 0) {
      failed(trans._n('A run was not canceled', '%1 runs were not canceled', errors.length, errors.length), errors.join(' '));
    }
  };

  const again = async (rows: readonly IRunRow[], same: (handle: string) => void) => {
    const { handle } = await model.request('again', { handle: rows[0].handle });
    same(rows[0].handle);
    same(handle); // the new run becomes the selected one, under a possible second click
    Notification.success(trans.__('Submitted again as %1', handle), { autoClose: 5000 });
    const { kernel } = model;
    const choose = () => {
      const result = model.run(handle) !== undefined;
      // After a switch to another notebook's kernel, the run never appears.
      if (result || model.kernel !== kernel) {
        model.runsChanged.disconnect(choose);
      }
      if (result && model.kernel === kernel) {
        selection.runs = [handle];
      }
    };
    model.runsChanged.connect(choose);
    choose();
  };

  const remove = async (rows: readonly IRunRow[]) => {
    const handles = rows.map(row => row.handle);
    const first = await model.request('delete', { handles, confirmed: false, unrecorded: [] });
    let reply = first;
    if (first.confirmation) {
      const sure = await showDialog({
        title: trans._n('Delete run?', 'Delete %1 runs?', rows.length, rows.length),
        body: rows.length > 1 ? `${first.confirmation}\n\n${names(rows)}` : first.confirmation,
        buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Delete') })],
        defaultButton: 0
      });
      if (!sure.button.accept) {
        return;
      }
      // A kernel with an older package does not send this field.
      const unrecorded = first.unrecorded ?? [];
      reply = await model.request('delete', { handles, confirmed: true, unrecorded }, 10000);
    }
    const errors = Object.values(reply.errors);
    if (errors.length > 0) {
      failed(trans._n('A run was not deleted', '%1 runs were not deleted', errors.length, errors.length), errors.join(' '));
    }
    if (reply.deleted.length > 0) {
      Notification.success(trans._n('Deleted %2', 'Deleted %1 runs', reply.deleted.length, reply.deleted[0]), {
        autoClose: 3000
      });
    }
  };

  const showStack = async (rows: readonly IRunRow[]) => {
    // The processes of a run have seconds to answer.
    const { text } = await model.request('stack', { handle: rows[0].handle }, STACK_TIMEOUT_MS);
    const body = new Widget({ node: document.createElement('pre') });
    body.addClass('jp-AmlRuns-stack');
    body.node.textContent = text;
    body.node.tabIndex = 0;
    await showDialog({ title: trans.__('Where %1 is now', rows[0].name), body, buttons: [Dialog.okButton({ label: trans.__('Close') })] });
  };

  const copy = async (rows: readonly IRunRow[]) => {
    const text = rows.map(row => row.handle).join('\n');
    Clipboard.copyToSystem(text);
    Notification.success(trans.__('Copied %1', text), { autoClose: 3000 });
  };

  const linkOf = (row: IRunRow, kind: string): string => {
    // A kernel with an older package does not send this field.
    const result = (row.links ?? []).find(link => link.kind === kind);
    return result ? addressOf(result) : '';
  };
  const openCommand = (id: string, kind: string, title: string): IRunCommand => ({
    id,
    short: trans.__('Open in %1', title),
    long: trans.__('Open run in %1', title),
    caption: trans.__('Open %1 of the selected run in a new tab', title),
    icon: linkIcon,
    hides: true,
    fits: rows => one(rows).filter(row => linkOf(row, kind)),
    run: async rows => openPage(linkOf(rows[0], kind), trans.__('%1 of %2', title, rows[0].name), trans.__('Open'))
  });

  const list: IRunCommand[] = [
    {
      id: CommandIDs.runCancel,
      short: trans.__('Cancel…'),
      long: trans.__('Cancel run…'),
      caption: trans.__('Stop the selected run'),
      icon: cancelIcon,
      fits: rows => rows.filter(row => isLive(row) && !row.cancel_requested),
      run: (rows, _, args) => cancel(rows, args['confirmed'] === true)
    },
    {
      id: CommandIDs.runAgain,
      short: trans.__('Run again'),
      long: trans.__('Run again'),
      caption: trans.__('Run again with the same code and settings'),
      icon: againIcon,
      fits: rows => one(rows).filter(row => row.again),
      run: again
    },
    {
      id: CommandIDs.runStack,
      short: trans.__('Where is it now?'),
      long: trans.__('Where is the run now?'),
      caption: trans.__('Show in which line each thread of the selected run is'),
      icon: whereIcon,
      hides: true,
      fits: rows => one(rows).filter(row => row.state === 'running'),
      run: showStack
    },
    {
      id: CommandIDs.runCopy,
      short: trans.__('Copy handle'),
      long: trans.__('Copy run handle'),
      caption: trans.__('Copy the name that magics use for the selected run'),
      icon: copyIcon,
      fits: rows => rows,
      run: copy
    },
    {
      id: CommandIDs.runMlflow,
      short: trans.__('Open in MLflow'),
      long: trans.__('Open run in MLflow'),
      caption: trans.__('Open the selected run in the MLflow UI'),
      icon: linkIcon,
      fits: one,
      run: rows => openMlflowOf(context, rows[0])
    },
    openCommand(CommandIDs.runStudio, 'studio', studioText(trans)),
    openCommand(CommandIDs.runJupyter, 'jupyterlab', 'JupyterLab'),
    openCommand(CommandIDs.runVscode, 'vscode', 'VS Code'),
    openCommand(CommandIDs.runTensorboard, 'tensorboard', 'TensorBoard'),
    {
      id: CommandIDs.runDelete,
      short: trans.__('Delete…'),
      long: trans.__('Delete run…'),
      caption: trans.__('Delete selected finished runs'),
      icon: deleteIcon,
      fits: rows => rows.filter(row => !isLive(row)),
      run: remove
    }
  ];

  const guard = new ClickGuard();
  const keyOf = (id: string, handles: readonly string[]) => [id, ...handles].join(' ');
  for (const command of list) {
    commands.addCommand(command.id, {
      label: args => (args['short'] ? command.short : command.long),
      caption: command.caption,
      icon: command.icon,
      isEnabled: args => model.connection.ready && command.fits(rowsOf(args)).length > 0,
      isVisible: args => !command.hides || command.fits(rowsOf(args)).length > 0,
      describedBy: DESCRIBED,
      execute: async args => {
        const rows = command.fits(rowsOf(args));
        if (rows.length > 0) {
          try {
            const handles = rows.map(row => row.handle);
            await guard.once(keyOf(command.id, handles), same =>
              command.run(rows, handle => same(keyOf(command.id, [handle])), args)
            );
          } catch (error) {
            failed(command.long.replace(/…$/, ''), error);
          }
        }
      }
    });
  }

  // Refresh the buttons only when their state may have changed, not with every metric of a run.
  let before = '';
  const changed = () => {
    const rows = rowsOf({});
    const now = JSON.stringify([
      model.connection.state,
      rows.map(row => [row.handle, row.state, row.cancel_requested, row.again, row.links])
    ]);
    if (now !== before) {
      before = now;
      RUN_COMMANDS.filter(id => commands.hasCommand(id)).forEach(id => commands.notifyCommandChanged(id));
    }
  };
  selection.changed.connect(changed);
  model.runsChanged.connect(changed);
  model.connectionChanged.connect(changed);
  return list.map(command => command.id);
}

const RUN_COMMANDS: readonly string[] = [
  CommandIDs.runOpen,
  CommandIDs.runTab,
  CommandIDs.runLogs,
  CommandIDs.runCancel,
  CommandIDs.runAgain,
  CommandIDs.runStack,
  CommandIDs.runDelete,
  CommandIDs.runCompare,
  CommandIDs.runCopy,
  CommandIDs.runMlflow,
  CommandIDs.runStudio,
  CommandIDs.runJupyter,
  CommandIDs.runVscode,
  CommandIDs.runTensorboard,
  CommandIDs.runGpus
];

/** Add the context menu of the rows in the list of runs. */
export function addRunMenu(context: IPanelContext): void {
  const selector = '.jp-AmlRuns-row';
  const menu = context.app.contextMenu;
  const args = { short: true };
  const groups = [
    [CommandIDs.runOpen, CommandIDs.runTab, CommandIDs.runLogs, CommandIDs.runGpus, CommandIDs.runCompare],
    [CommandIDs.runCancel, CommandIDs.runAgain, CommandIDs.runStack],
    [
      CommandIDs.runCopy,
      CommandIDs.runMlflow,
      CommandIDs.runStudio,
      CommandIDs.runJupyter,
      CommandIDs.runVscode,
      CommandIDs.runTensorboard
    ],
    [CommandIDs.runDelete]
  ];
  groups.forEach((group, k) => {
    group
      .filter(command => context.app.commands.hasCommand(command))
      .forEach((command, at) => menu.addItem({ command, args, selector, rank: 10 * k + at }));
    if (k + 1 < groups.length) {
      menu.addItem({ type: 'separator', selector, rank: 10 * k + 9 });
    }
  });
}

/** Add the commands of the panel and return the ids for the command palette. */
export function addPanelCommands(context: IPanelContext): string[] {
  const { app, model, trans } = context;
  const { commands } = app;
  const described = { args: { type: 'object', properties: {} } } as const;
  commands.addCommand(CommandIDs.open, {
    label: trans.__('Training runs'),
    caption: trans.__('Show the panel of compute targets, runs and GPUs'),
    icon: runsIcon,
    describedBy: described,
    execute: () => app.shell.activateById(PANEL_ID)
  });
  commands.addCommand(CommandIDs.connect, {
    label: trans.__('Connect kernel to training runs'),
    caption: trans.__('Load the jupyter_amltrain extension in the kernel of the notebook'),
    icon: plugIcon,
    isEnabled: () => model.connection.state === 'not-loaded' || model.connection.state === 'missing',
    describedBy: described,
    execute: () => model.connect()
  });
  commands.addCommand(CommandIDs.refresh, {
    label: trans.__('Refresh training runs'),
    caption: trans.__('Refresh'),
    icon: refreshIcon,
    isEnabled: () => model.kernel !== null,
    describedBy: described,
    execute: () => model.refresh()
  });
  model.connectionChanged.connect(() => {
    commands.notifyCommandChanged(CommandIDs.connect);
    commands.notifyCommandChanged(CommandIDs.refresh);
  });
  return [CommandIDs.open, CommandIDs.connect, CommandIDs.refresh];
}

function openMlflowOf({ model, trans }: IPanelContext, row: IRunRow): Promise<void> {
  // Stop when the panel follows another notebook's kernel, which does not know the run.
  const { kernel } = model;
  const source = {
    ask: () => (model.kernel === kernel ? model.request('mlflow', { handle: row.handle }) : null),
    get isComing() {
      // The record of a run that has just ended may not be complete yet.
      return model.run(row.handle)?.tracking === 'pending' && !isLive(row);
    }
  };
  return openMlflow(source, trans);
}
