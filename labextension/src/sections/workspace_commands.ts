/** Commands about Azure ML workspaces. */

import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import { Acts, notify } from './acts';
import { cloudIcon } from './compute_icons';
import { ComputeSection, revealCompute } from './compute';
import { connectFromCell } from './workspace_line';

/** Commands on workspaces; the ids go into the palette. */
export function addWorkspaceCommands(context: IPanelContext): string[] {
  const { app, model, trans } = context;
  const { commands } = app;
  const ready = () => model.connection.state === 'ready';
  const describedBy = (description: string) => ({
    args: { type: 'object', properties: { workspace: { type: 'string', description } } }
  });
  const nameOf = (args: ReadonlyPartialJSONObject): string => {
    const named = typeof args['workspace'] === 'string' ? args['workspace'] : '';
    const row = model.workspaces.find(({ name, current }) => (named ? name === named : current));
    return row?.name ?? '';
  };

  commands.addCommand(CommandIDs.workspaceConnect, {
    label: trans.__('Connect Azure ML Workspace…'),
    caption: trans.__('Make the computes of an Azure ML workspace targets'),
    icon: args => (args['toolbar'] ? cloudIcon : undefined),
    isEnabled: ready,
    describedBy: describedBy('Name of a connected workspace, which is connected again; without one a form asks'),
    execute: async args => {
      if (typeof args['workspace'] !== 'string') {
        (await revealCompute(context))?.openConnect();
        return;
      }
      const errors = await connectFromCell(context, { name: args['workspace'] });
      const text = Object.values(errors).join('\n');
      notify({ wanted: { verb: 'connect', target: args['workspace'] }, done: false, text, line: '', errors }, false);
    }
  });
  commands.addCommand(CommandIDs.workspaceDisconnect, {
    label: trans.__('Disconnect Azure ML Workspace…'),
    caption: trans.__('Forget a workspace and its targets; nothing is done at Azure; asks first'),
    isEnabled: args => ready() && nameOf(args) !== '',
    describedBy: describedBy('Name of the workspace; the current one by default'),
    execute: async args => {
      const target = nameOf(args);
      if (target) {
        const outcome = await Acts.of(context).run({ verb: 'disconnect', target });
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
