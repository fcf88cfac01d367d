/** The state of the kernel that the panel follows. */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import { NoAnswer } from '../client';
import type { IKindsReply, INotice, IOperations, IRunRow, ITargetRow, IWorkspaceRow, PanelEvent } from '../protocol';
import { NOTHING } from './events';
import { NotebookFollower } from './follow';
import { gpuFrame } from './frames';
import { Languages } from './language';
import { Meter } from './meter';
import { IDifference, Watch } from './rows';
import { IFollowed, Sessions } from './sessions';
import type { ConnectionState, IConnection, IGpuFrame, IPanelModel, IPanelSettings, ITransition } from './tokens';
import { Wants } from './wants';

export class PanelModel implements IPanelModel {
  constructor(
    tracker: INotebookTracker,
    private readonly _settings: IPanelSettings
  ) {
    this._follower = new NotebookFollower(tracker);
    this._follower.changed.connect(this._refollow, this);
    this._wants = new Wants(
      () => document.visibilityState === 'visible',
      () => _settings.statusBarSeconds
    );
    this._wants.changed.connect(() => {
      const { now } = this._wants;
      this._followed?.session.want(now);
      if (!now.meter && now.gpus !== `target:${this.current}`) {
        // Nobody measures it any more.
        this._meter.stop();
      }
    });
    document.addEventListener('visibilitychange', () => this._wants.gather());
    // Gone, perhaps for good: the kernel need not find out by itself.
    window.addEventListener('pagehide', () => this._followed?.session.bye());
    window.addEventListener('pageshow', event => {
      if (event.persisted) {
        this._followed?.session.refresh();
      }
    });
    _settings.changed.connect(() => {
      this._wants.gather();
      this._autoConnect();
    });
    this._refollow();
  }

  readonly connectionChanged: Signal<IPanelModel, IConnection> = new Signal(this);
  readonly runsChanged: Signal<IPanelModel, readonly string[]> = new Signal(this);
  readonly targetsChanged: Signal<IPanelModel, void> = new Signal(this);
  readonly gpuFrame: Signal<IPanelModel, IGpuFrame> = new Signal(this);
  readonly notice: Signal<IPanelModel, INotice> = new Signal(this);
  readonly transition: Signal<IPanelModel, ITransition> = new Signal(this);
  readonly meterChanged: Signal<IPanelModel, number | null> = new Signal(this);

  get connection(): IConnection {
    return { ...this._connection, lastSeen: this._followed?.session.lastSeen ?? 0 };
  }

  get runs(): readonly IRunRow[] {
    return this._followed?.session.rows.runs ?? [];
  }

  get more(): number {
    return this._followed?.session.rows.more ?? 0;
  }

  get targets(): readonly ITargetRow[] {
    return this._followed?.session.rows.targets ?? [];
  }

  get workspaces(): readonly IWorkspaceRow[] {
    return this._followed?.session.rows.workspaces ?? [];
  }

  get current(): string {
    return this._followed?.session.rows.current ?? '';
  }

  get notebook(): NotebookPanel | null {
    return this._follower.notebook;
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this._follower.kernel;
  }

  get gpuSource(): string {
    return this._wants.gpus;
  }

  get gpuWhy(): string {
    return this._followed?.gpuWhy ?? '';
  }

  run(handle: string): IRunRow | undefined {
    return this._followed?.session.rows.run(handle);
  }

  target(name: string): ITargetRow | undefined {
    return this._followed?.session.rows.target(name);
  }

  async request<K extends keyof IOperations>(
    op: K,
    payload: IOperations[K]['payload'],
    ms?: number
  ): Promise<IOperations[K]['reply']> {
    if (!this._followed) {
      throw new NoAnswer('No kernel is connected.');
    }
    return this._followed.session.request(op, payload, ms);
  }

  kinds(): Promise<IKindsReply> {
    return this._followed ? this._followed.forms.ask() : this.request('kinds', {});
  }

  async connect(): Promise<void> {
    await this._followed?.session.connect();
  }

  /** Ask the kernel anew, whatever we believe of it. */
  refresh(): void {
    const kernel = this.kernel;
    if (kernel && !kernel.isDisposed && kernel.connectionStatus === 'disconnected') {
      void kernel.reconnect().catch(() => undefined);
    }
    this._followed?.session.refresh();
  }

  setShown(shown: boolean): void {
    this._wants.shown = shown;
  }

