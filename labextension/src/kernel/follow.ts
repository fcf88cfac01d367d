/** The notebook that the panel follows, its kernel, and the language of that. No DOM. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';

/** Milliseconds for Jupyter to start a kernel or to show its kernel selection dialog. */
const UNDECIDED_MS = 2000;

/** Follows the active notebook, and another one when that is closed. */
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

  /** There is no kernel, and one is about to start. */
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
      this._undecided = { until: Date.now() + UNDECIDED_MS, timer: setTimeout(() => this._emit(), UNDECIDED_MS + 1) };
    }
    return Date.now() < this._undecided.until;
  }

  /** The notebook, its kernel, or what Jupyter says of it has changed. */
  get changed(): ISignal<NotebookFollower, void> {
    return this._changed;
  }

  private _pick(): void {
    let next = this._tracker.currentWidget;
    if (!next || next.isDisposed) {
      next = this._tracker.find(panel => !panel.isDisposed) ?? null;
    }
    if (next === this._notebook) {
      return;
    }
    this._leave();
    this._notebook = next;
    const context = this.context;
    if (context) {
      context.kernelChanged.connect(this._emit, this);
      context.sessionChanged.connect(this._emit, this);
      context.statusChanged.connect(this._emit, this);
      context.connectionStatusChanged.connect(this._emit, this);
      void context.ready.then(() => this._emit());
      next?.context.pathChanged.connect(this._emit, this);
    }
    this._emit();
  }

  private _decide(): void {
    clearTimeout(this._undecided?.timer);
    this._undecided = null;
  }

  private _leave(): void {
    this._decide();
    const context = this.context;
    if (context) {
      context.kernelChanged.disconnect(this._emit, this);
      context.sessionChanged.disconnect(this._emit, this);
      context.statusChanged.disconnect(this._emit, this);
      context.connectionStatusChanged.disconnect(this._emit, this);
      this._notebook?.context.pathChanged.disconnect(this._emit, this);
    }
  }

  private _emit(): void {
    this._changed.emit();
  }

  private _notebook: NotebookPanel | null = null;
  private _undecided: { until: number; timer: ReturnType<typeof setTimeout> } | null = null;
  private readonly _changed = new Signal<NotebookFollower, void>(this);
}

/** The languages of kernels. */
export class Languages {
  /** @param changed Called when a language becomes known. */
  constructor(private readonly _changed: () => void) {}

  /** In lower case; empty while it is not known. A kernel that does not report it counts as Python. */
  of(kernel: Kernel.IKernelConnection, context: ISessionContext): string {
    const spec = context.specsManager.specs?.kernelspecs[kernel.name];
    if (spec) {
      return spec.language.toLowerCase();
    }
    const known = this._known.get(kernel);
    if (known === undefined) {
      this._known.set(kernel, '');
      const set = (language: string) => {
        this._known.set(kernel, language.toLowerCase());
        this._changed();
      };
      kernel.spec.then(
        reply => set(reply?.language ?? 'python'),
        () => set('python')
      );
    }
    return known ?? '';
  }

  private readonly _known = new WeakMap<Kernel.IKernelConnection, string>();
}
