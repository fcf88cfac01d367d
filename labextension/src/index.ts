/** Plugins of this extension; the implementation is in the modules that they import. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { GroupOutput } from './output/group';
import { NotebookHost } from './output/notebook';
import { RunOutput } from './output/renderer';
import { panel } from './panel/plugin';
import { GROUP_MIME, RUN_MIME } from './protocol';
import { DOMAIN, PLUGIN_ID, WIDGETS_PLUGIN_ID } from './tokens';

/** Rank before the image and text renderers of the same output. */
const RANK = -20;

const output: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Draws training runs in notebook outputs',
  autoStart: true,
  requires: [INotebookTracker, IRenderMimeRegistry],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    registry: IRenderMimeRegistry,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const add = (where: IRenderMimeRegistry, panel: NotebookPanel | null) => {
      const renderers = [
        [RUN_MIME, () => new RunOutput(trans, new NotebookHost(panel, where), app.commands)],
        [GROUP_MIME, () => new GroupOutput(trans, new NotebookHost(panel, where), app.commands)]
      ] as const;
      for (const [mime, createRenderer] of renderers) {
        // Records are never parsed as HTML, so the renderers are safe in untrusted notebooks.
        where.addFactory({ safe: true, mimeTypes: [mime], createRenderer }, RANK);
      }
    };
    // Consoles and viewers draw the record; only the renderer of a notebook has a kernel to query.
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
      // The token of the widget registry is in a library that only the widget manager provides, so
      // a static import would prevent the other plugins from loading without the manager.
      const { registerWidgets } = await import('./widgets/register');
      await registerWidgets(app, (translator ?? nullTranslator).load(DOMAIN));
    } catch (error) {
      console.info('jupyter-amltrain: no live charts: the widget manager is not available', error);
    }
  }
};

export default [output, widgets, panel];