  watchGpus(source: string): void {
    this._wants.gpus = source;
  }

  look(handle: string): { dispose(): void } {
    return this._wants.look(handle);
  }

  details(handles: readonly string[]): void {
    this._wants.details(handles.filter(handle => this.run(handle)?.known === false));
  }

  /** The notebook or its kernel may be another. */
  private _refollow(): void {
    const kernel = this._next();
    if (kernel !== this._kernel) {
      this._followed?.session.want(NOTHING);
      if (this._kernel?.isDisposed) {
        this._sessions.end(this._kernel);
      }
      this._kernel = kernel;
      this._place = this._follower.notebook;
      this._ended = false;
      this._wants.forget();
      this._meter.forget();
      this._followed = null;
    }
    const context = this._follower.context;
    this._language = kernel && context ? this._languages.of(kernel, context) : '';
    if (kernel && !this._followed && this._language === 'python') {
      const old = this._sessions.find(kernel);
      this._followed = old ?? this._sessions.make(kernel);
      this._followed.session.want(this._wants.now);
      if (!old) {
        this._followed.session.begin();
      }
      this.runsChanged.emit([]);
      this.targetsChanged.emit();
      this.meterChanged.emit(null);
    } else if (!this._followed) {
      this.runsChanged.emit([]);
      this.targetsChanged.emit();
    }
    this._tell();
  }

  /** The kernel to be followed: one that has died stays, and its rows with it, until another takes its place. */
  private _next(): Kernel.IKernelConnection | null {
    const { kernel, notebook, context } = this._follower;
    this._ended ||= context?.kernelDisplayStatus === 'terminating';
    const died = this._followed?.session.state === 'dead' && !this._ended;
    return kernel ?? (died && notebook && notebook === this._place ? this._kernel : null);
  }

  private _rowsChanged(followed: IFollowed, difference: IDifference): void {
    const rows = followed.session.rows;
    const touched = difference.runs;
    const seen = touched === null ? [] : touched.length === 0 ? rows.runs : touched.map(handle => rows.run(handle));
    if (touched) {
      this.runsChanged.emit(touched);
    }
    if (difference.targets || difference.workspaces) {
      this._meter.target(this.current);
      this._tell();
      this.targetsChanged.emit();
    }
    for (const transition of this._watch.see(seen.filter((row): row is IRunRow => row !== undefined))) {
      this.transition.emit(transition);
    }
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
    return this._followed.session.state;
  }

  private _tell(): void {
    const followed = this._followed;
    const path = this._follower.notebook?.context.path ?? '';
    const state = this._state;
    const now: IConnection = Object.freeze({
      state,
      detail: (state === 'ready' ? followed?.session.rows.trouble : followed?.session.detail) ?? '',
      lastSeen: 0,
      busy: followed?.session.busy ?? false,
      kernelName: this._follower.context?.kernelDisplayName ?? '',
      notebook: path.slice(path.lastIndexOf('/') + 1)
    });
    if (JSON.stringify(now) !== JSON.stringify(this._connection)) {
      this._connection = now;
      this.connectionChanged.emit(this.connection);
    }
    // Only a restart: who unloads the extension by hand wants it unloaded.
    if (followed && now.state === 'starting') {
      followed.pressed = false;
    }
    this._autoConnect();
  }

  private _autoConnect(): void {
    const followed = this._followed;
    if (followed?.session.state === 'ready') {
      followed.pressed = true;
    } else if (followed && this._settings.autoConnect && followed.session.state === 'not-loaded' && !followed.pressed) {
      followed.pressed = true;
      void followed.session.connect();
    }
  }

  private readonly _follower: NotebookFollower;
  private readonly _wants: Wants;
  private readonly _sessions = new Sessions({
    follows: kernel => kernel === this._kernel,
    stateChanged: () => this._tell(),
    rowsChanged: (followed, difference) => this._rowsChanged(followed, difference),
    event: (event, buffers) => this._event(event, buffers),
    gpuWhyChanged: () => this.targetsChanged.emit()
  });
  private readonly _meter = new Meter(value => this.meterChanged.emit(value));
  private readonly _languages = new Languages(() => this._refollow());
  private readonly _watch = new Watch();
  private _kernel: Kernel.IKernelConnection | null = null;
  private _followed: IFollowed | null = null;
  /** Where the kernel was found. */
  private _place: NotebookPanel | null = null;
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
