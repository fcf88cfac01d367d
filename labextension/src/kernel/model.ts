/** The model of the panel: the state of the kernel that it follows. */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import type {
  ConnectionState,
  IConnection,
  IGpuFrame,
  IPanelModel,
  IPanelSettings,
  ITransition
} from '../panel/tokens';
import type { IGpus, IKindsReply, INotice, IOperations, IRunRow, ITargetRow, IWorkspaceRow, PanelEvent } from '../protocol';
import { KernelKind, NoAnswer } from './client';
import { endSession, sessionOf } from './connection';
import { NO_SUBSCRIPTION, PageSubscription } from './events';
import { Languages, NotebookFollower } from './follow';
import { IDifference, TransitionWatcher } from './rows';
import type { KernelSession } from './session';

export class PanelModel implements IPanelModel {
  constructor(
    tracker: INotebookTracker,
    private readonly _settings: IPanelSettings
  ) {
    this._follower = new NotebookFollower(tracker);
    this._follower.changed.connect(this._follow, this);
    this._subscription = new PageSubscription(
      () => document.visibilityState === 'visible',
      () => _settings.statusBarSeconds
    );
    this._subscription.changed.connect(() => {
      const { now } = this._subscription;
      this._session?.subscribe(now);
      if (!now.meter && now.gpus !== `target:${this.current}`) {
        this._meter.stop();
      }
    });
    document.addEventListener('visibilitychange', () => this._subscription.gather());
    // Gone, perhaps for good: the kernel should not have to find out.
    window.addEventListener('pagehide', () => this._session?.unsubscribe());
    window.addEventListener('pageshow', event => {
      if (event.persisted) {
        this._session?.refresh();
      }
    });
    _settings.changed.connect(() => {
      this._subscription.gather();
      this._autoConnect();
    });
    this._follow();
  }

  readonly connectionChanged: Signal<IPanelModel, IConnection> = new Signal(this);
  readonly runsChanged: Signal<IPanelModel, readonly string[]> = new Signal(this);
  readonly targetsChanged: Signal<IPanelModel, void> = new Signal(this);
  readonly gpuFrame: Signal<IPanelModel, IGpuFrame> = new Signal(this);
  readonly notice: Signal<IPanelModel, INotice> = new Signal(this);
  readonly transition: Signal<IPanelModel, ITransition> = new Signal(this);
  readonly meterChanged: Signal<IPanelModel, number | null> = new Signal(this);

  get connection(): IConnection {
    return { ...this._connection, lastSeen: this._session?.lastSeen ?? 0 };
  }

  get runs(): readonly IRunRow[] {
    return this._session?.rows.runs ?? [];
  }

  get more(): number {
    return this._session?.rows.more ?? 0;
  }

  get targets(): readonly ITargetRow[] {
    return this._session?.rows.targets ?? [];
  }

  get workspaces(): readonly IWorkspaceRow[] {
    return this._session?.rows.workspaces ?? [];
  }

  get current(): string {
    return this._session?.rows.current ?? '';
  }

  get notebook(): NotebookPanel | null {
    return this._follower.notebook;
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this._follower.kernel;
  }

  get gpuSource(): string {
    return this._subscription.gpus;
  }

  get gpuWhy(): string {
    return this._session?.gpuReason ?? '';
  }

  run(handle: string): IRunRow | undefined {
    return this._session?.rows.run(handle);
  }

  target(name: string): ITargetRow | undefined {
    return this._session?.rows.target(name);
  }

  async request<K extends keyof IOperations>(
    op: K,
    payload: IOperations[K]['payload'],
    ms?: number
  ): Promise<IOperations[K]['reply']> {
    return this._connected.request(op, payload, ms);
  }

  async kind(): Promise<KernelKind> {
    return this._session?.kind() ?? 'not-responding';
  }

  async kinds(): Promise<IKindsReply> {
    return this._connected.kinds();
  }

  async connect(): Promise<void> {
    await this._session?.load();
  }

  refresh(): void {
    const kernel = this.kernel;
    if (kernel && !kernel.isDisposed && kernel.connectionStatus === 'disconnected') {
      void kernel.reconnect().catch(() => undefined);
    }
    this._session?.refresh();
  }

