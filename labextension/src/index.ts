/** The plugins of this extension; everything else is in the modules they name. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { NotebookHost } from './output/notebook';
import { RunOutput } from './output/renderer';
import { panel } from './panel/plugin';
import { RUN_MIME } from './protocol';
import { DOMAIN, PLUGIN_ID, WIDGETS_PLUGIN_ID } from './tokens';

/** Before the picture and the text that lie in the same output. */
const RANK = -20;

const output: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Draws training runs in notebook outputs',
  autoStart: true,
  requires: [INotebookTracker, IRenderMimeRegistry],
  optional: [ITranslator],
  activate: (
    _app: JupyterFrontEnd,
    tracker: INotebookTracker,
    registry: IRenderMimeRegistry,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const add = (where: IRenderMimeRegistry, panel: NotebookPanel | null) =>
      where.addFactory(
        // Nothing of the record is ever parsed as HTML: it may be drawn in a notebook nobody trusts.
        { safe: true, mimeTypes: [RUN_MIME], createRenderer: () => new RunOutput(trans, new NotebookHost(panel)) },
        RANK
      );
    // Consoles and viewers draw the record; only a notebook's own renderer has a kernel to ask.
    add(registry, null);
    tracker.forEach(panel => add(panel.content.rendermime, panel));
    tracker.widgetAdded.connect((_, panel) => add(panel.content.rendermime, panel));
  }
};

const widgets: JupyterFrontEndPlugin<void> = {
  id: WIDGETS_PLUGIN_ID,
  description: 'Live charts of training runs',
  autoStart: true,
  optional: [ITranslator],
  activate: async (app: JupyterFrontEnd, translator: ITranslator | null): Promise<void> => {
    try {
      // The token of the widget registry lies in a library that only the widget manager brings, so
      // naming it above would keep everything else from loading where there is no manager.
      const { registerWidgets } = await import('./widgets/register');
      await registerWidgets(app, (translator ?? nullTranslator).load(DOMAIN));
    } catch (error) {
      console.info('jupyter-amltrain: no live charts: the widget manager is not available', error);
    }
  }
};

export default [output, widgets, panel];
