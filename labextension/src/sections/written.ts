/** Lines that a click writes into the notebook and runs: what it did is seen, can be repeated, and is shared. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IPanelContext } from '../panel/tokens';

/** Put code into a new cell below cell `at`, which becomes the active one; `false`: nothing can be written. */
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

/** Run the active cell of a notebook; the focus stays where it is. */
export async function runActive({ app, tracker }: IPanelContext, notebook: NotebookPanel): Promise<void> {
  if (tracker.currentWidget !== notebook) {
    app.shell.activateById(notebook.id);
  }
  await app.commands.execute('notebook:run-cell', { activate: false });
}
