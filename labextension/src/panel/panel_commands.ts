/** Commands of the panel itself. */

import { refreshIcon } from '@jupyterlab/ui-components';
import { PANEL_ID } from '../tokens';
import { plugIcon, runsIcon } from './icons';
import { CommandIDs, IPanelContext } from './tokens';

/** Ids that go into the palette. */
export function addPanelCommands(context: IPanelContext): string[] {
  const { app, model, trans } = context;
  const { commands } = app;
  const described = { args: { type: 'object', properties: {} } } as const;
  commands.addCommand(CommandIDs.open, {
    label: trans.__('Training Runs'),
    caption: trans.__('Show the panel of compute targets, runs and GPUs'),
    icon: runsIcon,
    describedBy: described,
    execute: () => app.shell.activateById(PANEL_ID)
  });
  commands.addCommand(CommandIDs.connect, {
    label: trans.__('Connect Kernel to Training Runs'),
    caption: trans.__('Load the jupyter_amltrain extension in the kernel of the notebook'),
    icon: plugIcon,
    isEnabled: () => model.connection.state === 'not-loaded' || model.connection.state === 'missing',
    describedBy: described,
    execute: () => model.connect()
  });
  commands.addCommand(CommandIDs.refresh, {
    label: trans.__('Refresh Training Runs'),
    caption: trans.__('Ask the kernel for everything anew'),
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
