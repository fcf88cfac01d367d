/** Which notebook the panel follows: the active one, and another when that goes away. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';

/** Milliseconds in which Jupyter has begun to start a kernel, or has asked a person for one. */
const UNDECIDED = 2000;

export class NotebookFollower {
  constructor(private readonly _tracker: INotebookTracker) {
    _tracker.currentChanged.connect(this._pick, this);
    _tracker.widgetAdded.connect((_, panel) => {
      panel.disposed.connect(this._pick, this);
      this._pick();
    });
    _tracker.forEach(panel => panel.disposed.connect(this._pick, this));
    this._pick();
  }

  get notebook(): NotebookPanel | null {
    return this._notebook;
  }

  get context(): ISessionContext | null {
    return this._notebook?.sessionContext ?? null;
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this.context?.session?.kernel ?? null;
  }

  /** There is no kernel, and one is on its way. */
  get kernelComes(): boolean {
    const { context } = this;
    const status = context?.kernelDisplayStatus;
    if (!context || this.kernel || status !== 'initializing') {
      this._decide();
      return !this.kernel && (status === 'starting' || status === 'restarting');
    }
    if (!context.hasNoKernel) {
      this._decide();
      return true;
    }
    // Jupyter says this until a kernel is chosen, also of a notebook for which none was wanted.
    if (!this._undecided) {
      this._undecided = { until: Date.now() + UNDECIDED, timer: setTimeout(() => this._tell(), UNDECIDED + 1) };
    }
    return Date.now() < this._undecided.until;
  }

  /** The notebook, its kernel, or what Jupyter says of it has changed. */
  get changed(): ISignal<NotebookFollower, void> {
    return this._changed;
  }

  private _pick(): void {
    let found = this._tracker.currentWidget;
    if (!found || found.isDisposed) {
      found = this._tracker.find(panel => !panel.isDisposed) ?? null;
    }
    if (found === this._notebook) {
      return;
    }
    this._leave();
    this._notebook = found;
    const context = this.context;
    if (context) {
      context.kernelChanged.connect(this._tell, this);
      context.sessionChanged.connect(this._tell, this);
      context.statusChanged.connect(this._tell, this);
      context.connectionStatusChanged.connect(this._tell, this);
      void context.ready.then(() => this._tell());
      found?.context.pathChanged.connect(this._tell, this);
    }
    this._tell();
  }

  private _decide(): void {
    clearTimeout(this._undecided?.timer);
    this._undecided = null;
  }

  private _leave(): void {
    this._decide();
    const context = this.context;
    if (context) {
      context.kernelChanged.disconnect(this._tell, this);
      context.sessionChanged.disconnect(this._tell, this);
      context.statusChanged.disconnect(this._tell, this);
      context.connectionStatusChanged.disconnect(this._tell, this);
      this._notebook?.context.pathChanged.disconnect(this._tell, this);
    }
  }

  private _tell(): void {
    this._changed.emit();
  }

  private _notebook: NotebookPanel | null = null;
  private _undecided: { until: number; timer: ReturnType<typeof setTimeout> } | null = null;
  private readonly _changed = new Signal<NotebookFollower, void>(this);
}
