/** The state of the kernel that the panel follows. */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';
import { NoAnswer } from '../client';
import type { IKindsReply, INotice, IOperations, IRunRow, ITargetRow, PanelEvent } from '../protocol';
import { IWants, NOTHING } from './events';
import { NotebookFollower } from './follow';
import { gpuFrame, meanUtil } from './frames';
import { feedSession, KernelPort } from './port';
import { IDifference, Watch } from './rows';
import type { ISessionOwner } from './peer';
import { Session } from './session';
import type { ConnectionState, IConnection, IGpuFrame, IPanelModel, IPanelSettings, ITransition } from './tokens';

/** Milliseconds in which wishes are gathered before the kernel is told. */
const GATHER = 60;
const DETAILS_AFTER = 250;

interface IFollowed {
  readonly session: Session;
  readonly feed: { dispose(): void };
  kinds: Promise<IKindsReply> | null;
  gpuWhy: string;
  /** Connect was pressed by the setting: once for each life of a kernel. */
  pressed: boolean;
}

export class PanelModel implements IPanelModel {
  constructor(
    tracker: INotebookTracker,
    private readonly _settings: IPanelSettings
  ) {
    this._follower = new NotebookFollower(tracker);
    this._follower.changed.connect(this._refollow, this);
    document.addEventListener('visibilitychange', () => this._gather());
    _settings.changed.connect(() => {
      this._gather();
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
    return this._gpus;
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
    const followed = this._followed;
    if (!followed) {
      return this.request('kinds', {});
    }
    if (!followed.kinds) {
      const asked = followed.session.request('kinds', {});
      followed.kinds = asked;
      asked.catch(() => {
        followed.kinds = null;
      });
    }
    return followed.kinds;
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
    this._followed?.session.begin();
  }

  setShown(shown: boolean): void {
    this._shown = shown;
    this._gather();
  }

  watchGpus(source: string): void {
    if (source !== this._gpus) {
      this._gpus = source;
      this._gather();
    }
  }

  look(handle: string): { dispose(): void } {
    const mark = { handle };
    this._looks.add(mark);
    this._gather();
    return {
      dispose: () => {
        if (this._looks.delete(mark)) {
          this._gather();
        }
      }
    };
  }

  details(handles: readonly string[]): void {
    const wanted = handles.filter(handle => this.run(handle)?.known === false);
    clearTimeout(this._detailTimer);
    this._detailTimer = setTimeout(() => {
      this._details = wanted;
      this._gather();
    }, DETAILS_AFTER);
  }

  private get _wants(): IWants {
    const panel = this._shown && document.visibilityState === 'visible';
    const looks = [...new Set([...this._looks].map(mark => mark.handle))];
    return panel
      ? { shown: 'panel', gpus: this._gpus, looks, details: this._details, meter: 0 }
      : { ...NOTHING, shown: 'status', meter: this._settings.statusBarSeconds };
  }

  private _gather(): void {
    clearTimeout(this._gathering);
    this._gathering = setTimeout(() => this._followed?.session.want(this._wants), GATHER);
  }

  /** The notebook or its kernel may be another. */
  private _refollow(): void {
    const kernel = this._follower.kernel;
    if (kernel !== this._kernel) {
      this._followed?.session.want(NOTHING);
      if (this._kernel?.isDisposed) {
        this._end(this._kernel);
      }
      this._kernel = kernel;
      this._details = [];
      this._meter = null;
      this._followed = null;
    }
    this._language = this._languageOf(kernel);
    if (kernel && !this._followed && this._language === 'python') {
      const old = this._sessions.get(kernel);
      this._followed = old ?? this._make(kernel);
      this._followed.session.want(this._wants);
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

  /** `python`, the name of another language, or empty while it is not known. */
  private _languageOf(kernel: Kernel.IKernelConnection | null): string {
    const context = this._follower.context;
    if (!kernel || !context) {
      return '';
    }
    const specs = context.specsManager.specs;
    const spec = specs?.kernelspecs[kernel.name];
    if (spec) {
      return spec.language.toLowerCase();
    }
    if (!this._askedSpec.has(kernel)) {
      this._askedSpec.set(kernel, 'python');
      void kernel.spec.then(found => {
        this._askedSpec.set(kernel, found?.language?.toLowerCase() ?? 'python');
        this._refollow();
      });
      return '';
    }
    return this._askedSpec.get(kernel) ?? '';
  }

  private _make(kernel: Kernel.IKernelConnection): IFollowed {
    const mine = () => this._kernel === kernel;
    const owner: ISessionOwner = {
      stateChanged: () => {
        if (followed.session.state !== 'ready' && followed.session.state !== 'not-responding') {
          followed.kinds = null;
        }
        if (mine()) {
          this._tell();
        }
      },
      rowsChanged: difference => {
        if (mine()) {
          this._rowsChanged(followed, difference);
        }
      },
      event: (event, buffers) => {
        if (mine()) {
          this._event(event, buffers);
        }
      },
      gpuWhy: why => {
        if (followed.gpuWhy !== why) {
          followed.gpuWhy = why;
          if (mine()) {
            this.targetsChanged.emit();
          }
        }
      }
    };
    const session = new Session(new KernelPort(kernel), owner, () => UUID.uuid4());
    const followed: IFollowed = {
      session,
      feed: feedSession(kernel, session),
      kinds: null,
      gpuWhy: '',
      pressed: false
    };
    this._sessions.set(kernel, followed);
    kernel.disposed.connect(() => {
      // The one that is followed stays to be looked at: a dead kernel's connection is disposed of.
      if (!mine()) {
        this._end(kernel);
      }
    });
    return followed;
  }

  private _end(kernel: Kernel.IKernelConnection): void {
    const followed = this._sessions.get(kernel);
    followed?.feed.dispose();
    followed?.session.dispose();
    this._sessions.delete(kernel);
  }

  private _rowsChanged(followed: IFollowed, difference: IDifference): void {
    const rows = followed.session.rows;
    const touched = difference.runs;
    const seen = touched === null ? [] : touched.length === 0 ? rows.runs : touched.map(handle => rows.run(handle));
    if (touched) {
      this.runsChanged.emit(touched);
    }
    if (difference.targets) {
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
        if (event.source === `target:${this.current}`) {
          this._setMeter(meanUtil(frame));
        }
      }
    } else if (event.type === 'notice') {
      this.notice.emit(event);
    } else if (event.type === 'meter') {
      this._setMeter(event.util);
    }
  }

  private _setMeter(value: number | null): void {
    if (value !== this._meter) {
      this._meter = value;
      this.meterChanged.emit(value);
    }
  }

  private get _state(): ConnectionState {
    const context = this._follower.context;
    if (!context) {
      return 'no-notebook';
    }
    const display = context.kernelDisplayStatus;
    if (!this._kernel) {
      return display === 'initializing' || display === 'starting' || display === 'restarting' ? 'starting' : 'no-kernel';
    }
    if (!this._followed) {
      return this._language ? 'other-language' : 'connecting';
    }
    return this._followed.session.state;
  }

  private _tell(): void {
    const followed = this._followed;
    const path = this._follower.notebook?.context.path ?? '';
    const now: IConnection = Object.freeze({
      state: this._state,
      detail: followed?.session.detail ?? '',
      lastSeen: 0,
      busy: followed?.session.busy ?? false,
      kernelName: this._follower.context?.kernelDisplayName ?? '',
      notebook: path.slice(path.lastIndexOf('/') + 1)
    });
    if (JSON.stringify(now) !== JSON.stringify(this._connection)) {
      this._connection = now;
      this.connectionChanged.emit(this.connection);
    }
    if (followed && now.state !== 'not-loaded' && now.state !== 'loading' && now.state !== 'missing') {
      followed.pressed = false;
    }
    this._autoConnect();
  }

  private _autoConnect(): void {
    const followed = this._followed;
    if (followed && this._settings.autoConnect && followed.session.state === 'not-loaded' && !followed.pressed) {
      followed.pressed = true;
      void followed.session.connect();
    }
  }

  private readonly _follower: NotebookFollower;
  private readonly _sessions = new Map<Kernel.IKernelConnection, IFollowed>();
  private readonly _askedSpec = new WeakMap<Kernel.IKernelConnection, string>();
  private readonly _watch = new Watch();
  private readonly _looks = new Set<{ handle: string }>();
  private _kernel: Kernel.IKernelConnection | null = null;
  private _followed: IFollowed | null = null;
  private _language = '';
  private _connection: IConnection = {
    state: 'no-notebook',
    detail: '',
    lastSeen: 0,
    busy: false,
    kernelName: '',
    notebook: ''
  };
  private _shown = false;
  private _gpus = '';
  private _details: readonly string[] = [];
  private _meter: number | null = null;
  private _detailTimer: ReturnType<typeof setTimeout> | undefined;
  private _gathering: ReturnType<typeof setTimeout> | undefined;
}
