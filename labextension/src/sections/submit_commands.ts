/** Commands that open the form of a submit for a cell, for cells, or for a file. */

import type { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { runIcon } from '@jupyterlab/ui-components';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import type { SubmitSection } from './submit';

/** The only selected `.py` file; empty when it is not one. */
function selectedScript(files: IFileBrowserFactory | null): string {
  const browser = files?.tracker.currentWidget;
  const items = browser ? Array.from(browser.selectedItems()) : [];
  return items.length === 1 && items[0].type !== 'directory' && /\.py$/i.test(items[0].path) ? items[0].path : '';
}

/** Commands of the Submit section; the ids go into the palette. */
export function addSubmitCommands(
  context: IPanelContext,
  show: () => SubmitSection,
  files: IFileBrowserFactory | null
): string[] {
  const { app, model, trans } = context;
  const { commands } = app;
  const hasNotebook = () => model.notebook !== null;

  commands.addCommand(CommandIDs.submitCell, {
    label: trans.__('Submit Cell as Training Run…'),
    caption: trans.__('Open the form that writes the submit line into the active cell'),
    icon: args => (args['toolbar'] ? runIcon : undefined),
    isEnabled: hasNotebook,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => show().prefill('cell')
  });
  commands.addCommand(CommandIDs.submitSelected, {
    label: trans.__('Submit Selected Cells as Training Run…'),
    caption: trans.__('Open the form that joins the selected cells in a new one with a submit line'),
    isEnabled: hasNotebook,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => show().prefill('selected')
  });
  commands.addCommand(CommandIDs.submitFile, {
    label: trans.__('Submit as Training Run…'),
    caption: trans.__('Open the form that writes the submit line of this .py file into the notebook'),
    isEnabled: args => hasNotebook() && (typeof args['file'] === 'string' || selectedScript(files) !== ''),
    isVisible: args => typeof args['file'] === 'string' || selectedScript(files) !== '',
    describedBy: {
      args: {
        type: 'object',
        properties: {
          file: { type: 'string', description: 'Path of a .py file from the root of the server; the selected one by default' }
        }
      }
    },
    execute: args => {
      const file = typeof args['file'] === 'string' ? args['file'] : selectedScript(files);
      if (file) {
        show().prefill({ file });
      }
    }
  });

  // The other two lie in the settings' schema, where a person can move them.
  app.contextMenu.addItem({ command: CommandIDs.submitSelected, selector: '.jp-Notebook .jp-CodeCell', rank: 11.6 });
  return [CommandIDs.submitCell, CommandIDs.submitSelected, CommandIDs.submitFile];
}
