/** The model of the panel: the state of the kernel that it follows. */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import { decodeTicks } from '../charts/samples';
import { Tally } from '../charts/series';
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
import { PanelKernel } from './panelKernel';
import { IDifference, TransitionWatcher } from './rows';
import type { ISessionListener, KernelSession } from './session';

/** States of the notebook's kernel in which the panel's own kernel lists the runs. */
const NEEDS_OWN: ReadonlySet<ConnectionState> = new Set([
  'no-notebook',
  'no-kernel',
  'other-language',
  'not-loaded',
  'missing',
  'other-version',
  'dead'
]);

export class PanelModel implements IPanelModel {
  constructor(
    tracker: INotebookTracker,
    private readonly _settings: IPanelSettings,
    private readonly _own: PanelKernel
  ) {
    this._follower = new NotebookFollower(tracker);
    this._follower.changed.connect(this._follow, this);
    this._subscription = new PageSubscription(
      () => document.visibilityState === 'visible',
      () => _settings.statusBarSeconds
    );
    this._subscription.changed.connect(() => {
      const { now } = this._subscription;
      this._choose();
      this._followed?.subscribe(now);
      this._usedOwn?.subscribe(now);
      if (!now.meter && now.gpus !== `target:${this.current}`) {
        this._meter.stop();
      }
    });
    document.addEventListener('visibilitychange', () => this._subscription.gather());
    // Gone, perhaps for good: the kernel should not have to find out.
    window.addEventListener('pagehide', () => {
      this._followed?.unsubscribe();
      this._usedOwn?.unsubscribe();
    });
    window.addEventListener('pageshow', event => {
      if (event.persisted) {
        this._session?.refresh();
      }
    });
    _settings.changed.connect(() => {
      this._subscription.gather();
      this._autoConnect();
    });
    _own.changed.connect(() => this._choose());
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
    return this._session?.rows.own ?? [];
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
    return this._isOwn ? this._own.kernel : this._follower.kernel;
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
    await this._followed?.load();
  }

