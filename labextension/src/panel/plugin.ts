/** The panel as a plugin: everything it may use besides notebooks is optional. */

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ComputeSection } from '../sections/compute';
import { addComputeCommands } from '../sections/compute_commands';
import { GpusSection } from '../sections/gpus';
import { RunsSection } from '../sections/runs';
import { SubmitSection } from '../sections/submit';
import { addSubmitCommands } from '../sections/submit_commands';
import { addWorkspaceCommands } from '../sections/workspace_commands';
import { addTabCommands } from '../tabs/commands';
import { DOMAIN, PANEL_ID, PANEL_PLUGIN_ID } from '../tokens';
import { addRunCommands, addRunMenu } from './commands';
import { PanelModel } from '../kernel/model';
import { notifyTransitions } from './notifications';
import { TrainingPanel } from './panel';
import { addPanelCommands } from './panel_commands';
import { addToRunning } from './running';
import type { ISection } from './sections';
import { PanelSettings } from './settings';
import { addStatusItem } from './statusbar';
import type { IPanelContext } from './tokens';

/** Behind JupyterLab's own panels. */
const RANK = 900;

export const panel: JupyterFrontEndPlugin<void> = {
  id: PANEL_PLUGIN_ID,
  description: 'A side panel of compute targets, training runs and GPUs',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [
    ITranslator,
    ISettingRegistry,
    ILayoutRestorer,
    ICommandPalette,
    IStatusBar,
    IRunningSessionManagers,
    IFileBrowserFactory,
    IStateDB
  ],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    translator: ITranslator | null,
    registry: ISettingRegistry | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    statusBar: IStatusBar | null,
    running: IRunningSessionManagers | null,
    files: IFileBrowserFactory | null,
    db: IStateDB | null
  ): void => {
    const language = translator ?? nullTranslator;
    const trans = language.load(DOMAIN);
    const settings = new PanelSettings();
    const model = new PanelModel(tracker, settings);
    const context: IPanelContext = { app, model, tracker, trans, settings };
    registry
      ?.load(PANEL_PLUGIN_ID)
      .then(found => settings.follow(found))
      .catch(error => console.warn('jupyter-amltrain: the settings of the panel cannot be read', error));

    const ids = [
      ...addPanelCommands(context),
      ...addRunCommands(context),
      ...addTabCommands(context, restorer),
      ...addComputeCommands(context),
      ...addWorkspaceCommands(context),
      ...addSubmitCommands(context, () => showSubmit(), files)
    ];
    addRunMenu(context);
    const submit = new SubmitSection(context);
    // Runs are what people live with: what is left is theirs.
    const sections: ISection[] = [
      { name: 'compute', widget: new ComputeSection(context), least: 100, wish: { share: 0.3 }, greed: 0 },
      { name: 'runs', widget: new RunsSection(context), least: 140, wish: 300, greed: 3 },
      { name: 'gpus', widget: new GpusSection(context), least: 110, wish: 240, greed: 2 },
      { name: 'submit', widget: submit, least: 110, wish: { share: 0.5 }, greed: 1, closed: true }
    ];
    const widget = new TrainingPanel(context, sections, language, db);
    const showSubmit = () => {
      app.shell.activateById(PANEL_ID);
      widget.reveal(submit);
      return submit;
    };
    app.shell.add(widget, 'left', { rank: RANK, type: 'Training Runs' });
    restorer?.add(widget, PANEL_ID);

    const category = trans.__('Training Runs');
    ids.forEach(command => palette?.addItem({ command, category }));
    if (statusBar) {
      addStatusItem(context, statusBar);
    }
    if (running) {
      addToRunning(context, running);
    }
    notifyTransitions(context);
  }
};
