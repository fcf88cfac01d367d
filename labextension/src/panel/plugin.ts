/** Plugin of the panel and its settings. Every dependency except the notebook tracker is optional. */

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';
import { PanelModel } from '../kernel/model';
import { PanelKernel } from '../kernel/panelKernel';
import { ComputeSection } from '../sections/compute';
import { addWorkspaceCommands } from '../azure/workspaceCommands';
import { addComputeCommands } from '../sections/computeCommands';
import { GpusSection } from '../sections/gpus';
import { RunsSection } from '../sections/runs';
import { addSubmitCommands, SubmitSection } from '../sections/submit';
import { addTabCommands } from '../tabs/commands';
import { DOMAIN, PANEL_ID, PANEL_PLUGIN_ID } from '../tokens';
import type { ISection } from './accordionLayout';
import { addPanelCommands, addRunCommands, addRunMenu } from './commands';
import { notifyTransitions } from './notifications';
import { TrainingPanel } from './panel';
import { addToRunning } from './running';
import { addStarter } from './starter';
import { addStatusItem } from './statusbar';
import type { IPanelContext, IPanelSettings } from './tokens';

/** Rank in the side bar, after JupyterLab's own panels. */
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
    IStateDB,
    IDocumentManager,
    ILauncher,
    IRenderMimeRegistry
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
    db: IStateDB | null,
    documents: IDocumentManager | null,
    launcher: ILauncher | null,
    rendermime: IRenderMimeRegistry | null
  ): void => {
    const language = translator ?? nullTranslator;
    const trans = language.load(DOMAIN);
    const settings = new PanelSettings();
    const { sessions, kernelspecs } = app.serviceManager;
    const model = new PanelModel(tracker, settings, new PanelKernel(sessions, kernelspecs));
    const context: IPanelContext = { app, model, tracker, trans, settings, rendermime };
    registry
      ?.load(PANEL_PLUGIN_ID)
      .then(stored => settings.follow(stored))
      .catch(error => console.warn('jupyter-amltrain: the settings of the panel cannot be read', error));

    const ids = [
      ...addPanelCommands(context),
      ...addStarter(context, launcher),
      ...addRunCommands(context),
      ...addTabCommands(context, restorer),
      ...addComputeCommands(context),
      ...addWorkspaceCommands(context),
      ...addSubmitCommands(context, () => showSubmit(), files)
    ];
    addRunMenu(context);
    const submit = new SubmitSection(context, documents);
    // The list of runs is used most, so it gets the remaining height.
    const sections: ISection[] = [
      { name: 'compute', widget: new ComputeSection(context), minimum: 90, preferred: { share: 0.3 }, flex: 0 },
      { name: 'runs', widget: new RunsSection(context), minimum: 170, preferred: 300, flex: 3 },
      { name: 'gpus', widget: new GpusSection(context), minimum: 120, preferred: 240, flex: 2 },
      { name: 'submit', widget: submit, minimum: 300, preferred: { share: 0.5 }, flex: 1, closed: true }
    ];
    const widget = new TrainingPanel(context, sections, language, db);
    const showSubmit = () => {
      app.shell.activateById(PANEL_ID);
      widget.reveal(submit);
      return submit;
    };
    app.shell.add(widget, 'left', { rank: RANK, type: 'Training runs' });
    restorer?.add(widget, PANEL_ID);

    const category = trans.__('Training runs');
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

class PanelSettings implements IPanelSettings {
  autoConnect = false;
  ownKernel = true;
  notifyEnded = true;
  notifyAttention = true;
  watchTarget = true;
  statusBarSeconds = 30;

  get changed(): ISignal<IPanelSettings, void> {
    return this._changed;
  }

  /** Apply the settings and every later change of them. */
  follow(settings: ISettingRegistry.ISettings): void {
    const read = () => {
      const values = settings.composite as Record<string, unknown>;
      const flag = (name: string, other: boolean) => (typeof values[name] === 'boolean' ? (values[name] as boolean) : other);
      this.autoConnect = flag('autoConnect', false);
      this.ownKernel = flag('ownKernel', true);
      this.notifyEnded = flag('notifyEnded', true);
      this.notifyAttention = flag('notifyAttention', true);
      this.watchTarget = flag('watchTarget', true);
      const seconds = values.statusBarSeconds;
      this.statusBarSeconds = typeof seconds === 'number' && seconds >= 0 ? seconds : 30;
      this._changed.emit();
    };
    read();
    settings.changed.connect(read);
  }

  private readonly _changed = new Signal<IPanelSettings, void>(this);
}
