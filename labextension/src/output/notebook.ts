/** Writes what the kernel says of a run into the notebook's own model, so that the saved file is right. */

import { NotebookPanel } from '@jupyterlab/notebook';
import type { IOutputAreaModel } from '@jupyterlab/outputarea';
import { RUN_MIME } from '../protocol';

type Bundle = Record<string, unknown>;

function outputsOf(cell: unknown): IOutputAreaModel | undefined {
  return (cell as { outputs?: IOutputAreaModel }).outputs;
}

/**
 * Put a fresh bundle into every unfinished output of this run.
 *
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
    const outputs = outputsOf(cell);
    for (let i = 0; outputs && i < outputs.length; i++) {
      const output = outputs.get(i);
      const record = output.data[RUN_MIME] as { handle?: string; done?: boolean } | undefined;
      if (!record || record.handle !== handle || record.done === true) {
        continue;
      }
      const { output_type, metadata, execution_count } = output.toJSON() as any;
      outputs.set(i, {
        output_type,
        metadata: { ...metadata, ...sizes } as any,
        data: { ...output.data, ...bundle } as any,
        ...(output_type === 'execute_result' ? { execution_count } : {})
      });
      written += 1;
    }
  }
  return written;
}