  setShown(shown: boolean): void {
    this._subscription.shown = shown;
  }

  watchGpus(source: string): void {
    this._subscription.gpus = source;
  }

  look(handle: string): { dispose(): void } {
    return this._subscription.view(handle);
  }

  details(handles: readonly string[]): void {
    this._subscription.details(handles.filter(handle => this.run(handle)?.known === false));
  }

  private get _connected(): KernelSession {
    if (!this._session) {
      throw new NoAnswer('No kernel is connected.');
    }
    return this._session;
  }

  /** Follow the notebook and its kernel, which may be others now. */
  private _follow(): void {
    const kernel = this._nextKernel();
    if (kernel !== this._kernel) {
      this._leave();
      this._kernel = kernel;
      this._origin = this._follower.notebook;
      this._ended = false;
      this._subscription.forget();
      this._meter.forget();
    }
    const context = this._follower.context;
    this._language = kernel && context ? this._languages.of(kernel, context) : '';
    if (kernel && !this._session && this._language === 'python') {
      const session = (this._session = sessionOf(kernel));
      session.listener = {
        stateChanged: () => this._update(),
        rowsChanged: difference => this._rowsChanged(session, difference),
        event: (event, buffers) => this._event(event, buffers),
        gpuReasonChanged: () => this.targetsChanged.emit()
      };
      session.subscribe(this._subscription.now);
      this.runsChanged.emit([]);
      this.targetsChanged.emit();
      this.meterChanged.emit(null);
    } else if (!this._session) {
      this.runsChanged.emit([]);
      this.targetsChanged.emit();
    }
    this._update();
  }

  private _leave(): void {
    if (this._session) {
      this._session.subscribe(NO_SUBSCRIPTION);
      this._session.listener = null;
    }
    if (this._kernel?.isDisposed) {
      endSession(this._kernel);
    }
    this._session = null;
  }

  /** The kernel to be followed: one that has died stays, and its rows with it, until another takes its place. */
  private _nextKernel(): Kernel.IKernelConnection | null {
    const { kernel, notebook, context } = this._follower;
    this._ended ||= context?.kernelDisplayStatus === 'terminating';
    const died = this._session?.state === 'dead' && !this._ended;
    return kernel ?? (died && notebook && notebook === this._origin ? this._kernel : null);
  }

  private _rowsChanged(session: KernelSession, difference: IDifference): void {
    const { rows } = session;
    const touched = difference.runs;
    const changed = touched === null ? [] : touched.length === 0 ? rows.runs : touched.map(handle => rows.run(handle));
    if (touched) {
      this.runsChanged.emit(touched);
    }
    if (difference.targets || difference.workspaces) {
      this._meter.target(this.current);
      this._update();
      this.targetsChanged.emit();
    }
    const transitions = this._transitions.update(changed.filter((row): row is IRunRow => row !== undefined));
    transitions.forEach(transition => this.transition.emit(transition));
  }

  private _event(event: PanelEvent, buffers: DataView[]): void {
    if (event.type === 'gpus') {
      const frame = gpuFrame(event, buffers);
      if (frame) {
        this.gpuFrame.emit(frame);
        this._meter.frame(frame, this.current);
      }
    } else if (event.type === 'notice') {
      this.notice.emit(event);
    } else {
      this._meter.event(event);
    }
  }

  private get _state(): ConnectionState {
    if (!this._follower.context) {
      return 'no-notebook';
    }
    if (!this._kernel || (!this._follower.kernel && this._follower.kernelComes)) {
      return this._follower.kernelComes ? 'starting' : 'no-kernel';
    }
    if (!this._session) {
      return this._language ? 'other-language' : 'connecting';
    }
    return this._session.state;
  }

