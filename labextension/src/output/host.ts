/** Where a run is drawn: which kernel can be asked, and where an answer is kept. */

import type { Kernel } from '@jupyterlab/services';
import { NotebookPanel } from '@jupyterlab/notebook';
import type { ISignal } from '@lumino/signaling';
import { writeBundle } from './notebook';

type Bundle = Record<string, unknown>;

export interface IRunHost {
  /** Whom to ask; none that is gone. */
  readonly kernel: Kernel.IKernelConnection | null;
  /** There is another kernel, or none. */
  readonly kernelChanged: ISignal<unknown, unknown> | null;
  /** What is drawn is saved: an ended run's picture is wanted for readers without us. */
  readonly saves: boolean;
  /** Keep a fresh record; true where that draws it here again. */
  write(handle: string, bundle: Bundle, sizes: Bundle): boolean;
}

/** The same connection, unless its kernel is gone. */
export function living(kernel: Kernel.IKernelConnection | null | undefined): Kernel.IKernelConnection | null {
  const gone = !kernel || kernel.isDisposed || kernel.status === 'dead' || kernel.status === 'terminating';
  return gone ? null : kernel;
}

/** An output of a notebook; or of a console or viewer, which has no kernel to ask. */
export class NotebookHost implements IRunHost {
  constructor(private readonly _panel: NotebookPanel | null) {}

  readonly saves = true;

  get kernel(): Kernel.IKernelConnection | null {
    return living(this._panel?.sessionContext?.session?.kernel);
  }

  get kernelChanged(): ISignal<unknown, unknown> | null {
    return this._panel?.sessionContext.kernelChanged ?? null;
  }

  write(handle: string, bundle: Bundle, sizes: Bundle): boolean {
    return this._panel !== null && writeBundle(this._panel, handle, bundle, sizes) > 0;
  }
}
