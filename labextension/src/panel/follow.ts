/** Which notebook the panel follows: the active one, and another when that goes away. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';

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

  private _leave(): void {
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
  private readonly _changed = new Signal<NotebookFollower, void>(this);
}
