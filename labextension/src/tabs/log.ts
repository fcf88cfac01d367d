/** Tab with the log of one run: fetched in parts and followed at its end. */

import { Clipboard, Notification } from '@jupyterlab/apputils';
import { UUID } from '@lumino/coreutils';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { bytes } from '../format';
import { Refused } from '../kernel/client';
import type { IPanelContext, IPanelModel } from '../panel/tokens';
import { TERMINAL } from '../record';
import { LogLines } from './logLines';
import { LogPage } from './logPage';
import { ALL_RANKS, MAX_RANKS_TOGETHER, RankLogs } from './rankLogs';
import { quiet, runLine } from './tabText';

/** Bytes in one request. */
const PART_BYTES = 128 * 1024;

/** Requests for earlier lines by one click: a part in which a progress bar only moves has no line. */
const MAX_EARLIER_PARTS = 16;

/** Delays in milliseconds between requests for the last bytes of the log of an ended run. */
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class LogTab extends Widget {
  constructor(
    private readonly _context: IPanelContext,
    readonly handle: string,
    /** Id of a step or trial whose log is shown; empty for the log of the run itself. */
    readonly child = '',
    readonly name = ''
  ) {
    super();
    const { trans, model } = _context;
    this._model = model;
    this.addClass('jp-AmlTab');
    this.addClass('jp-AmlLog');
    const bar = document.createElement('div');
    bar.className = 'jp-AmlLog-bar';
    this._state = document.createElement('span');
    this._state.className = 'jp-AmlLog-state';
    const button = (label: string, click: () => void) => {
      const node = document.createElement('button');
      node.type = 'button';
      node.className = 'jp-mod-styled jp-mod-minimal';
      node.textContent = label;
      node.addEventListener('click', click);
      return node;
    };
    this._follow = button(trans.__('Follow'), () => void this._toEnd());
    this._wrap = button(trans.__('Wrap'), () => this._setWrap(this._wrap.getAttribute('aria-pressed') !== 'true'));
    this._copy = button(trans.__('Copy path'), () => {
      Clipboard.copyToSystem(this._path);
      Notification.success(trans.__('Copied %1', this._path), { autoClose: 3000 });
    });
    this._copy.hidden = true;
    this._rankSelect = document.createElement('select');
    this._rankSelect.className = 'jp-AmlLog-rank';
    this._rankSelect.setAttribute('aria-label', trans.__('Process'));
    this._rankSelect.hidden = true;
    this._rankSelect.addEventListener('change', () => void this._choose(Number(this._rankSelect.value)));
    bar.append(this._state, this._rankSelect, this._follow, this._wrap, this._copy);
    this._quiet = document.createElement('div');
    this._quiet.className = 'jp-AmlTab-state';
    this._quiet.setAttribute('role', 'status');
    this._earlier = button(trans.__('Load earlier lines'), () => void this._loadEarlier());
    this._earlier.className = 'jp-AmlLog-earlier jp-mod-styled jp-mod-minimal';
    this._page = new LogPage(trans);
    this._page.onFollow = () => this._buttons();
    this.node.append(bar, this._quiet, this._earlier, this._page.node);
    this._setWrap(true);
    this._look = model.look(handle);
    model.runsChanged.connect(this._changed, this);
    model.connectionChanged.connect(this._connection, this);
    this._timer = setInterval(() => this._draw(), 1000);
    this._draw();
    void this._read();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._look.dispose();
    clearInterval(this._timer);
    clearTimeout(this._pollTimer);
    this._model.runsChanged.disconnect(this._changed, this);
    this._model.connectionChanged.disconnect(this._connection, this);
    super.dispose();
  }

  protected onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this._page.node.focus({ preventScroll: true });
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    if (this._page.follows) {
      this._page.follow();
    }
    this._draw();
  }

  protected onResize(message: Widget.ResizeMessage): void {
    super.onResize(message);
    if (this._page.follows) {
      this._page.follow();
    }
  }

  private _changed(_: IPanelModel, handles: readonly string[]): void {
    if (!handles.length || handles.includes(this.handle)) {
      this._draw();
      const row = this._model.run(this.handle);
      const shrunk = row !== undefined && row.log_bytes < this._bytes;
      this._bytes = row?.log_bytes ?? 0;
      if (row && (this.child || this._rank)) {
        void this._read();
      } else if (row && (row.log_bytes > this._lines.end || shrunk || TERMINAL.has(row.state))) {
        void this._read();
      }
    }
  }

  private _connection(): void {
    this._draw();
    void this._read();
  }

  /** Whether a request can be sent now. */
  private get _can(): boolean {
    return !this.isDisposed && !this._reading && this._model.connection.ready;
  }

  /** Read from the current offset; the first request reads from the end. */
  private async _read(): Promise<void> {
    if (!this._can || this._ended || this._detached) {
      return;
    }
    this._reading = true;
    clearTimeout(this._pollTimer);
    try {
      if (this._rank === ALL_RANKS) {
        await this._readAll();
      }
      for (let more = this._rank !== ALL_RANKS; more && !this.isDisposed && !this._detached; ) {
        const first = !this._began;
        const offset = first ? -PART_BYTES : this._lines.end;
        const rank = this._rank;
        const reply = await this._model.request('log', { ...this._whose, offset, limit: PART_BYTES });
        if (this.isDisposed) {
          return;
        }
        if (rank !== this._rank) {
          continue;
        }
        if (this._offerRanks(reply.ranks ?? 1, reply.failed_rank ?? null)) {
          // Another log is shown from now on.
          this._pollTimer = setTimeout(() => void this._read(), 0);
          return;
        }
        // A kernel with an older package does not send this field.
        const restarts = reply.restarts ?? 0;
        if (!first && restarts > this._restarts) {
          // The job has rewritten its log: the lines here belong to the old one.
          this._lines.reset();
          this._began = false;
          this._restarts = restarts;
          continue;
        }
        this._restarts = restarts;
        if (!reply.lines) {
          this._failure = this._context.trans.__('The kernel has an older version of this extension. Restart the kernel to read the log.');
          return;
        }
        if (first || reply.start !== offset) {
          this._lines.reset(reply.start);
        } else if (reply.fresh && this._lines.resume() !== offset) {
          // The kernel has dropped the screen: draw again from where a new one shows the same.
          continue;
        }
        this._began = true;
        this._failure = '';
        this._path = reply.path || this._path;
        this._ended = reply.ended;
        const hasNew = reply.offset > reply.start;
        more = !reply.ended && hasNew;
        this._lines.replace(reply.first, reply.lines, reply.offset, reply.marks);
        if (hasNew || reply.lines.length) {
          this._page.show(this._lines.lines);
        }
        // After the end of the log, request more only if the row reports more bytes.
        more = more && (this.child !== '' || this._rank > 0 || (this._model.run(this.handle)?.log_bytes ?? 0) > reply.offset);
      }
      this._askAgain();
    } catch (error) {
      this._failure = error instanceof Refused ? error.message : '';
      if (!(error instanceof Refused) && !this.isDisposed) {
        // For an ended run, no other event triggers a new request.
        this._pollTimer = setTimeout(() => void this._read(), RETRY_MS[2]);
      }
    } finally {
      this._reading = false;
      if (!this.isDisposed) {
        this._draw();
      }
      if (this._wantsEarlier) {
        void this._loadEarlier();
      }
    }
  }

  private get _whose(): { handle: string; child: string; rank: number; screen: string; earlier: number } {
    return { handle: this.handle, child: this.child, rank: this._rank, screen: this._screen, earlier: 0 };
  }

  /** Read what is new in the logs of all processes. */
  private async _readAll(): Promise<void> {
    const logs = this._rankLogs;
    const limit = Math.floor(PART_BYTES / this._ranks);
    for (let rank = 0; rank < this._ranks; rank++) {
      const offset = logs.offset(rank) ?? -limit;
      const reply = await this._model.request('log', { ...this._whose, rank, offset, limit: PART_BYTES });
      if (this.isDisposed || logs !== this._rankLogs || this._rank !== ALL_RANKS) {
        return;
      }
      this._lines.append(logs.add(rank, reply));
      this._began = true;
      this._failure = '';
    }
    this._ended = logs.ended(this._ranks);
    this._page.show(this._lines.lines);
  }

  /** Offer the logs of all processes; returns whether another one than before is shown from now on. */
  private _offerRanks(ranks: number, failed: number | null): boolean {
    const { trans } = this._context;
    const select = this._rankSelect;
    if (ranks < 2) {
      return false;
    }
    const together = ranks <= MAX_RANKS_TOGETHER;
    if (together && !select.options.length) {
      select.add(new Option(trans.__('All ranks'), String(ALL_RANKS)));
    }
    for (let rank = this._ranks; rank < ranks; rank++) {
      select.add(new Option(trans.__('Rank %1', rank), String(rank)));
    }
    this._ranks = ranks;
    select.hidden = false;
    if (this._hasChosen) {
      return false;
    }
    const rank = failed ?? (together ? ALL_RANKS : 0);
    select.value = String(rank);
    const other = rank !== this._rank;
    this._forget(rank);
    return other;
  }

  /** Show the log of another process. */
  private async _choose(rank: number): Promise<void> {
    this._forget(rank);
    await this._read();
  }

  private _forget(rank: number): void {
    this._hasChosen = true;
    this._rank = rank;
    this._restarts = this._last = 0;
    this._rankLogs = new RankLogs();
    this._began = this._ended = this._detached = false;
    this._lines.reset();
    this._page.show(this._lines.lines);
  }

  /** Request the last bytes of an ended run, which may arrive after its end, or poll the log of a child. */
  private _askAgain(): void {
    if (this.child || this._rank) {
      this._pollTimer = this._ended ? undefined : setTimeout(() => void this._read(), RETRY_MS[2]);
      return;
    }
    const row = this._model.run(this.handle);
    if (row && TERMINAL.has(row.state) && !this._ended && this._last < RETRY_MS.length) {
      this._pollTimer = setTimeout(() => void this._read(), RETRY_MS[this._last++]);
    }
  }

  private async _loadEarlier(): Promise<void> {
    // A click while another part is read counts, too.
    this._wantsEarlier = this._reading;
    if (!this._can || !this._lines.start) {
      return;
    }
    this._reading = true;
    try {
      await this._prepend();
      this._page.show(this._lines.lines);
    } catch (error) {
      this._failure = error instanceof Refused ? error.message : '';
    } finally {
      this._reading = false;
      if (!this.isDisposed) {
        this._draw();
        // No request was sent for lines written in the meantime.
        void (this._wantsEarlier ? this._loadEarlier() : this._read());
      }
    }
  }

  /** Put lines before the first one. */
  private async _prepend(): Promise<void> {
    const lines = this._lines;
    for (let part = 0, found = 0; lines.start && !found && part < MAX_EARLIER_PARTS; part++) {
      const { start, room } = lines;
      const offset = Math.max(0, start - PART_BYTES);
      const reply = await this._model.request('log', { ...this._whose, offset, limit: start - offset, earlier: room });
      if (this.isDisposed || reply.offset !== start || reply.start >= start) {
        return;
      }
      found = reply.lines.length;
      // Earlier lines take the place of the newest ones.
      this._detached = !lines.prepend(reply.lines, reply.start) || this._detached;
    }
  }

  private async _toEnd(): Promise<void> {
    if (this._detached) {
      this._detached = this._began = this._ended = false;
      this._lines.reset();
      await this._read();
    }
    this._page.follow();
  }

  private _setWrap(on: boolean): void {
    this._wrap.setAttribute('aria-pressed', String(on));
    this._page.wrap = on;
  }

  private _buttons(): void {
    this._follow.setAttribute('aria-pressed', String(this._page.follows && !this._detached));
  }

  private _draw(): void {
    const { trans } = this._context;
    const model = this._model;
    const row = model.run(this.handle);
    const label = this.child ? this.name || this.child : row?.name;
    const title = label ? trans.__('Log: %1', label) : '';
    if (title && this.title.label !== title) {
      this.title.label = title;
      this.title.caption = trans.__('Log of %1', this.child ? `${label} (${this.handle})` : this.handle);
    }
    if (!this.isVisible && this._drawn) {
      return;
    }
    this._drawn = true;
    const parts = this.child ? [`${this.name || this.child} (${this.handle})`] : [row?.name && row.name !== this.handle ? `${row.name} (${this.handle})` : this.handle];
    if (row && !this.child) {
      parts.push(runLine(trans, row, Date.now() / 1000));
    }
    if (this._lines.end) {
      parts.push(bytes(this._lines.end));
    }
    if (this._restarts) {
      parts.push(trans.__('truncated by the job'));
    }
    const text = parts.join(', ');
    if (this._state.textContent !== text) {
      this._state.textContent = text;
      this._state.title = this._path;
    }
    const empty = this._began && !this._lines.lines.length;
    const reason =
      (this._ended ? '' : quiet(trans, model.connection, trans.__('the log'))) ||
      this._failure ||
      (empty ? (this._ended ? trans.__('The log is empty.') : trans.__('Nothing has been written yet.')) : '') ||
      (this._began ? '' : trans.__('Reading the log…'));
    if (this._quiet.textContent !== reason) {
      this._quiet.textContent = reason;
    }
    this._quiet.hidden = !reason;
    this._earlier.hidden = !this._lines.start || !this._began || this._rank === ALL_RANKS;
    this._earlier.disabled = !model.connection.ready;
    this._copy.hidden = !this._path;
    this._buttons();
  }

  private readonly _model: IPanelModel;
  private readonly _state: HTMLElement;
  private readonly _quiet: HTMLElement;
  private readonly _follow: HTMLButtonElement;
  private readonly _wrap: HTMLButtonElement;
  private readonly _copy: HTMLButtonElement;
  private readonly _earlier: HTMLButtonElement;
  private readonly _page: LogPage;
  private readonly _look: { dispose(): void };
  private readonly _lines = new LogLines();
  /** Names this view of the log to the kernel, which keeps its screen. */
  private readonly _screen = UUID.uuid4();
  private readonly _timer: ReturnType<typeof setInterval>;
  private _pollTimer: ReturnType<typeof setTimeout> | undefined;
  /** Size of the log in bytes at the last update of the row */
  private _bytes = 0;
  private _restarts = 0;
  private readonly _rankSelect: HTMLSelectElement;
  /** Process whose log is shown; ALL_RANKS for all. */
  private _rank = 0;
  /** Number of processes with a log of their own that are offered; 0 before the first reply. */
  private _ranks = 0;
  private _rankLogs = new RankLogs();
  private _hasChosen = false;
  private _path = '';
  private _failure = '';
  private _last = 0;
  private _began = false;
  private _ended = false;
  private _reading = false;
  private _wantsEarlier = false;
  private _drawn = false;
  /** Whether earlier lines have replaced the newest ones: no lines are appended until the user scrolls to the end. */
  private _detached = false;
}
