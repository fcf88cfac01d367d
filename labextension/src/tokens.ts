/** Names that others may rely on. */
export const PLUGIN_ID = 'jupyter-amltrain:plugin';
export const WIDGETS_PLUGIN_ID = 'jupyter-amltrain:widgets';

/** Domain of the translations. */
export const DOMAIN = 'jupyter_amltrain';

/** What a person types to connect a kernel that has not loaded us. */
export const LOAD_COMMAND = '%load_ext jupyter_amltrain';