  refresh(): void {
    const { kernel } = this._follower;
    if (kernel && !kernel.isDisposed && kernel.connectionStatus === 'disconnected') {
      void kernel.reconnect().catch(() => undefined);
    }
    this._followed?.refresh();
    this._usedOwn?.refresh();
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

  /** The session that gives the rows and takes the requests. */
  private get _session(): KernelSession | null {
    return this._isOwn ? this._usedOwn : this._followed;
  }

  /** Whether the panel's own kernel stands in for the notebook's. */
  private get _isOwn(): boolean {
    return this._usedOwn !== null && this._usedOwn.state === 'ready' && this._wantsOwn;
  }

  /** Whether the notebook's kernel cannot list runs, and is not expected to soon. */
  private get _wantsOwn(): boolean {
    return this._settings.ownKernel && this._subscription.isUsed && NEEDS_OWN.has(this._state);
  }

  /** Choose between the notebook's kernel and the panel's own. */
  private _choose(): void {
    const wanted = this._wantsOwn;
    const used = wanted ? this._own.session : null;
    this._own.want(wanted, this._follower.kernel?.name ?? '');
    if (used !== this._usedOwn) {
      this._usedOwn?.subscribe(NO_SUBSCRIPTION);
      if (this._usedOwn) {
        this._usedOwn.listener = null;
      }
      this._usedOwn = used;
      if (used) {
        used.listener = this._listener(used);
        used.subscribe(this._subscription.now);
        void this._loadOwn(used);
      }
    }
    if (this._session !== this._shown) {
      this._shown = this._session;
      this._subscription.forget();
      this._meter.forget();
      this._allChanged();
    }
    this._update();
  }

  /** Load the extension in the panel's own kernel. */
  private async _loadOwn(session: KernelSession): Promise<void> {
    if (session.state === 'not-loaded') {
      await session.load();
    }
  }

  /** Follow the notebook and its kernel, which may be others now. */
  private _follow(): void {
    const kernel = this._nextKernel();
    if (kernel !== this._kernel) {
      this._leave();
      this._kernel = kernel;
      this._origin = this._follower.notebook;
      this._ended = false;
    }
    const context = this._follower.context;
    this._language = kernel && context ? this._languages.of(kernel, context) : '';
    if (kernel && !this._followed && this._language === 'python') {
      const session = (this._followed = sessionOf(kernel));
      session.listener = this._listener(session);
      session.subscribe(this._subscription.now);
    }
    this._choose();
  }

  private _listener(session: KernelSession): ISessionListener {
    const isShown = () => session === this._session;
    return {
      stateChanged: () => {
        if (session === this._usedOwn && session.state === 'not-loaded') {
          void this._loadOwn(session);
        }
        this._choose();
      },
      rowsChanged: difference => isShown() && this._rowsChanged(session, difference),
      event: (event, buffers) => isShown() && this._event(event, buffers),
      gpuReasonChanged: () => isShown() && this.targetsChanged.emit()
    };
  }

  /** Emit that all rows may be others: another kernel gives them. */
  private _allChanged(): void {
    this.runsChanged.emit([]);
    this.targetsChanged.emit();
    this.meterChanged.emit(null);
  }

  private _leave(): void {
    if (this._followed) {
      this._followed.subscribe(NO_SUBSCRIPTION);
      this._followed.listener = null;
    }
    if (this._kernel?.isDisposed) {
      endSession(this._kernel);
    }
    this._followed = null;
  }

  /** The kernel to be followed: one that has died stays, and its rows with it, until another takes its place. */
  private _nextKernel(): Kernel.IKernelConnection | null {
    const { kernel, notebook, context } = this._follower;
    this._ended ||= context?.kernelDisplayStatus === 'terminating';
    const died = this._followed?.state === 'dead' && !this._ended;
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
    const transitions = this._transitions.update(
      changed.filter((row): row is IRunRow => row !== undefined),
      touched?.length === 0
    );
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
    if (!this._followed) {
      return this._language ? 'other-language' : 'connecting';
    }
    return this._followed.state;
  }

  /** Emit the connection where it has changed. */
  private _update(): void {
    const session = this._followed;
    const path = this._follower.notebook?.context.path ?? '';
    const state = this._state;
    const now: IConnection = Object.freeze({
      state,
      ready: state === 'ready' || this._isOwn,
      own: this._isOwn,
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
    this._autoConnect();
  }

  /** Load the extension if the setting asks for it, or if the notebook was connected before its kernel was restarted. */
  private _autoConnect(): void {
    const session = this._followed;
    const notebook = this._origin;
    if (!session || !notebook) {
      return;
    }
    if (session.state === 'ready') {
      this._wasReady.add(notebook);
      this._tried.add(session);
    } else if (session.state === 'starting') {
      // Only after a restart: a user who unloads the extension wants it unloaded.
      this._tried.delete(session);
    } else if (session.state === 'not-loaded' && !this._tried.has(session)) {
      if (this._settings.autoConnect || this._wasReady.has(notebook)) {
        this._tried.add(session);
        void session.load();
      }
    }
  }

  private readonly _follower: NotebookFollower;
  private readonly _subscription: PageSubscription;
  private readonly _meter = new Meter(value => this.meterChanged.emit(value));
  private readonly _languages = new Languages(() => this._follow());
  private readonly _transitions = new TransitionWatcher();
  /** Sessions that were connected, or loaded automatically: once for each life of a kernel. */
  private readonly _tried = new WeakSet<KernelSession>();
  /** Notebooks that were connected at some time. */
  private readonly _wasReady = new WeakSet<NotebookPanel>();
  private _kernel: Kernel.IKernelConnection | null = null;
  /** Session of the notebook's kernel. */
  private _followed: KernelSession | null = null;
  /** Session of the panel's own kernel while that is wanted. */
  private _usedOwn: KernelSession | null = null;
  /** Session of the rows that were emitted last. */
  private _shown: KernelSession | null = null;
  /** The notebook in which the kernel was found. */
  private _origin: NotebookPanel | null = null;
  /** A person has ended it. */
  private _ended = false;
  private _language = '';
  private _connection: IConnection = {
    state: 'no-notebook',
    ready: false,
    own: false,
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

/** Values of the host in a tick of GPUs: CPU and memory. */
const HOST_VALUES = 2;

/** GPU ticks from the buffer of an event; `null` for one that cannot be read. */
export function gpuFrame(head: IGpus, [buffer]: readonly DataView[]): IGpuFrame | null {
  try {
    return { head, ticks: buffer ? decodeTicks(buffer, 1, () => HOST_VALUES)[0] : null };
  } catch {
    return null;
  }
}

/** Mean utilization of the last tick in percent; `null` when nothing is measured. */
export function meanUtil({ ticks }: IGpuFrame): number | null {
  const all = new Tally();
  if (ticks) {
    const gpus = (ticks.y.length / ticks.count - HOST_VALUES) / 2;
    for (let g = 1; g <= gpus; g++) {
      all.take(ticks.y[(HOST_VALUES + g) * ticks.count - 1]);
    }
  }
  return all.count ? all.mean : null;
}