  /** Emit the connection where it has changed. */
  private _update(): void {
    const session = this._session;
    const path = this._follower.notebook?.context.path ?? '';
    const state = this._state;
    const now: IConnection = Object.freeze({
      state,
      detail: (state === 'ready' ? session?.rows.trouble : session?.detail) ?? '',
      lastSeen: 0,
      busy: session?.busy ?? false,
      kernelName: this._follower.context?.kernelDisplayName ?? '',
      notebook: path.slice(path.lastIndexOf('/') + 1)
    });
    if (JSON.stringify(now) !== JSON.stringify(this._connection)) {
      this._connection = now;
      this.connectionChanged.emit(this.connection);
    }
    // Only after a restart: a user who unloads the extension wants it unloaded.
    if (session && now.state === 'starting') {
      this._autoConnected.delete(session);
    }
    this._autoConnect();
  }

  private _autoConnect(): void {
    const session = this._session;
    if (session?.state === 'ready') {
      this._autoConnected.add(session);
    } else if (session?.state === 'not-loaded' && this._settings.autoConnect && !this._autoConnected.has(session)) {
      this._autoConnected.add(session);
      void session.load();
    }
  }

  private readonly _follower: NotebookFollower;
  private readonly _subscription: PageSubscription;
  private readonly _meter = new Meter(value => this.meterChanged.emit(value));
  private readonly _languages = new Languages(() => this._follow());
  private readonly _transitions = new TransitionWatcher();
  /** Sessions that were connected, or that the setting has connected: once for each life of a kernel. */
  private readonly _autoConnected = new WeakSet<KernelSession>();
  private _kernel: Kernel.IKernelConnection | null = null;
  private _session: KernelSession | null = null;
  /** The notebook in which the kernel was found. */
  private _origin: NotebookPanel | null = null;
  /** A person has ended it. */
  private _ended = false;
  private _language = '';
  private _connection: IConnection = {
    state: 'no-notebook',
    detail: '',
    lastSeen: 0,
    busy: false,
    kernelName: '',
    notebook: ''
  };
}

/** Mean GPU utilization of the target in use, for the status bar; null: nothing samples it. */
export class Meter {
  constructor(private readonly _changed: (value: number | null) => void) {}

  /** Nothing samples it any more. */
  stop(): void {
    this._set(null);
  }

  /** Forget the value silently: another kernel is followed. */
  forget(): void {
    this._value = null;
  }

  /** Set the target in use: the GPUs of another one say nothing about it. */
  target(current: string): void {
    if (current !== this._target) {
      this._target = current;
      this._set(null);
    }
  }

  /** Take ticks of the target in use or of something else. */
  frame(frame: IGpuFrame, current: string): void {
    if (frame.head.source === `target:${current}`) {
      this._set(meanUtil(frame));
    }
  }

  /** Take the mean from a `meter` event; ignore others. */
  event(event: PanelEvent): void {
    if (event.type === 'meter') {
      this._set(event.util);
    }
  }

  private _set(value: number | null): void {
    if (value !== this._value) {
      this._value = value;
      this._changed(value);
    }
  }

  private _target = '';
  private _value: number | null = null;
}

/** A copy that is aligned as typed arrays need it. */
function copy(view: DataView | undefined): ArrayBuffer {
  return view
    ? (view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) as ArrayBuffer)
    : new ArrayBuffer(0);
}

/** GPU ticks from the buffers of an event; `null` when the buffers do not match the head. */
export function gpuFrame(head: IGpus, buffers: readonly DataView[]): IGpuFrame | null {
  const parts = [8, 1, 1, 4].map((size, k) => {
    const part = copy(buffers[k]);
    return part.byteLength % size === 0 ? part : new ArrayBuffer(0);
  });
  const frame: IGpuFrame = {
    head,
    t: new Float64Array(parts[0]),
    util: new Uint8Array(parts[1]),
    memory: new Uint8Array(parts[2]),
    host: new Float32Array(parts[3])
  };
  const matches =
    frame.t.length === head.n &&
    frame.memory.length === frame.util.length &&
    (head.n === 0 || frame.util.length % head.n === 0);
  return matches ? frame : null;
}

/** Mean utilization of the last tick in percent; `null` when nothing is measured. */
export function meanUtil(frame: IGpuFrame): number | null {
  const n = frame.head.n;
  if (n === 0) {
    return null;
  }
  const last = frame.util.subarray(frame.util.length - frame.util.length / n).filter(value => value <= 100);
  return last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null;
}
