/** The notebook of an output: its kernel, and writing records into it so that the saved file is right. */

import type { CodeEditor } from '@jupyterlab/codeeditor';
import { NotebookPanel } from '@jupyterlab/notebook';
import type { IOutputAreaModel } from '@jupyterlab/outputarea';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { Kernel } from '@jupyterlab/services';
import type { ISignal } from '@lumino/signaling';
import { GROUP_MIME, RUN_MIME } from '../protocol';
import { list } from '../untyped';

type Bundle = Record<string, unknown>;

function outputsOf(cell: unknown): IOutputAreaModel | undefined {
  return (cell as { outputs?: IOutputAreaModel }).outputs;
}

/** Fields of a saved record or group that are used here. */
interface ISaved {
  handle?: string;
  handles?: string[];
  done?: boolean;
  view?: string;
  window?: number;
  tracking?: { state?: string };
}

/** Identifies what an output shows: the handle of its run, or the handles of its runs. */
export function keyOf({ handle, handles }: { handle?: string; handles?: readonly string[] }): string {
  return handle ?? list(handles).join('\n');
}

/** Nothing can be added: the run has ended, is in MLflow, and has its picture. */
function complete(mime: string, saved: ISaved, data: Bundle): boolean {
  return saved.done === true && (mime === GROUP_MIME || (saved.tracking?.state !== 'pending' && 'image/png' in data));
}

/** A fresh record, shown as this output shows its run: two outputs of one run may differ in that. */
export function asShown<T>(old: { view?: string; window?: number }, fresh: T): T {
  return { ...fresh, view: old.view ?? 'run', window: old.window ?? 600 };
}

/**
 * Put a fresh bundle into every unfinished output of this run, or of these runs, in cells that are trusted.
 *
 * An output written by another user may name any run: data of this kernel must not get into their file.
 * The notebook becomes dirty and is left to autosave: saving it here could conflict with a save by the user.
 *
 * @param sizes metadata by MIME type
 * @returns how many outputs were written
 */
function writeBundle(panel: NotebookPanel, mime: string, key: string, bundle: Bundle, sizes: Bundle = {}): number {
  const model = panel.content.model;
  if (!model || model.readOnly || panel.isDisposed) {
    return 0;
  }
  let written = 0;
  for (const cell of model.cells) {
    const outputs = cell.trusted ? outputsOf(cell) : undefined;
    for (let i = 0; outputs && i < outputs.length; i++) {
      const output = outputs.get(i);
      const saved = output.data[mime] as ISaved | undefined;
      if (!saved || keyOf(saved) !== key || complete(mime, saved, output.data)) {
        continue;
      }
      const { output_type, metadata, execution_count } = output.toJSON() as any;
      outputs.set(i, {
        output_type,
        metadata: { ...metadata, ...sizes } as any,
        data: { ...output.data, ...bundle, ...(mime === RUN_MIME ? { [mime]: asShown(saved, bundle[mime]) } : {}) } as any,
        ...(output_type === 'execute_result' ? { execution_count } : {})
      });
      written += 1;
    }
  }
  return written;
}

export interface IRunHost {
  /** The live kernel that receives the requests; null after it has shut down. */
  readonly kernel: Kernel.IKernelConnection | null;
  /** There is another kernel, or none. */
  readonly kernelChanged: ISignal<unknown, unknown> | null;
  /** What is drawn is saved: an ended run's picture is wanted for readers without us. */
  readonly saves: boolean;
  /** JupyterLab's renderers; without them values that a script has displayed are shown as text. */
  readonly rendermime: IRenderMimeRegistry | null;
  /** The editor of the cell whose output has this node; null without one. */
  editorOf?(node: Node): CodeEditor.IEditor | null;
  /** Keep a fresh record or group, which `key` identifies; true where that draws it here again. */
  write(mime: string, key: string, bundle: Bundle, sizes?: Bundle): boolean;
}

/** The same connection, unless its kernel is gone. */
export function living(kernel: Kernel.IKernelConnection | null | undefined): Kernel.IKernelConnection | null {
  const gone = !kernel || kernel.isDisposed || kernel.status === 'dead' || kernel.status === 'terminating';
  return gone ? null : kernel;
}

/** An output of a notebook, or of a console or viewer, which has no kernel for requests. */
export class NotebookHost implements IRunHost {
  constructor(
    private readonly _panel: NotebookPanel | null,
    readonly rendermime: IRenderMimeRegistry | null = null
  ) {}

  readonly saves = true;

  get kernel(): Kernel.IKernelConnection | null {
    return living(this._panel?.sessionContext?.session?.kernel);
  }

  get kernelChanged(): ISignal<unknown, unknown> | null {
    return this._panel?.sessionContext.kernelChanged ?? null;
  }

  editorOf(node: Node): CodeEditor.IEditor | null {
    const cells = this._panel?.isDisposed ? [] : (this._panel?.content.widgets ?? []);
    return cells.find(cell => cell.node.contains(node))?.editor ?? null;
  }

  write(mime: string, key: string, bundle: Bundle, sizes: Bundle = {}): boolean {
    return this._panel !== null && writeBundle(this._panel, mime, key, bundle, sizes) > 0;
  }
}

/** The same kernel, for a run that the notebook does not save. */
export function unsaved(host: IRunHost): IRunHost {
  return {
    get kernel() {
      return host.kernel;
    },
    get kernelChanged() {
      return host.kernelChanged;
    },
    saves: false,
    rendermime: host.rendermime,
    editorOf: node => host.editorOf?.(node) ?? null,
    write: () => false
  };
}
