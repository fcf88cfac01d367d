/** A first notebook, from a card of the launcher or the command palette. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ILauncher } from '@jupyterlab/launcher';
import type { TranslationBundle } from '@jupyterlab/translation';
import { failed } from './commands';
import { runsIcon } from './icons';
import { CommandIDs, IPanelContext } from './tokens';

/** File name of the notebook; Jupyter's `Untitled` name stays where this one is taken. */
const FILE_NAME = 'first-training-run.ipynb';
/** Rank among the cards, after the notebooks of the kernels. */
const RANK = 900;

const LOAD = '%load_ext jupyter_amltrain';

const TRAIN = `%%aml_submit --param rate=0.3 --out loss --wait
import time
import mlflow

weight = 0.0
for step in range(1, 31):
    error = weight - 2.0
    weight -= rate * error
    loss = error ** 2
    mlflow.log_metric("loss", loss, step=step)
    print(f"step {step}: loss {loss:.4f}", flush=True)
    time.sleep(0.2)`;

/** Cells of the notebook: type and source. */
function cells(trans: TranslationBundle): (readonly [type: 'code' | 'markdown', source: string])[] {
  return [
    ['markdown', `# ${trans.__('First training run')}\n\n${trans.__('Run the cells from top to bottom (Shift+Enter).')}`],
    ['code', LOAD],
    [
      'markdown',
      trans.__(
        'The next cell becomes a training run: a process of its own, tracked with MLflow, which continues without the kernel. ' +
          '`--param` sets a variable of the script, `--out` returns one, and `--wait` lets the cell wait for the end.'
      )
    ],
    ['code', TRAIN],
    ['markdown', trans.__('Its result is a variable of this notebook:')],
    ['code', 'loss'],
    ['markdown', trans.__('All runs of this machine, with their last metrics. The side panel lists them too.')],
    ['code', '%aml_runs']
  ];
}

async function createNotebook({ app, trans }: IPanelContext, folder: string): Promise<void> {
  const { contents, kernelspecs } = app.serviceManager;
  await kernelspecs.ready;
  const specs = kernelspecs.specs;
  const names = [specs?.default ?? '', ...Object.keys(specs?.kernelspecs ?? {})];
  const name = names.find(each => specs?.kernelspecs[each]?.language.toLowerCase() === 'python') ?? 'python3';
  const made = await contents.newUntitled({ path: folder, type: 'notebook' });
  const content = {
    nbformat: 4,
    nbformat_minor: 4,
    metadata: { kernelspec: { name, display_name: specs?.kernelspecs[name]?.display_name ?? name, language: 'python' } },
    cells: cells(trans).map(([type, source]) => ({
      cell_type: type,
      metadata: {},
      source,
      ...(type === 'code' ? { execution_count: null, outputs: [] } : {})
    }))
  };
  await contents.save(made.path, { type: 'notebook', format: 'json', content });
  const wanted = made.path.slice(0, made.path.lastIndexOf('/') + 1) + FILE_NAME;
  const { path } = await contents.rename(made.path, wanted).catch(() => made);
  await app.commands.execute('docmanager:open', { path, factory: 'Notebook', kernel: { name } });
}

/** Add the command and, where there is a launcher, its card. Returns the ids for the command palette. */
export function addStarter(context: IPanelContext, launcher: ILauncher | null): string[] {
  const { app, trans }: { app: JupyterFrontEnd; trans: TranslationBundle } = context;
  app.commands.addCommand(CommandIDs.firstNotebook, {
    label: trans.__('First training run'),
    caption: trans.__('Create a notebook with a cell that becomes a training run'),
    icon: runsIcon,
    describedBy: {
      args: { type: 'object', properties: { cwd: { type: 'string', description: 'Folder of the notebook from the root of the server' } } }
    },
    execute: async args => {
      try {
        await createNotebook(context, typeof args['cwd'] === 'string' ? args['cwd'] : '');
      } catch (error) {
        failed(trans.__('Cannot create the notebook'), error);
      }
    }
  });
  // Cards of the category Notebook show the icon of a kernel.
  launcher?.add({ command: CommandIDs.firstNotebook, category: trans.__('Other'), rank: RANK });
  return [CommandIDs.firstNotebook];
}
