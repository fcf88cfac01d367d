/** Interfaces shared by the parts of the panel: model, context and commands. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISignal } from '@lumino/signaling';
import type { KernelKind } from '../kernel/client';
import type { IGpus, IKindsReply, INotice, IOperations, IRunRow, ITargetRow, IWorkspaceRow } from '../protocol';

/**
 * Connection state of the kernel that the panel follows.
 *
 * - `no-notebook`: no notebook is open.
 * - `no-kernel`: the notebook has none.
 * - `other-language`: the kernel is not Python.
 * - `starting`: it starts or restarts; nothing is known yet.
 * - `connecting`: a probe was sent; no reply yet.
 * - `not-loaded`: the kernel replies but has not loaded the extension: the Connect button.
 * - `loading`: Connect was pressed; it waits for the running cell where there is one.
 * - `missing`: the package is not installed in the kernel's environment.
 * - `other-version`: kernel and page speak different versions.
 * - `ready`: all is well; the rows are live.
 * - `not-responding`: it does not answer: it sits in one long call, or is stopped. Rows are as last seen.
 * - `reconnecting`: the page has lost the server. Rows are as last seen.
 * - `dead`: the kernel has died. Runs go on.
 */
export type ConnectionState =
  | 'no-notebook'
  | 'no-kernel'
  | 'other-language'
  | 'starting'
  | 'connecting'
  | 'not-loaded'
  | 'loading'
  | 'missing'
  | 'other-version'
  | 'ready'
  | 'not-responding'
  | 'reconnecting'
  | 'dead';

export interface IConnection {
  readonly state: ConnectionState;
  /** A sentence of the kernel's or of Jupyter's about it; may be empty. */
  readonly detail: string;
  /** Milliseconds since 1970 when the kernel was last heard; 0 for never. */
  readonly lastSeen: number;
  /** A cell runs. */
  readonly busy: boolean;
  /** Display name of the kernel, e.g. `Python 3 (ipykernel)`; may be empty. */
  readonly kernelName: string;
  /** File name of the notebook; may be empty. */
  readonly notebook: string;
}

/** Ticks of GPUs as they come: see `Gpus` in panel/protocol.py. */
export interface IGpuFrame {
  readonly head: IGpus;
  /** unix seconds, (n) */
  readonly t: Float64Array;
  /** percent, (n, G); 255: cannot tell */
  readonly util: Uint8Array;
  /** percent, (n, G); 255: cannot tell */
  readonly memory: Uint8Array;
  /** percent of one core and bytes, (n, 2); NaN: cannot tell */
  readonly host: Float32Array;
}

/** A change of a run that deserves a notification. */
export interface ITransition {
  readonly row: IRunRow;
  readonly what: 'ended' | 'attention';
}

/**
 * State of the followed kernel: one for the page. Views subscribe and disconnect when they are disposed of.
 *
 * Rows are frozen: a changed row is another object, an unchanged one the same.
 */
export interface IPanelModel {
  readonly connection: IConnection;
  /** Newest first; those of the last snapshot while the kernel does not answer. */
  readonly runs: readonly IRunRow[];
  /** Past runs that the kernel knows and has not sent. */
  readonly more: number;
  readonly targets: readonly ITargetRow[];
  /** The connected Azure ML workspaces. */
  readonly workspaces: readonly IWorkspaceRow[];
  /** Name of the target in use. */
  readonly current: string;
  /** The notebook that the panel follows. */
  readonly notebook: NotebookPanel | null;
  readonly kernel: Kernel.IKernelConnection | null;

  readonly connectionChanged: ISignal<IPanelModel, IConnection>;
  /** Runs came, changed or went; handles of those. Empty: all of them. */
  readonly runsChanged: ISignal<IPanelModel, readonly string[]>;
  /** Targets or workspaces came, changed or went. */
  readonly targetsChanged: ISignal<IPanelModel, void>;
  readonly gpuFrame: ISignal<IPanelModel, IGpuFrame>;
  readonly notice: ISignal<IPanelModel, INotice>;
  readonly transition: ISignal<IPanelModel, ITransition>;
  /** Mean utilization of the current target, for the status bar; null: nothing is measured. */
  readonly meterChanged: ISignal<IPanelModel, number | null>;

