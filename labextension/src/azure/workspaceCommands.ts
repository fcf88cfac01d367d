/** Commands on workspaces. */

import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { cloudIcon } from '../panel/icons';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import { ComputeSection, revealCompute } from '../sections/compute';
import { connectFromCell } from '../sections/notebookEdits';
import { TargetActions, notify } from '../sections/targetActions';
import { connectText } from './texts';

/** Add the commands on workspaces and return the ids for the command palette. */
export function addWorkspaceCommands(context: IPanelContext): string[] {
  const { app, model, trans } = context;
  const { commands } = app;
  const ready = () => model.connection.ready;
  const describedBy = (description: string) => ({
    args: { type: 'object', properties: { workspace: { type: 'string', description } } }
  });
  const nameOf = (args: ReadonlyPartialJSONObject): string => {
    const named = typeof args['workspace'] === 'string' ? args['workspace'] : '';
    const row = model.workspaces.find(({ name, current }) => (named ? name === named : current));
    return row?.name ?? '';
  };

  commands.addCommand(CommandIDs.workspaceConnect, {
    label: connectText(trans),
    caption: trans.__('Add the computes of an Azure ML workspace as targets'),
    icon: args => (args['toolbar'] ? cloudIcon : undefined),
    isEnabled: ready,
    describedBy: describedBy('Name of a connected workspace to connect again; without a name, a form opens'),
    execute: async args => {
      if (typeof args['workspace'] !== 'string') {
        (await revealCompute(context))?.openConnect();
        return;
      }
      const errors = await connectFromCell(context, { name: args['workspace'] });
      const text = Object.values(errors).join('\n');
      notify({ request: { verb: 'connect', target: args['workspace'] }, done: false, text, line: '', errors }, false);
    }
  });
  commands.addCommand(CommandIDs.workspaceDisconnect, {
    label: trans.__('Disconnect Azure ML workspace…'),
    caption: trans.__('Remove a workspace and its targets here, after a confirmation; nothing changes in Azure'),
    isEnabled: args => ready() && nameOf(args) !== '',
    describedBy: describedBy('Name of the workspace; the current one by default'),
    execute: async args => {
      const target = nameOf(args);
      if (target) {
        const outcome = await TargetActions.of(context).run({ verb: 'disconnect', target });
        if (ComputeSection.of(context) === null) {
          notify(outcome, false);
        }
      }
    }
  });

  const ids = [CommandIDs.workspaceConnect, CommandIDs.workspaceDisconnect];
  const changed = () => ids.forEach(id => commands.notifyCommandChanged(id));
  model.targetsChanged.connect(changed);
  model.connectionChanged.connect(changed);
  return ids;
}
