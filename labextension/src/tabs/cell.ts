/** The cell that shows a run: found in the open notebooks, brought into view and made to flash. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IOutputAreaModel } from '@jupyterlab/outputarea';
import { RUN_MIME } from '../protocol';

/** Milliseconds. */
const FLASH = 1600;
const REVEALED = 5000;

/** Index of the last cell whose output shows this run, or -1. */
export function cellOf(panel: NotebookPanel, handle: string): number {
  const cells = panel.content.model?.cells;
  for (let i = (cells?.length ?? 0) - 1; cells && i >= 0; i--) {
    const outputs = (cells.get(i) as unknown as { outputs?: IOutputAreaModel }).outputs;
    for (let k = 0; outputs && k < outputs.length; k++) {
      const record = outputs.get(k).data[RUN_MIME] as { handle?: string } | undefined;
      if (record?.handle === handle) {
        return i;
      }
    }
  }
  return -1;
}

/** Show the cell; false where no open notebook has it. */
export async function showCell(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  first: NotebookPanel | null,
  handle: string
): Promise<boolean> {
  const panels: NotebookPanel[] = first && !first.isDisposed ? [first] : [];
  tracker.forEach(panel => panels.push(panel));
  const panel = panels.find(found => cellOf(found, handle) >= 0);
  if (!panel) {
    return false;
  }
  app.shell.activateById(panel.id);
  await Promise.race([panel.revealed, new Promise(resolve => setTimeout(resolve, REVEALED))]);
  const { content } = panel;
  const index = cellOf(panel, handle);
  if (index < 0) {
    return false;
  }
  content.activeCellIndex = index;
  content.deselectAll();
  // A notebook that is long keeps what is far off the page out of it: it knows how to bring it back.
  await content.scrollToItem(index, 'start');
  const cell = content.widgets[index];
  cell?.ready.then(
    () => {
      cell.node.classList.remove('jp-AmlFlash');
      // Begin anew where it flashes already.
      void cell.node.offsetWidth;
      cell.node.classList.add('jp-AmlFlash');
      setTimeout(() => cell.node.classList.remove('jp-AmlFlash'), FLASH);
    },
    () => undefined
  );
  return true;
}