  run(handle: string): IRunRow | undefined;
  target(name: string): ITargetRow | undefined;

  /**
   * Ask the kernel. Rejects with `Refused` (its sentence) or `NoAnswer`, and takes silence into the
   * connection's state.
   */
  request<K extends keyof IOperations>(op: K, payload: IOperations[K]['payload'], ms?: number): Promise<IOperations[K]['reply']>;
  /** Result of the last probe of the kernel; probes it first if there is none. */
  kind(): Promise<KernelKind>;
  /** The forms, requested once for each connection and again when the workspaces change. */
  kinds(): Promise<IKindsReply>;
  /** Load the extension in the kernel. */
  connect(): Promise<void>;
  /** Probe the kernel again, whatever its current state. */
  refresh(): void;

  /** The panel is seen or not: hidden, nothing is sent but the ends of runs. */
  setShown(shown: boolean): void;
  /** Source of the GPU stream: a handle, `target:<name>`, or none. `gpuWhy` is the reason for an empty stream. */
  watchGpus(source: string): void;
  readonly gpuSource: string;
  readonly gpuWhy: string;
  /** Follow the streams of a run until disposed of: its log size and metrics are then up to date. */
  look(handle: string): { dispose(): void };
  /** Past runs that are in view: their metric and sparkline are wanted. */
  details(handles: readonly string[]): void;
}

/** Context passed to every section. */
export interface IPanelContext {
  readonly app: JupyterFrontEnd;
  readonly model: IPanelModel;
  readonly tracker: INotebookTracker;
  readonly trans: TranslationBundle;
  /** Live values of the settings (schema/plugin.json). */
  readonly settings: IPanelSettings;
}

export interface IPanelSettings {
  /** Load the extension automatically in every Python kernel. */
  readonly autoConnect: boolean;
  readonly notifyEnded: boolean;
  readonly notifyAttention: boolean;
  /** Sample the target in use while the GPUs section is seen. */
  readonly watchTarget: boolean;
  /** Refresh interval in seconds for the GPUs of the target in use while the panel is hidden; 0: never. */
  readonly statusBarSeconds: number;
  readonly changed: ISignal<IPanelSettings, void>;
}

/** Ids of our commands; each takes `{ handle }` or `{ target }` where it is about one, else the selection. */
export const CommandIDs = {
  open: 'jupyter-amltrain:open',
  connect: 'jupyter-amltrain:connect',
  refresh: 'jupyter-amltrain:refresh',

  submitCell: 'jupyter-amltrain:submit-cell',
  submitSelected: 'jupyter-amltrain:submit-selected',
  submitFile: 'jupyter-amltrain:submit-file',

  runOpen: 'jupyter-amltrain:run-open',
  runTab: 'jupyter-amltrain:run-tab',
  runLogs: 'jupyter-amltrain:run-logs',
  runCancel: 'jupyter-amltrain:run-cancel',
  runAgain: 'jupyter-amltrain:run-again',
  runDelete: 'jupyter-amltrain:run-delete',
  runCompare: 'jupyter-amltrain:run-compare',
  runCopy: 'jupyter-amltrain:run-copy',
  runMlflow: 'jupyter-amltrain:run-mlflow',
  runStudio: 'jupyter-amltrain:run-studio',
  runJupyter: 'jupyter-amltrain:run-jupyterlab',
  runVscode: 'jupyter-amltrain:run-vscode',
  runTensorboard: 'jupyter-amltrain:run-tensorboard',
  runGpus: 'jupyter-amltrain:run-gpus',

  targetUse: 'jupyter-amltrain:target-use',
  targetTest: 'jupyter-amltrain:target-test',
  targetNew: 'jupyter-amltrain:target-new',
  targetStart: 'jupyter-amltrain:target-start',
  targetStop: 'jupyter-amltrain:target-stop',
  targetScale: 'jupyter-amltrain:target-scale',
  targetDelete: 'jupyter-amltrain:target-delete',
  targetGpus: 'jupyter-amltrain:target-gpus',

  workspaceConnect: 'jupyter-amltrain:workspace-connect',
  workspaceDisconnect: 'jupyter-amltrain:workspace-disconnect'
} as const;
