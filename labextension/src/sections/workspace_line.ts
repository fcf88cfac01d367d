/** The line that connects an Azure ML workspace, written into the notebook and run. */

import type { IPanelContext } from '../panel/tokens';
import type { Values } from './fields';
import { insertBelow, runActive } from './written';

/**
 * Write the line that connects into a new cell below the active one, and run it there: a sign-in shows its link and
 * its code below the cell.
 *
 * What is wrong, by field; nothing is written then.
 */
export async function connectFromCell(context: IPanelContext, values: Values): Promise<Readonly<Record<string, string>>> {
  const { model, trans } = context;
  const { notebook } = model;
  const { line, errors } = await model.request('connect', { values });
  if (Object.keys(errors).length > 0) {
    return errors;
  }
  if (!notebook || notebook.isDisposed || notebook !== model.notebook) {
    return { '': trans.__('Another notebook is in front now: nothing was written.') };
  }
  const { content } = notebook;
  if (!insertBelow(notebook, content.activeCellIndex, line)) {
    return { '': trans.__('The notebook cannot be written: type the line into another one.') };
  }
  const ran = runActive(context, notebook);
  // What comes below it is what a person has to see.
  await content.scrollToItem(content.activeCellIndex, 'center').catch(() => undefined);
  void ran;
  return {};
}
