/** Commands that show a run: its cell, dashboard, log, GPUs, or a comparison with another run. */

import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IOutputAreaModel } from '@jupyterlab/outputarea';
import type { LabIcon } from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { Widget } from '@lumino/widgets';
import { cellIcon, compareIcon, gpuIcon, logIcon, runsIcon } from '../panel/icons';
import { chosenRuns, selection } from '../panel/selection';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import { RUN_MIME } from '../protocol';
import { choiceOf, IN_USE, targetSource } from '../sections/gpuSource';
import { CompareTab, titleOf } from './compare';
import { DashboardTab } from './dashboard';
import { LogTab } from './log';

type Args = ReadonlyPartialJSONObject;

const HANDLE = {
  args: {
    type: 'object',
    properties: { handle: { type: 'string', description: 'Handle of the run, e.g. local/my-run-1; the selected one by default' } }
  }
} as const;

const LOG = {
  args: {
    type: 'object',
    properties: {
      ...HANDLE.args.properties,
      child: { type: 'string', description: 'Id of the step or trial whose log to show' },
      name: { type: 'string', description: 'Its name' }
    }
  }
} as const;

const HANDLES = {
  args: {
    type: 'object',
    properties: {
      handles: {
        type: 'array',
        items: { type: 'string' },
        minItems: 2,
        maxItems: 2,
        description: 'Handles of two runs; the selected ones by default'
      }
    }
  }
} as const;

const TARGET = {
  args: {
    type: 'object',
    properties: { target: { type: 'string', description: 'Name of the target; the selected one or the one in use by default' } }
  }
} as const;

/** Handle of the single selected run; empty for none or several. */
function one(args: Args): string {
  const handles = chosenRuns(args);
  return handles.length === 1 ? handles[0] : '';
}

/** Most runs that are compared side by side: each has a color. */
const MAX_COMPARED = 6;

/** Handles of the selected runs that can be compared; null for one or too many. */
function several(args: Args): string[] | null {
  const handles = [...new Set(chosenRuns(args))];
  return handles.length >= 2 && handles.length <= MAX_COMPARED ? handles : null;
}

let ids = 0;

/** Tabs of one kind, at most one for each run, restored after a reload. */
class Tabs<T extends Widget> {
  constructor(
    private readonly _context: IPanelContext,
    namespace: string,
    private readonly _icon: LabIcon,
    private readonly _keyOf: (content: T) => string
  ) {
    this.tracker = new WidgetTracker<MainAreaWidget<T>>({ namespace: `jupyter-amltrain-${namespace}` });
  }

  readonly tracker: WidgetTracker<MainAreaWidget<T>>;

  open(key: string, label: string, make: () => T): MainAreaWidget<T> {
    const { shell } = this._context.app;
    let tab = this.tracker.find(result => this._keyOf(result.content) === key);
    if (!tab) {
      const content = make();
      content.title.label = content.title.label || label;
      content.title.icon = this._icon;
      content.title.closable = true;
      tab = new MainAreaWidget<T>({ content });
      tab.id = `jp-aml-tab-${++ids}`;
      tab.toolbar.hide();
      void this.tracker.add(tab);
      shell.add(tab, 'main', { type: 'Training run' });
    }
    shell.activateById(tab.id);
    return tab;
  }
}

/**
 * Add the commands of the tabs.
 *
 * @returns ids of the commands for the palette
 */
