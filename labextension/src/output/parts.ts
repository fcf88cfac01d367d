/** Further parts of a record, each drawn by a guest. */

import type { CodeEditor } from '@jupyterlab/codeeditor';
import type { TranslationBundle } from '@jupyterlab/translation';
import { LinesView } from '../inside/linesView';
import { GraphView } from '../pipelines/graphView';
import type { IOperations, IRunRecord } from '../protocol';

/** What a part can use of the page. */
export interface IPartHost {
  /** The editor of the cell whose output it stands in; null where there is none. */
  editor(): CodeEditor.IEditor | null;
  /** A request about the run, whose handle is added; rejects with a sentence. */
  request<K extends keyof IOperations>(op: K, payload: Omit<IOperations[K]['payload'], 'handle'>): Promise<IOperations[K]['reply']>;
}

/** A part of the output of a run. */
export interface IRecordPart {
  readonly node: HTMLElement;
  update(record: IRunRecord): void;
  /** A range of time was selected on a chart, in Unix seconds; absent or undefined where there is nothing to show of it. */
  readonly select?: (from: number, to: number) => void;
  dispose(): void;
}

export const PARTS: readonly ((trans: TranslationBundle, host: IPartHost) => IRecordPart)[] = [
  trans => new GraphView(trans),
  (trans, host) => new LinesView(trans, host)
];
