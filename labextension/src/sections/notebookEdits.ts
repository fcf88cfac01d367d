/** Code lines that the panel writes into the notebook and runs there: visible, repeatable and shared. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IPanelContext } from '../panel/tokens';
import type { Values } from './fields';

/** Insert code in a new active cell below cell `at`; `false`: the notebook cannot be edited. */
export function insertBelow(notebook: NotebookPanel, at: number, source: string): boolean {
  const { content } = notebook;
  const shared = content.model?.sharedModel;
  if (!shared || content.model?.readOnly) {
    return false;
  }
  shared.transact(() => void shared.insertCell(at + 1, { cell_type: 'code', source, metadata: {} }));
  content.deselectAll();
  content.activeCellIndex = at + 1;
  return true;
}

/** Run the active cell of a notebook without moving the focus. */
export async function runActive({ app, tracker }: IPanelContext, notebook: NotebookPanel): Promise<void> {
  if (tracker.currentWidget !== notebook) {
    app.shell.activateById(notebook.id);
  }
  await app.commands.execute('notebook:run-cell', { activate: false });
}

/**
 * Write the line that connects into a new cell below the active one, and run it there: a sign-in shows its link and
 * its code below the cell.
 *
 * Returns errors by field; with errors, no cell is written.
 */
export async function connectFromCell(context: IPanelContext, values: Values): Promise<Readonly<Record<string, string>>> {
  const { model, trans } = context;
  const { notebook } = model;
  const { line, errors } = await model.request('connect', { values });
  if (Object.keys(errors).length > 0) {
    return errors;
  }
  if (!notebook || notebook.isDisposed || notebook !== model.notebook) {
    return { '': trans.__('Nothing was written: another notebook is active now.') };
  }
  const { content } = notebook;
  if (!insertBelow(notebook, content.activeCellIndex, line)) {
    return { '': trans.__('Nothing was written: the notebook is read-only. Type the line into another notebook.') };
  }
  const ran = runActive(context, notebook);
  // Scroll to the output below the cell, which the user has to see.
  await content.scrollToItem(content.activeCellIndex, 'center').catch(() => undefined);
  void ran;
  return {};
}
