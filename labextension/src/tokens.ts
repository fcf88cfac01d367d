/** Names that others may rely on. */
export const PLUGIN_ID = 'jupyter-amltrain:plugin';
export const WIDGETS_PLUGIN_ID = 'jupyter-amltrain:widgets';
export const PANEL_PLUGIN_ID = 'jupyter-amltrain:panel';

/** Id of the side panel's widget. */
export const PANEL_ID = 'jupyter-amltrain-panel';

/** Domain of the translations. */
export const DOMAIN = 'jupyter_amltrain';

/** Command that loads the extension in a kernel. */
export const LOAD_COMMAND = '%load_ext jupyter_amltrain';

/** Command that installs the package in the kernel's environment. */
export const INSTALL_COMMAND = '%pip install jupyter-amltrain';
