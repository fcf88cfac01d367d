/** The renderer of a run's output: live while the kernel speaks, asking when it does not, else as saved. */

import type { ISessionContext } from '@jupyterlab/apputils';
import { NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Kernel } from '@jupyterlab/services';
import { TranslationBundle } from '@jupyterlab/translation';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { NoAnswer, Refused } from '../client';
import { linkOf } from '../kernel';
import { IRunRecord, IRunReply, RUN_MIME } from '../protocol';
import { normalise, summary, TERMINAL } from '../record';
import { LOAD_COMMAND } from '../tokens';
import { available, ISite } from '../widgets/feeds';
import { DashboardHost, IHost } from './dashboard';
import { asShown, writeBundle } from './notebook';
import { notice, Source } from './notice';
import { SlotLayout } from './slot';
import { RunView } from './view';

/** Milliseconds. */
const TICK = 1000;
const SILENCE = 2000;
const TOLD = 3000;
const LONGEST_PAUSE = 10000;

/** Questions about an ended run whose record or picture is not complete. */
const LAST_QUESTIONS = 4;

const WAITING: ReadonlySet<string> = new Set(['preparing', 'queued']);

export class RunOutput extends Widget implements IRenderMime.IRenderer, IHost {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _panel: NotebookPanel | null
  ) {
    super();
    this.addClass('jp-AmlRun');
    this._view = new RunView(_trans, { cancel: () => void this._cancel(), dashboard: () => this._openDashboard() });
    this.node.append(this._view.node);
    this._slot = new SlotLayout(this._view.slot);
    this.layout = this._slot;
    this._dashboard = new DashboardHost(this);
    this._seen = new IntersectionObserver(entries => {
      this._onScreen = entries[entries.length - 1].isIntersecting;
    });
    this._seen.observe(this.node);
    _panel?.sessionContext.kernelChanged.connect(this._draw, this);
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this._kernel;
  }

  get onScreen(): boolean {
    return this._onScreen;
  }

  place(site: ISite | null): void {
    if (site) {
      this._slot.addWidget(site);
    }
    this._view.hosting = site !== null;
    if (!this.isDisposed) {
      this._draw();
    }
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const raw = model.data[RUN_MIME];
    const record = normalise(raw);
    const now = Date.now();
    // A notebook that opens renders what was saved: only a second rendering, or a record made just
    // now, comes from somebody who watches the run.
    const fresh = this._record !== null || Math.abs(now / 1000 - record.seen_at) < SILENCE / 1000;
    if (this._record !== null && this._record.handle !== record.handle) {
      this._clicked = false;
      this._live = false;
    }
    this._live = this._live || !(record.done || TERMINAL.has(record.state)) || record.view === 'dashboard';
    this._record = record;
    this._pictured = 'image/png' in model.data;
    this._revision = this._dashboard.revision;
    if (fresh) {
      this._received = now;
      this._source = 'live';
      this._failure = this._clicked ? this._failure : '';
    } else {
      this._source = 'saved';
    }
    this._want(record);
    this._draw();
    this._tickWhileNeeded();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    clearInterval(this._timer);
    this._seen.disconnect();
    this._panel?.sessionContext.kernelChanged.disconnect(this._draw, this);
    this._dashboard.dispose();
    this._view.dispose();
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._view.attached();
  }

  private get _kernel(): Kernel.IKernelConnection | null {
    const context: ISessionContext | undefined = this._panel?.sessionContext;
    const kernel = context?.session?.kernel ?? null;
    const gone = !kernel || kernel.isDisposed || kernel.status === 'dead' || kernel.status === 'terminating';
    return gone ? null : kernel;
  }

  private get _finished(): boolean {
    return this._record !== null && (this._record.done || !this._record.handle);
  }

  /** The run has ended, but its MLflow record or its picture has not come yet. */
  private get _unsettled(): boolean {
    const record = this._record;
    if (!record || !record.done || record.kind !== 'run' || this._lastQuestions >= LAST_QUESTIONS) {
      return false;
    }
    return this._kernel !== null && (record.tracking.state === 'pending' || !this._pictured);
  }

  private _tickWhileNeeded(): void {
    if ((this._finished && !this._live && !this._unsettled) || this.isDisposed) {
      clearInterval(this._timer);
      this._timer = undefined;
    } else if (this._timer === undefined) {
      this._timer = setInterval(() => void this._tick(), TICK);
    }
  }

  private async _tick(): Promise<void> {
    const record = this._record;
    this._dashboard.tick();
    if (!record || !this.isVisible || !this._onScreen || document.hidden) {
      return;
    }
    if (this._finished && !this._unsettled) {
      this._draw();
      return;
    }
    const now = Date.now();
    // Live charts hear of the run: without their word there is nothing to ask for.
    const { revision } = this._dashboard;
    const silent = now - this._received > (revision === null ? SILENCE : TOLD);
    const news = revision === null || revision !== this._revision || this._finished;
    if (silent && news && now >= this._pausedUntil && !this._asking) {
      this._asking = true;
      try {
        await this._ask(record);
      } finally {
        this._asking = false;
      }
    }
    if (!this.isDisposed) {
      this._draw();
    }
  }

  /** Ask the kernel for the record and write it into the notebook, which renders it here again. */
  private async _ask(record: IRunRecord): Promise<void> {
    const kernel = this._kernel;
    if (!kernel) {
      this._source = 'saved';
      return;
    }
    const link = linkOf(kernel);
    const kind = await link.kind();
    if (kind !== 'ready') {
      this._source = kind;
      this._pausedUntil = this._finished ? Date.now() + LONGEST_PAUSE : this._pausedUntil;
      return;
    }
    this._lastQuestions += record.done ? 1 : 0;
    const { revision } = this._dashboard;
    try {
      const reply = await link.client.request('run', { handle: record.handle });
      const fresh = asShown(record, normalise(reply.record));
      this._received = Date.now();
      this._revision = revision;
      this._source = 'live';
      this._failure = this._clicked ? this._failure : '';
      const bundle = { 'text/plain': summary(fresh), [RUN_MIME]: reply.record, ...pictureOf(reply) };
      const size = reply.picture ? { 'image/png': { width: reply.width, height: reply.height } } : {};
      if (changed(record, fresh) || (reply.picture && !this._pictured)) {
        this._pause = TICK;
        if (this._panel && writeBundle(this._panel, record.handle, bundle, size)) {
          return;
        }
      } else {
        // A run that waits in a queue says the same for hours: every question makes the kernel busy.
        this._pause = Math.min(2 * this._pause, LONGEST_PAUSE);
        this._pausedUntil = Date.now() + this._pause;
      }
      this._record = fresh;
      this._want(fresh);
      this._tickWhileNeeded();
    } catch (error) {
      if (error instanceof NoAnswer) {
        link.doubt();
        this._source = 'not-responding';
      } else {
        this._source = 'unknown-run';
        this._failure = error instanceof Refused ? error.message : String(error);
        this._pausedUntil = Date.now() + LONGEST_PAUSE;
      }
    }
  }

  /** A run that waits has nothing to show, and may wait for hours: nobody is asked for its charts. */
  private _want(record: IRunRecord): void {
    const wanted = this._live && record.handle && !WAITING.has(record.state);
    this._dashboard.want(wanted ? record.handle : null, record.window);
  }

  private _openDashboard(): void {
    if (!this._record) {
      return;
    }
    this._live = true;
    this._opened = true;
    this._want(this._record);
    this._dashboard.retry();
    this._tickWhileNeeded();
    this._draw();
  }

  private async _cancel(): Promise<void> {
    const record = this._record;
    const kernel = this._kernel;
    if (!record || !kernel || this._clicked) {
      return;
    }
    this._clicked = true;
    this._failure = '';
    this._draw();
    try {
      await linkOf(kernel).client.request('cancel', { handle: record.handle });
      this._pause = TICK;
      this._pausedUntil = 0;
    } catch (error) {
      this._clicked = false;
      if (error instanceof NoAnswer) {
        const kind = await linkOf(kernel).client.probe();
        this._failure =
          kind === 'not-loaded'
            ? this._trans.__('Not canceled: this kernel has not loaded the extension. Run: %1', LOAD_COMMAND)
            : this._trans.__('Not canceled: the kernel does not answer. Try again, or use: %1', this._shell(record));
      } else {
        this._failure = error instanceof Error ? error.message : String(error);
      }
    }
    if (!this.isDisposed) {
      this._draw();
    }
  }

  private _shell(record: IRunRecord): string {
    return `amltrain runs cancel ${record.handle}`;
  }

  private _draw(): void {
    const record = this._record;
    if (!record) {
      return;
    }
    const live = this._source === 'live';
    const over = this._finished || TERMINAL.has(record.state);
    this._view.update(record, {
      since: live && record.reachable ? Math.max(0, Date.now() - this._received) / 1000 : 0,
      cancellable: this._kernel !== null && !(record.kind === 'monitor' && this._source === 'unknown-run'),
      cancelClicked: this._clicked,
      notice: this._finished ? '' : notice(this._trans, record, this._source),
      failure: this._failure || (over && (this._opened || record.view === 'dashboard') ? this._dashboard.why : ''),
      interactive: over && record.reason !== 'launch' && available() && this._kernel !== null && (!this._live || this._dashboard.why !== '')
    });
    this.node.dataset.source = this._finished ? 'final' : this._source;
  }

  private readonly _view: RunView;
  private readonly _slot: SlotLayout;
  private readonly _dashboard: DashboardHost;
  private readonly _seen: IntersectionObserver;
  private _record: IRunRecord | null = null;
  private _source: Source = 'saved';
  private _received = 0;
  private _pausedUntil = 0;
  private _pause = TICK;
  private _failure = '';
  private _clicked = false;
  private _asking = false;
  private _onScreen = false;
  /** live charts are wanted: the run was going on when it was first seen, or a person asked for them */
  private _live = false;
  /** a person asked for live charts */
  private _opened = false;
  /** the output has a picture for readers without us */
  private _pictured = false;
  private _revision: number | null = null;
  private _lastQuestions = 0;
  private _timer: ReturnType<typeof setInterval> | undefined;
}

/** The picture for readers without us, which comes with the answer about an ended run. */
function pictureOf(reply: IRunReply): Record<string, string> {
  return reply.picture ? { 'image/png': reply.picture } : {};
}

/** Whether a fresh record says more than the time it was made: an unchanged one must not dirty the notebook. */
function changed(old: IRunRecord, fresh: IRunRecord): boolean {
  const essence = (r: IRunRecord) => JSON.stringify({ ...r, seen_at: 0, telemetry: { ...r.telemetry, age: 0 }, gpu: { ...r.gpu, age: 0 } });
  return essence(old) !== essence(fresh);
}
