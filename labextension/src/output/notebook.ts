/** Writes what the kernel says of a run into the notebook's own model, so that the saved file is right. */

import { NotebookPanel } from '@jupyterlab/notebook';
import type { IOutputAreaModel } from '@jupyterlab/outputarea';
import { RUN_MIME } from '../protocol';

type Bundle = Record<string, unknown>;

function outputsOf(cell: unknown): IOutputAreaModel | undefined {
  return (cell as { outputs?: IOutputAreaModel }).outputs;
}

/** What matters here of a record that lies in an output. */
interface ISaved {
  handle?: string;
  done?: boolean;
  view?: string;
  window?: number;
  tracking?: { state?: string };
}

/** Nothing can be added: the run has ended, is in MLflow, and has its picture. */
function complete(record: ISaved, data: Bundle): boolean {
  return record.done === true && record.tracking?.state !== 'pending' && 'image/png' in data;
}

/** A fresh record, shown as this output shows its run: two outputs of one run may differ in that. */
export function asShown<T>(old: { view?: string; window?: number }, fresh: T): T {
  return { ...fresh, view: old.view ?? 'run', window: old.window ?? 600 };
}

/**
 * Put a fresh bundle into every unfinished output of this run in cells that are trusted.
 *
 * An output that somebody else wrote may name any run: what our kernel knows of it must not get into their file.
 * The notebook becomes dirty and is left to autosave: a save of ours could meet the user's own.
 *
 * @param sizes metadata by MIME type
 * @returns how many outputs were written
 */
export function writeBundle(panel: NotebookPanel, handle: string, bundle: Bundle, sizes: Bundle = {}): number {
  const model = panel.content.model;
  if (!model || model.readOnly || panel.isDisposed) {
    return 0;
  }
  let written = 0;
  for (const cell of model.cells) {
    const outputs = cell.trusted ? outputsOf(cell) : undefined;
    for (let i = 0; outputs && i < outputs.length; i++) {
      const output = outputs.get(i);
      const record = output.data[RUN_MIME] as ISaved | undefined;
      if (!record || record.handle !== handle || complete(record, output.data)) {
        continue;
      }
      const { output_type, metadata, execution_count } = output.toJSON() as any;
      outputs.set(i, {
        output_type,
        metadata: { ...metadata, ...sizes } as any,
        data: { ...output.data, ...bundle, [RUN_MIME]: asShown(record, bundle[RUN_MIME]) } as any,
        ...(output_type === 'execute_result' ? { execution_count } : {})
      });
      written += 1;
    }
  }
  return written;
}
