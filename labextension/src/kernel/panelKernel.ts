/** The panel's own kernel: it lists runs while the notebook's kernel cannot. */

import type { Kernel, KernelSpec, Session } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';
import { endSession, sessionOf } from './connection';
import type { KernelSession } from './session';

/** Path of its Jupyter session, by which every page of this server finds it; no file has it. */
const SESSION_PATH = 'training-runs-panel';
/** Milliseconds for which it has to be wanted: a notebook's kernel is often about to answer. */
const START_DELAY_MS = 2500;
/** Milliseconds without use after which it is shut down. */
const IDLE_MS = 10 * 60 * 1000;
/** Milliseconds until another attempt after a failed start. */
const RETRY_MS = 60 * 1000;

/** Manager of the panel's own kernel; starts it on demand and shuts it down when it is idle. */
export class PanelKernel {
  constructor(
    private readonly _sessions: Session.IManager,
    private readonly _specs: KernelSpec.IManager
  ) {}

  /** Emitted when the kernel starts, is replaced or ends. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get kernel(): Kernel.IKernelConnection | null {
    const kernel = this._jupyterSession?.kernel ?? null;
    return kernel && !kernel.isDisposed && kernel.status !== 'dead' ? kernel : null;
  }

  get session(): KernelSession | null {
    const { kernel } = this;
    return kernel ? sessionOf(kernel) : null;
  }

  /** Set whether it is wanted, and the kernelspec to prefer. */
  want(wanted: boolean, spec: string): void {
    this._spec = spec;
    if (wanted === this._wanted) {
      return;
    }
    this._wanted = wanted;
    clearTimeout(this._timer);
    if (!wanted) {
      this._timer = setTimeout(() => void this._stop(), IDLE_MS);
    } else if (!this.kernel) {
      this._timer = setTimeout(() => void this._start(), START_DELAY_MS);
    }
  }

  private async _start(): Promise<void> {
    if (this._starting || this.kernel) {
      return;
    }
    this._starting = true;
    try {
      const name = await this._chooseSpec();
      if (name) {
        this._adopt(await this._connect(name));
      }
    } catch (error) {
      console.warn('jupyter-amltrain: the kernel of the panel did not start', error);
    } finally {
      this._starting = false;
    }
    if (this._wanted && !this.kernel) {
      this._timer = setTimeout(() => void this._start(), RETRY_MS);
    }
  }

  /** Connect to the kernel of another page, else start one. */
  private async _connect(name: string): Promise<Session.ISessionConnection> {
    await this._sessions.refreshRunning();
    const model = await this._sessions.findByPath(SESSION_PATH);
    if (model?.kernel) {
      return this._sessions.connectTo({ model });
    }
    return this._sessions.startNew({ path: SESSION_PATH, type: 'console', name: 'Training runs panel', kernel: { name } });
  }

  /** Choose the preferred kernelspec, the default one or any other: it has to be Python. */
  private async _chooseSpec(): Promise<string> {
    await this._specs.ready;
    const specs = this._specs.specs;
    const names = [this._spec, specs?.default ?? '', ...Object.keys(specs?.kernelspecs ?? {})];
    return names.find(name => specs?.kernelspecs[name]?.language.toLowerCase() === 'python') ?? '';
  }

  private _adopt(session: Session.ISessionConnection): void {
    this._jupyterSession = session;
    const kernel = session.kernel;
    const changed = () => {
      if (kernel && (kernel.isDisposed || kernel.status === 'dead')) {
        this._forget(session);
      }
    };
    session.statusChanged.connect(changed);
    session.disposed.connect(() => this._forget(session));
    this._changed.emit();
  }

  private _forget(session: Session.ISessionConnection): void {
    if (session !== this._jupyterSession) {
      return;
    }
    this._jupyterSession = null;
    if (session.kernel) {
      endSession(session.kernel);
    }
    session.dispose();
    this._changed.emit();
    if (this._wanted) {
      clearTimeout(this._timer);
      this._timer = setTimeout(() => void this._start(), START_DELAY_MS);
    }
  }

  private async _stop(): Promise<void> {
    const session = this._jupyterSession;
    if (session && !this._wanted) {
      this._forget(session);
      await this._sessions.shutdown(session.id).catch(() => undefined);
    }
  }

  private _jupyterSession: Session.ISessionConnection | null = null;
  private _spec = '';
  private _wanted = false;
  private _starting = false;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private readonly _changed = new Signal<this, void>(this);
}