export function addTabCommands(context: IPanelContext, restorer: ILayoutRestorer | null): string[] {
  const { app, model, trans } = context;
  const { commands } = app;
  const nameOf = (handle: string) => model.run(handle)?.name || handle;
  const dashboards = new Tabs<DashboardTab>(context, 'dashboards', runsIcon, content => content.handle);
  const logs = new Tabs<LogTab>(context, 'logs', logIcon, content => `${content.handle} ${content.child}`);
  const pair = (handles: readonly string[]) => handles.join('\n');
  const compares = new Tabs<CompareTab>(context, 'compares', compareIcon, content => pair(content.handles));
  const some = (args: Args) => one(args) !== '';
  /** Short label for the context menu of a row, where the subject is clear. */
  const label = (short: string, long: string) => (args: Args) => (args.short ? short : long);

  commands.addCommand(CommandIDs.runTab, {
    label: label(trans.__('Open dashboard in a tab'), trans.__('Open run dashboard in a tab')),
    caption: trans.__('Open live charts of the run in the main area'),
    icon: runsIcon,
    isEnabled: some,
    describedBy: HANDLE,
    execute: args => {
      const handle = one(args);
      return handle ? dashboards.open(handle, nameOf(handle), () => new DashboardTab(context, handle)) : undefined;
    }
  });

  commands.addCommand(CommandIDs.runOpen, {
    label: label(trans.__('Go to cell'), trans.__('Go to cell of run')),
    caption: trans.__('Go to cell (opens the dashboard if its notebook is closed)'),
    icon: cellIcon,
    isEnabled: some,
    describedBy: HANDLE,
    execute: async args => {
      const handle = one(args);
      if (handle && !(await showCell(app, context.tracker, model.notebook, handle))) {
        await commands.execute(CommandIDs.runTab, { handle });
      }
    }
  });

  commands.addCommand(CommandIDs.runLogs, {
    label: label(trans.__('Open log'), trans.__('Open run log')),
    caption: trans.__('Open log'),
    icon: logIcon,
    isEnabled: some,
    describedBy: LOG,
    execute: args => {
      const handle = one(args);
      const [child, name] = [args.child, args.name].map(text => (typeof text === 'string' ? text : ''));
      return handle
        ? logs.open(`${handle} ${child}`, name || nameOf(handle), () => new LogTab(context, handle, child, name))
        : undefined;
    }
  });

  commands.addCommand(CommandIDs.runCompare, {
    label: label(trans.__('Compare'), trans.__('Compare runs')),
    caption: trans.__('Compare two to six selected runs side by side'),
    icon: compareIcon,
    isEnabled: args => several(args) !== null,
    describedBy: HANDLES,
    execute: args => {
      const handles = several(args);
      return handles
        ? compares.open(pair(handles), titleOf(handles.map(nameOf), trans), () => new CompareTab(context, handles))
        : undefined;
    }
  });

  /** Show the panel, then the GPUs section. */
  const reveal = async (source: string) => {
    await commands.execute(CommandIDs.open);
    choiceOf(context).reveal(source);
  };

  commands.addCommand(CommandIDs.runGpus, {
    label: label(trans.__('Show GPUs'), trans.__('Show GPUs of run')),
    caption: trans.__('Show GPU charts of the run in the side panel'),
    icon: gpuIcon,
    isEnabled: some,
    describedBy: HANDLE,
    execute: args => (one(args) ? reveal(one(args)) : undefined)
  });

  const targetName = (args: Args) =>
    (typeof args.target === 'string' && args.target) || selection.target || model.current;
  commands.addCommand(CommandIDs.targetGpus, {
    label: label(trans.__('Watch GPUs'), trans.__('Watch GPUs of compute target')),
    caption: trans.__('Sample the GPUs of the target in the side panel'),
    icon: gpuIcon,
    isEnabled: args => targetName(args) !== '' && model.connection.ready,
    describedBy: TARGET,
    execute: args => {
      const name = targetName(args);
      return name ? reveal(name === model.current ? IN_USE : targetSource(name)) : undefined;
    }
  });

  if (restorer) {
    void restorer.restore(dashboards.tracker, {
      command: CommandIDs.runTab,
      args: tab => ({ handle: tab.content.handle }),
      name: tab => tab.content.handle
    });
    void restorer.restore(logs.tracker, {
      command: CommandIDs.runLogs,
      args: ({ content }) => ({ handle: content.handle, child: content.child, name: content.name }),
      name: tab => `${tab.content.handle} ${tab.content.child}`.trim()
    });
    void restorer.restore(compares.tracker, {
      command: CommandIDs.runCompare,
      args: tab => ({ handles: [...tab.content.handles] }),
      name: tab => pair(tab.content.handles)
    });
  }
  return [
    CommandIDs.runOpen,
    CommandIDs.runTab,
    CommandIDs.runLogs,
    CommandIDs.runCompare,
    CommandIDs.runGpus,
    CommandIDs.targetGpus
  ];
}

/** Durations in milliseconds. */
const FLASH_MS = 1600;
const REVEAL_TIMEOUT_MS = 5000;

/** Index of the last cell whose output shows the run, or -1. */
function cellOf(panel: NotebookPanel, handle: string): number {
  const cells = panel.content.model?.cells;
  for (let i = (cells?.length ?? 0) - 1; cells && i >= 0; i--) {
    const outputs = (cells.get(i) as unknown as { outputs?: IOutputAreaModel }).outputs;
    for (let k = 0; outputs && k < outputs.length; k++) {
      const record = outputs.get(k).data[RUN_MIME] as { handle?: string } | undefined;
      if (record?.handle === handle) {
        return i;
      }
    }
  }
  return -1;
}

/** Scroll to the cell of a run; false if no open notebook contains it. */
async function showCell(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  first: NotebookPanel | null,
  handle: string
): Promise<boolean> {
  const panels: NotebookPanel[] = first && !first.isDisposed ? [first] : [];
  tracker.forEach(panel => panels.push(panel));
  const panel = panels.find(result => cellOf(result, handle) >= 0);
  if (!panel) {
    return false;
  }
  app.shell.activateById(panel.id);
  await Promise.race([panel.revealed, new Promise(resolve => setTimeout(resolve, REVEAL_TIMEOUT_MS))]);
  const { content } = panel;
  const index = cellOf(panel, handle);
  if (index < 0) {
    return false;
  }
  content.activeCellIndex = index;
  content.deselectAll();
  // A long notebook detaches cells that are far out of view; `scrollToItem` attaches them again.
  await content.scrollToItem(index, 'start');
  const cell = content.widgets[index];
  cell?.ready.then(
    () => {
      cell.node.classList.remove('jp-AmlFlash');
      // Restart a flash that is in progress.
      void cell.node.offsetWidth;
      cell.node.classList.add('jp-AmlFlash');
      setTimeout(() => cell.node.classList.remove('jp-AmlFlash'), FLASH_MS);
    },
    () => undefined
  );
  return true;
}
