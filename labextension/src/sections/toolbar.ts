/** Buttons of a section's toolbar. */

import { LabIcon, ToolbarButton } from '@jupyterlab/ui-components';

/** Create a button without a pressed state: newer versions of JupyterLab treat every toolbar button as a toggle. */
export function toolbarButton(icon: LabIcon, tooltip: string, click: () => void): ToolbarButton {
  const created: ToolbarButton = new ToolbarButton({
    icon,
    tooltip,
    onClick: () => {
      created.pressed = false;
      click();
    }
  });
  return created;
}
