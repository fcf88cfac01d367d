/** Buttons of a section's toolbar. */

import { LabIcon, ToolbarButton } from '@jupyterlab/ui-components';

/** A button that does something once: newer JupyterLabs take every click on one for a switch and leave it pressed. */
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
