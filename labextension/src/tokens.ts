/** Public identifiers of the extension. */
export const PLUGIN_ID = 'jupyter-amltrain:plugin';
export const WIDGETS_PLUGIN_ID = 'jupyter-amltrain:widgets';
export const PANEL_PLUGIN_ID = 'jupyter-amltrain:panel';

/** Id of the side panel widget. */
export const PANEL_ID = 'jupyter-amltrain-panel';

/** Translation domain. */
export const DOMAIN = 'jupyter_amltrain';

/** Command that loads the extension in a kernel. */
export const LOAD_COMMAND = '%load_ext jupyter_amltrain';

/** Command that installs the package in the kernel's environment. */
export const INSTALL_COMMAND = '%pip install jupyter-amltrain';
