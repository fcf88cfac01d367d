/** The renderer of a run in a cell output: live while the kernel answers, as saved otherwise. */

import { Clipboard, Notification } from '@jupyterlab/apputils';
import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Kernel } from '@jupyterlab/services';
import { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import { Message, MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { confirmCancel, requestCancel } from '../cancel';
import { IFileRequests, registerModel } from '../files';
import { messageOf, NoAnswer } from '../kernel/client';
import { sessionOf } from '../kernel/connection';
import { openMlflow } from '../mlflowPage';
import { CommandIDs } from '../panel/tokens';
import { IOperations, IRunRecord, RUN_MIME } from '../protocol';
import { isWhole, normalise, TERMINAL } from '../record';
import { ITrial, STOPPED } from '../sweep';
import { available, ISite } from '../widgets/feeds';
import { DashboardHost, IHost } from './dashboard';
import type { IForms } from './forms';
import { IHeaderActions } from './header';
import { IRunHost, unsaved } from './notebook';
import { notice, RecordPoller } from './recordPoller';
import { SlotLayout } from './slotLayout';
import type { ITrialActions } from './trialTable';
import { RunView } from './view';

/** Milliseconds. */
const POLL_INTERVAL_MS = 1000;

/** Sources of a record whose kernel cannot give the address of the run. */
const NO_ANSWER: ReadonlySet<string> = new Set(['not-loaded', 'unknown-run', 'other-version']);

const WAITING: ReadonlySet<string> = new Set(['preparing', 'queued']);

export class RunOutput extends Widget implements IRenderMime.IRenderer, IHost {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _host: IRunHost,
    /** of the page; without them, the header has no links to tabs */
    private readonly _commands: CommandRegistry | null = null
  ) {
    super();
    this.addClass('jp-AmlRun');
    this._view = new RunView(_trans, {
      cancel: () => void this._cancel(),
      dashboard: () => this.openDashboard(),
      unfolded: () => MessageLoop.sendMessage(this, Widget.ResizeMessage.UnknownSize),
      load: () => this._load(),
      childLog: id => this._childLog(id),
      picture: path => this._picture(path),
      copy: text => this._copy(text),
      links: this._headerActions(_commands),
      files: this._fileRequests(),
      parts: { editor: () => _host.editorOf?.(this.node) ?? null, request: (op, payload) => this._ask(op, payload) },
      displays: {
        rendermime: _host.rendermime,
        whole: number => this._wholeDisplay(number),
        attach: (widget, node) => {
          this._displayNodes.set(widget, node);
          this._slot.addWidget(widget);
        }
      }
    });
    this.node.append(this._view.node);
    // Live charts in place of those of the record, and the run of a trial.
    this._slot = new SlotLayout(
      widget => this._displayNodes.get(widget) ?? (widget instanceof RunOutput ? this._view.trialSlot : this._view.slot)
    );
    this.layout = this._slot;
    this._dashboard = new DashboardHost(this);
    this._poller = new RecordPoller(_trans, _host, () => this._dashboard.revision);
    this._seen = new IntersectionObserver(entries => {
      this._onScreen = entries[entries.length - 1].isIntersecting;
    });
    this._seen.observe(this.node);
    _host.kernelChanged?.connect(this._otherKernel, this);
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this._host.kernel;
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
    const record = normalise(model.data[RUN_MIME]);
    const old = this._record;
    if (old !== null && old.handle !== record.handle) {
      this._live = false;
      this._slot.widgets.filter(widget => widget instanceof RunOutput).forEach(widget => widget.dispose());
      this._openedTrial = this._trialFailure = '';
    }
    this._live = this._live || !(record.done || TERMINAL.has(record.state)) || record.view === 'dashboard';
    this._record = record;
    this._trusted = model.trusted;
    this._poller.writes = model.trusted;
    this._poller.hasPicture = !this._host.saves || !model.trusted || 'image/png' in model.data;
    this._poller.take(record, old);
    if (!this._mayPoll && this._host.kernel !== null) {
      this._poller.source = 'saved';
    }
    this._want(record);
    this._draw();
    this._tickWhileNeeded();
  }

  /** Live charts in place of the record's, where the kernel can give them. */
  openDashboard(): void {
    if (!this._record) {
      return;
    }
    this._live = true;
    this._dashboardOpened = true;
    this._allowedHandle = this._record.handle;
    this._want(this._record);
    this._dashboard.retry();
    this._tickWhileNeeded();
    this._draw();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    clearInterval(this._timer);
    this._seen.disconnect();
    this._host.kernelChanged?.disconnect(this._otherKernel, this);
    this._dashboard.dispose();
    this._view.dispose();
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._view.attached();
    this._draw();
  }

  private _headerActions(commands: CommandRegistry | null): IHeaderActions {
    const has = (id: string) => (commands?.hasCommand(id) ? (handle: string) => void commands.execute(id, { handle }) : undefined);
    return {
      log: has(CommandIDs.runLogs),
      dashboard: has(CommandIDs.runTab),
      model: () => {
        const { models, name } = this._record!;
        void registerModel(this._trans, this._fileRequests(), models, name);
      },
      mlflow: handle => {
        this._openMlflow(handle).catch(error => {
          Notification.error(error instanceof Error ? error.message : String(error), { autoClose: 10000 });
        });
      },
      copy: handle => this._copy(handle)
    };
  }

  private _copy(text: string): void {
    Clipboard.copyToSystem(text);
    Notification.success(this._trans.__('Copied %1', text), { autoClose: 3000 });
  }

  /** A request about the run that is shown. */
  private async _ask<K extends keyof IOperations>(op: K, payload: Omit<IOperations[K]['payload'], 'handle'>): Promise<IOperations[K]['reply']> {
    const handle = this._record?.handle ?? '';
    if (!this._mayPoll) {
      throw new Error(this._trans.__('Trust the notebook to read more of the run.'));
    }
    return this._poller.ask(op, { ...payload, handle } as unknown as IOperations[K]['payload']);
  }

  private _fileRequests(): IFileRequests {
    const ask = <K extends keyof IOperations>(op: K, payload: Omit<IOperations[K]['payload'], 'handle'>) => this._ask(op, payload);
    return {
      list: async () => ask('files', {}),
      read: async (path, offset) => (await ask('file', { path, offset })).data,
      register: async (name, path) => (await ask('register', { name, path })).text
    };
  }

  private _openMlflow(handle: string): Promise<void> {
    const { kernel } = this._host;
    const session = kernel && sessionOf(kernel);
    const record = () => this._record;
    return openMlflow(
      {
        ask: () => (session && kernel === this._host.kernel && this._mayPoll ? session.request('mlflow', { handle }) : null),
        get isComing() {
          return record()?.done === true && record()?.tracking.state === 'pending';
        }
      },
      this._trans
    );
  }

  private get _finished(): boolean {
    return this._record !== null && (this._record.done || !this._record.handle);
  }

  /**
   * Whether requests about the run may be sent to the kernel.
   *
   * A notebook that is not trusted may name runs of other notebooks: then a person has to want it.
   */
  private get _mayPoll(): boolean {
    const handle = this._record?.handle ?? '';
    return isWhole(handle) && (this._trusted || this._allowedHandle === handle);
  }

  /** The user requested the state of this run from the kernel. */
  private _load(): void {
    if (this._record) {
      this._allowedHandle = this._record.handle;
      this._poller.pollSoon();
      this._want(this._record);
      this._tickWhileNeeded();
      void this._tick();
    }
  }

  private async _childLog(id: string): Promise<string[]> {
    const record = this._record;
    if (!record || !this._mayPoll) {
      throw new Error(this._trans.__('Trust the notebook to read the log.'));
    }
    return this._poller.childLog(record.handle, id);
  }

  private async _picture(path: string): Promise<string> {
    const record = this._record;
    if (!record || (this._host.kernel && !this._mayPoll)) {
      throw new Error(this._trans.__('Trust the notebook to see the whole picture.'));
    }
    return this._poller.picture(record.handle, path);
  }

  /** A displayed value with all its forms; null where requests are not allowed. */
  private _wholeDisplay(number: number): Promise<IForms> | null {
    const record = this._record;
    return record && this._host.kernel && this._mayPoll ? this._poller.display(record.handle, number) : null;
  }

  /** A kernel that comes may know the run: one that was drawn to its end needs no poll. */
  private _otherKernel(): void {
    this._draw();
  }

  private _tickWhileNeeded(): void {
    if ((this._finished && !this._live && !this._poller.isIncomplete(this._record)) || this.isDisposed) {
      clearInterval(this._timer);
      this._timer = undefined;
    } else if (this._timer === undefined) {
      this._timer = setInterval(() => void this._tick(), POLL_INTERVAL_MS);
    }
  }

  private async _tick(): Promise<void> {
    const record = this._record;
    this._dashboard.tick();
    if (!record || !this.isVisible || !this._onScreen || document.hidden) {
      return;
    }
    if (this._finished && !this._poller.isIncomplete(record)) {
      this._draw();
      return;
    }
    if (this._mayPoll && this._poller.isDue(this._finished)) {
      const fresh = await this._poller.poll(record, this._finished);
      // It may have been disposed of meanwhile, or taken a newer record.
      if (fresh && this._record === record && !this.isDisposed) {
        this._record = fresh;
        this._want(fresh);
        this._tickWhileNeeded();
      }
    }
    if (!this.isDisposed) {
      this._draw();
    }
  }

  /** A queued run has no data and may stay queued for hours: do not request its charts. */
  private _want(record: IRunRecord): void {
    // The board of a sweep has all charts of its trials; its own process is in a dashboard only.
    const hasCharts = record.sweep === null || record.view === 'dashboard';
    const isLive = this._live && this._mayPoll && !WAITING.has(record.state) && hasCharts;
    this._dashboard.want(isLive ? record.handle : null, record.window);
  }

  private get _cancelable(): boolean {
    const record = this._record;
    return this._trusted && record !== null && isWhole(record.handle) && !TERMINAL.has(record.state);
  }

  private async _cancel(): Promise<void> {
    const record = this._record;
    if (!record || !this._cancelable || this._confirming) {
      return;
    }
    this._confirming = true;
    try {
      if (!(await confirmCancel(this._trans, [record]))) {
        return;
      }
    } finally {
      this._confirming = false;
    }
    if (!this.isDisposed && this._cancelable && this._record?.handle === record.handle) {
      await this._poller.cancel(record, () => {
        if (!this.isDisposed) {
          this._draw();
        }
      });
    }
  }

  /** What this output may do with trials: as with the runs of a group, only in a trusted cell with a kernel. */
  private get _trialActions(): ITrialActions {
    return this._trusted && this._mayPoll && this._host.kernel !== null
      ? { open: trial => void this._toggleTrial(trial), cancel: trial => void this._cancelTrial(trial) }
      : {};
  }

  /** Show the run of a trial below the table; a second click hides it. */
  private async _toggleTrial({ handle }: ITrial): Promise<void> {
    const isOpen = this._openedTrial === handle;
    this._slot.widgets.filter(widget => widget instanceof RunOutput).forEach(widget => widget.dispose());
    this._openedTrial = isOpen || !isWhole(handle) ? '' : handle;
    this._trialFailure = '';
    this._draw();
    if (!this._openedTrial) {
      return;
    }
    try {
      const isWanted = () => !this.isDisposed && this._openedTrial === handle;
      await showRun(this._slot, handle, isWanted, this._trans, this._host, this._commands, this._trusted);
    } catch (error) {
      this._openedTrial = '';
      this._trialFailure =
        error instanceof NoAnswer ? this._trans.__('The kernel is not responding. To see the run: %1', `%aml_runs attach ${handle}`) : messageOf(error);
      this._draw();
    }
  }

  private async _cancelTrial(trial: ITrial): Promise<void> {
    const { kernel } = this._host;
    const { handle, state } = trial;
    if (!kernel || !isWhole(handle) || state === STOPPED || this._cancelingTrials.has(handle)) {
      return;
    }
    const run = { handle, name: this._trans.__('trial %1', trial.number), state };
    if (!(await confirmCancel(this._trans, [run])) || this.isDisposed) {
      return;
    }
    this._cancelingTrials.add(handle);
    this._trialFailure = '';
    this._draw();
    const { errors } = await requestCancel(this._trans, sessionOf(kernel), [run]);
    if (errors.length) {
      this._cancelingTrials.delete(handle);
      this._trialFailure = errors.join(' ');
    }
    if (!this.isDisposed) {
      this._poller.pollSoon();
      this._draw();
    }
  }

  private _draw(): void {
    const record = this._record;
    if (!record) {
      return;
    }
    const { source, received, failure, cancelRequested } = this._poller;
    const kernel = this._host.kernel;
    const live = source === 'live';
    const hasEnded = this._finished || TERMINAL.has(record.state);
    const why = this._dashboard.why;
    const startable = hasEnded && record.sweep === null && record.reason !== 'launch' && available() && kernel !== null && isWhole(record.handle);
    const untrusted = !this._mayPoll && kernel !== null;
    this._view.update(record, {
      since: live && record.reachable ? Math.max(0, Date.now() - received) / 1000 : 0,
      cancellable: this._cancelable && kernel !== null && !(record.kind === 'monitor' && source === 'unknown-run'),
      cancelClicked: cancelRequested,
      notice: this._finished ? '' : notice(this._trans, record, source, untrusted),
      failure: failure || this._trialFailure || (hasEnded && (this._dashboardOpened || record.view === 'dashboard') ? why : ''),
      interactive: startable && (!this._live || why !== ''),
      loadable: untrusted && isWhole(record.handle) && !this._finished,
      trusted: this._mayPoll,
      connected: kernel !== null && !NO_ANSWER.has(source),
      trials: this._trialActions,
      openedTrial: this._openedTrial,
      cancelingTrials: this._cancelingTrials
    });
    this.node.dataset.handle = record.handle;
    this.node.dataset.source = this._finished ? 'final' : source;
  }

  private readonly _view: RunView;
  private readonly _slot: SlotLayout;
  private readonly _dashboard: DashboardHost;
  private readonly _poller: RecordPoller;
  /** Where the renderers of displayed values are drawn. */
  private readonly _displayNodes = new WeakMap<Widget, HTMLElement>();
  private readonly _seen: IntersectionObserver;
  private _record: IRunRecord | null = null;
  /** JupyterLab trusts the cell: it ran here, or the user marked it as trusted */
  private _trusted = false;
  /** handle of the run whose state the user requested */
  private _allowedHandle = '';
  private _confirming = false;
  private _onScreen = false;
  /** live charts are enabled: the run was active when first shown, or the user requested them */
  private _live = false;
  /** the user requested live charts */
  private _dashboardOpened = false;
  /** handle of the trial that is shown below the table of a sweep */
  private _openedTrial = '';
  private _trialFailure = '';
  private readonly _cancelingTrials = new Set<string>();
  private _timer: ReturnType<typeof setInterval> | undefined;
}

/**
 * Show a run of a table below it, as if it were the only one; rejects with the kernel's sentence.
 *
 * @param isWanted false when meanwhile another run is wanted, or none
 */
export async function showRun(
  slot: SlotLayout,
  handle: string,
  isWanted: () => boolean,
  trans: TranslationBundle,
  host: IRunHost,
  commands: CommandRegistry | null,
  trusted: boolean
): Promise<void> {
  const { kernel } = host;
  if (!kernel) {
    return;
  }
  const { record } = await sessionOf(kernel).request('run', { handle });
  if (!isWanted()) {
    return;
  }
  const run = new RunOutput(trans, unsaved(host), commands);
  slot.addWidget(run);
  const data = { [RUN_MIME]: record as any };
  await run.renderModel({ data, metadata: {}, trusted, setData: () => undefined });
  run.node.scrollIntoView({ block: 'nearest' });
}
