/** Commands on compute targets. */

import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { selection } from '../panel/selection';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import type { ITargetAction, ITargetRow } from '../protocol';
import { ComputeSection, revealCompute } from './compute';
import { TargetActions, notify } from './targetActions';

/** `{ target }` names a target; by default, it is the selected one or the current one. */
const DESCRIBED = {
  args: {
    type: 'object',
    properties: {
      target: { type: 'string', description: 'Name of the compute target; the selected one or the one in use by default' }
    }
  }
} as const;

/** Add the commands on targets and their context menu, and return the ids for the command palette. */
export function addComputeCommands(context: IPanelContext): string[] {
  const { app, model, trans } = context;
  const { commands } = app;

  const rowOf = (args: ReadonlyPartialJSONObject): ITargetRow | undefined => {
    const name = typeof args['target'] === 'string' ? args['target'] : ComputeSection.of(context)?.selected;
    return model.target(name || model.current);
  };
  const actOf = (args: ReadonlyPartialJSONObject, verb: string): ITargetAction | undefined =>
    rowOf(args)?.acts.find(act => act.verb === verb);

  const add = (id: string, verb: string, short: string, long: string, caption: string) => {
    commands.addCommand(id, {
      // The context menu of a row needs only the short label.
      label: args => (args['short'] ? short : long),
      caption: args => actOf(args, verb)?.disabled_reason || caption,
      isEnabled: args => {
        const act = actOf(args, verb);
        return model.connection.ready && act !== undefined && act.disabled_reason === '';
      },
      describedBy: DESCRIBED,
      execute: async args => {
        const row = rowOf(args);
        const act = actOf(args, verb);
        if (!row || !act) {
          return;
        }
        const outcome = await TargetActions.of(context).perform(row.name, act);
        if (outcome && ComputeSection.of(context) === null) {
          notify(outcome, false);
        }
      }
    });
  };

  add(CommandIDs.targetUse, 'use', trans.__('Use'), trans.__('Use compute target'), trans.__('Submit new runs to this target'));
  add(CommandIDs.targetTest, 'test', trans.__('Test'), trans.__('Test compute target'), trans.__('Check whether the target can run jobs now'));
  add(CommandIDs.targetStart, 'start', trans.__('Start'), trans.__('Start compute target'), trans.__('Start the machines of the target'));
  add(CommandIDs.targetStop, 'stop', trans.__('Stop'), trans.__('Stop compute target'), trans.__('Stop the machines of the target'));
  add(CommandIDs.targetScale, 'scale', trans.__('Change…'), trans.__('Change compute target…'), trans.__('Change its number of nodes and its idle time'));
  add(CommandIDs.targetDelete, 'delete', trans.__('Delete…'), trans.__('Delete compute target…'), trans.__('Delete the target after a confirmation'));

  commands.addCommand(CommandIDs.targetNew, {
    label: trans.__('New compute target…'),
    caption: trans.__('Create or attach a compute target'),
    isEnabled: () => model.connection.ready,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: async () => {
      (await revealCompute(context))?.openNew();
    }
  });

  const changed = () => {
    [...ALL, CommandIDs.targetGpus].filter(id => commands.hasCommand(id)).forEach(id => commands.notifyCommandChanged(id));
  };
  selection.changed.connect(changed);
  model.targetsChanged.connect(changed);
  model.connectionChanged.connect(changed);

  const selector = '.jp-AmlTarget';
  const args = { short: true };
  [CommandIDs.targetUse, CommandIDs.targetTest, CommandIDs.targetStart, CommandIDs.targetStop, CommandIDs.targetScale].forEach(
    (command, at) => app.contextMenu.addItem({ command, selector, rank: at, args })
  );
  app.contextMenu.addItem({ command: CommandIDs.targetGpus, selector, rank: 10, args });
  app.contextMenu.addItem({ type: 'separator', selector, rank: 20 });
  app.contextMenu.addItem({ command: CommandIDs.targetDelete, selector, rank: 21, args });
  return [...ALL];
}

const ALL = [
  CommandIDs.targetNew,
  CommandIDs.targetUse,
  CommandIDs.targetTest,
  CommandIDs.targetStart,
  CommandIDs.targetStop,
  CommandIDs.targetScale,
  CommandIDs.targetDelete
];
