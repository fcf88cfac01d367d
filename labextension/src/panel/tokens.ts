/** Interfaces shared by the parts of the panel: model, context and commands. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISignal } from '@lumino/signaling';
import type { ITicks } from '../charts/series';
import type { KernelKind } from '../kernel/client';
import type { IGpus, IKindsReply, INotice, IOperations, IRunRow, ITargetRow, IWorkspaceRow } from '../protocol';

/**
 * Connection state of the kernel that the panel follows.
 *
 * - `no-notebook`: no notebook is open.
 * - `no-kernel`: the notebook has no kernel.
 * - `other-language`: the kernel is not Python.
 * - `starting`: the kernel starts or restarts; its state is unknown.
 * - `connecting`: a probe was sent and has no reply yet.
 * - `not-loaded`: the kernel replies but has not loaded the extension; the panel shows the Connect button.
 * - `loading`: Connect was pressed; loading waits for a running cell to end.
 * - `missing`: the package is not installed in the kernel's environment.
 * - `other-version`: kernel and page use different protocol versions.
 * - `ready`: connected; the rows are live.
 * - `not-responding`: the kernel does not reply, in one long call or stopped. The rows are those of the last reply.
 * - `reconnecting`: the page has lost the connection to the server. The rows are those of the last reply.
 * - `dead`: the kernel has died. Runs continue.
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
  /** Whether requests are answered: by the notebook's kernel, or by the panel's own. */
  readonly ready: boolean;
  /** Whether the panel's own kernel answers. */
  readonly own: boolean;
  /** Message of the kernel or of Jupyter about the state; may be empty. */
  readonly detail: string;
  /** Time of the last reply of the kernel, in milliseconds since 1970; 0 for never. */
  readonly lastSeen: number;
  /** Whether a cell is running. */
  readonly busy: boolean;
  /** Display name of the kernel, e.g. `Python 3 (ipykernel)`; may be empty. */
  readonly kernelName: string;
  /** File name of the notebook; may be empty. */
  readonly notebook: string;
}

/** New ticks of GPUs: see `Gpus` in frontend/protocol.py. */
export interface IGpuFrame {
  readonly head: IGpus;
  /** Values in percent but for the first two, which are of the host: see `GpuStore`. Null without new ticks. */
  readonly ticks: ITicks | null;
}

/** Change of a run that deserves a notification. */
export interface ITransition {
  readonly row: IRunRow;
  readonly what: 'ended' | 'attention';
}

/**
 * State of the followed kernel, one for each page. Views subscribe and disconnect when they are disposed of.
 *
 * Rows are frozen: a changed row is a new object, an unchanged row the same object.
 */
export interface IPanelModel {
  readonly connection: IConnection;
  /** Runs, newest first; those of the last snapshot while the kernel does not reply. */
  readonly runs: readonly IRunRow[];
  /** Number of past runs that the kernel knows but has not sent. */
  readonly more: number;
  readonly targets: readonly ITargetRow[];
  /** Connected workspaces. */
  readonly workspaces: readonly IWorkspaceRow[];
  /** Name of the current target. */
  readonly current: string;
  /** Notebook that the panel follows. */
  readonly notebook: NotebookPanel | null;
  readonly kernel: Kernel.IKernelConnection | null;

  readonly connectionChanged: ISignal<IPanelModel, IConnection>;
  /** Emitted when runs are added, changed or removed, with their handles; empty for all runs. */
  readonly runsChanged: ISignal<IPanelModel, readonly string[]>;
  /** Emitted when targets or workspaces are added, changed or removed. */
  readonly targetsChanged: ISignal<IPanelModel, void>;
  readonly gpuFrame: ISignal<IPanelModel, IGpuFrame>;
  readonly notice: ISignal<IPanelModel, INotice>;
  readonly transition: ISignal<IPanelModel, ITransition>;
  /** Emitted with the mean utilization of the current target, for the status bar; null without measurements. */
  readonly meterChanged: ISignal<IPanelModel, number | null>;

  run(handle: string): IRunRow | undefined;
  target(name: string): ITargetRow | undefined;

  /**
   * Send a request to the kernel. Rejects with `Refused` (the message of the kernel) or `NoAnswer`, and updates the
   * connection state on a missing reply.
   */
  request<K extends keyof IOperations>(op: K, payload: IOperations[K]['payload'], ms?: number): Promise<IOperations[K]['reply']>;
  /** Result of the last probe of the kernel; sends a probe if there is none. */
  kind(): Promise<KernelKind>;
  /** Forms of the target kinds, requested once for each connection and again when the workspaces change. */
  kinds(): Promise<IKindsReply>;
  /** Load the extension in the kernel. */
  connect(): Promise<void>;
  /** Probe the kernel again, regardless of the current state. */
  refresh(): void;

  /** Set whether the panel is visible. The kernel sends only the ends of runs to a hidden panel. */
  setShown(shown: boolean): void;
  /** Set the source of the GPU stream: a handle, `target:<name>`, or none. `gpuWhy`: reason for an empty stream. */
  watchGpus(source: string): void;
  readonly gpuSource: string;
  readonly gpuWhy: string;
  /** Follow the streams of a run until disposed of, which keeps its log size and metrics up to date. */
  look(handle: string): { dispose(): void };
  /** Request the metric and sparkline of the past runs in view. */
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
  /** JupyterLab's renderers of outputs. */
  readonly rendermime: IRenderMimeRegistry | null;
}

export interface IPanelSettings {
  /** Load the extension automatically in every Python kernel. */
  readonly autoConnect: boolean;
  /** List runs by a kernel of the panel's own while the notebook's kernel is not connected. */
  readonly ownKernel: boolean;
  readonly notifyEnded: boolean;
  readonly notifyAttention: boolean;
  /** Sample the current target while the GPUs section is visible. */
  readonly watchTarget: boolean;
  /** Refresh interval in seconds for the GPUs of the current target while the panel is hidden; 0: never. */
  readonly statusBarSeconds: number;
  readonly changed: ISignal<IPanelSettings, void>;
}

/** Ids of the commands; each takes `{ handle }` or `{ target }` where it applies to one, else the selection. */
export const CommandIDs = {
  open: 'jupyter-amltrain:open',
  connect: 'jupyter-amltrain:connect',
  refresh: 'jupyter-amltrain:refresh',
  firstNotebook: 'jupyter-amltrain:first-notebook',

  submitCell: 'jupyter-amltrain:submit-cell',
  submitSelected: 'jupyter-amltrain:submit-selected',
  submitFile: 'jupyter-amltrain:submit-file',

  runOpen: 'jupyter-amltrain:run-open',
  runTab: 'jupyter-amltrain:run-tab',
  runLogs: 'jupyter-amltrain:run-logs',
  runCancel: 'jupyter-amltrain:run-cancel',
  runAgain: 'jupyter-amltrain:run-again',
  runStack: 'jupyter-amltrain:run-stack',
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
