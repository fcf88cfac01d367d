/** Names that others may rely on. */
export const PLUGIN_ID = 'jupyter-amltrain:plugin';
export const WIDGETS_PLUGIN_ID = 'jupyter-amltrain:widgets';
export const PANEL_PLUGIN_ID = 'jupyter-amltrain:panel';

/** Id of the side panel's widget. */
export const PANEL_ID = 'jupyter-amltrain-panel';

/** Domain of the translations. */
export const DOMAIN = 'jupyter_amltrain';

/** What a person types to connect a kernel that has not loaded us. */
export const LOAD_COMMAND = '%load_ext jupyter_amltrain';

/** What a person types to install us in the kernel's environment. */
export const INSTALL_COMMAND = '%pip install jupyter-amltrain';
