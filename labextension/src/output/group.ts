/** The renderer of the runs that one cell has submitted: one table, and one run of it in full below. */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { confirmCancel, requestCancel } from '../cancel';
import { Sparkline } from '../charts/sparkline';
import { ago, duration } from '../format';
import { messageOf, NoAnswer } from '../kernel/client';
import { sessionOf } from '../kernel/connection';
import { CommandIDs } from '../panel/tokens';
import { GROUP_MIME, IGroupRow, IRunGroup } from '../protocol';
import { isWhole, stateOf, TERMINAL } from '../record';
import { LOAD_COMMAND } from '../tokens';
import { complete } from '../untyped';
import { IRunHost, keyOf } from './notebook';
import { showRun } from './renderer';
import { SlotLayout } from './slotLayout';

/** Milliseconds. */
const TICK_INTERVAL_MS = 1000;
const SILENCE_TIMEOUT_MS = 3000;
const MAX_POLL_INTERVAL_MS = 10000;

const CURVE_WIDTH = 80;
const CURVE_HEIGHT = 18;

/** Every field of a group from a saved notebook. */
export function normaliseGroup(x: unknown): IRunGroup {
  const group = complete<IRunGroup>('IRunGroup', x);
  return {
    ...group,
    handles: group.handles.filter(Boolean),
    rows: group.rows.map(row => ({ ...row, name: row.name || row.handle || '?', state: stateOf(row.state) })),
    done: group.done || group.rows.every(({ state }) => TERMINAL.has(stateOf(state)))
  };
}

function element<K extends keyof HTMLElementTagNameMap>(tag: K, name: string, content = ''): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = `jp-AmlGroup-${name}`;
  node.textContent = content;
  return node;
}

export class GroupOutput extends Widget implements IRenderMime.IRenderer {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _host: IRunHost,
    private readonly _commands: CommandRegistry
  ) {
    super();
    this.addClass('jp-AmlRun');
    this.addClass('jp-AmlGroup');
    this._title = element('div', 'title');
    this._scroll = element('div', 'scroll');
    this._same = element('div', 'same');
    this._verdict = element('div', 'verdict');
    this._notice = element('div', 'notice');
    this._notice.setAttribute('role', 'status');
    const slot = element('div', 'slot');
    this.node.append(this._title, this._notice, this._scroll, this._verdict, this._same, slot);
    this._slot = new SlotLayout(() => slot);
    this.layout = this._slot;
    this._seen = new IntersectionObserver(entries => {
      this._onScreen = entries[entries.length - 1].isIntersecting;
    });
    this._seen.observe(this.node);
    _host.kernelChanged?.connect(this._draw, this);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const group = normaliseGroup(model.data[GROUP_MIME]);
    const isNew = this._group !== null || Math.abs(Date.now() / 1000 - group.seen_at) < SILENCE_TIMEOUT_MS / 1000;
    this._trusted = model.trusted;
    this._received = isNew ? Date.now() : 0;
    this._take(group);
  }

  dispose(): void {
    if (!this.isDisposed) {
      clearInterval(this._timer);
      this._seen.disconnect();
      this._host.kernelChanged?.disconnect(this._draw, this);
      super.dispose();
    }
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._tickWhileNeeded();
  }

  private get _mayPoll(): boolean {
    return this._trusted && this._host.kernel !== null && this._group !== null && this._group.handles.every(isWhole);
  }

  private _take(group: IRunGroup): void {
    this._group = group;
    this._draw();
    this._tickWhileNeeded();
  }

  private _tickWhileNeeded(): void {
    const needed = this._group !== null && !this._group.done && !this.isDisposed;
    if (needed && this._timer === undefined) {
      this._timer = setInterval(() => void this._tick(), TICK_INTERVAL_MS);
    } else if (!needed) {
      clearInterval(this._timer);
      this._timer = undefined;
    }
  }

  private async _tick(): Promise<void> {
    if (!this.isVisible || !this._onScreen || document.hidden) {
      return;
    }
    this._drawTimes();
    const isSilent = Date.now() - this._received > SILENCE_TIMEOUT_MS;
    if (isSilent && !this._polling && Date.now() >= this._pausedUntil && this._mayPoll) {
      this._polling = true;
      try {
        await this._poll();
      } finally {
        this._polling = false;
      }
    }
    if (!this.isDisposed) {
      this._drawNotice();
    }
  }

  /** The page was loaded after the cell ran, so that the kernel's updates do not arrive: ask for them. */
  private async _poll(): Promise<void> {
    const { kernel } = this._host;
    const group = this._group;
    if (!kernel || !group) {
      return;
    }
    const session = sessionOf(kernel);
    if ((await session.kind()) !== 'ready') {
      this._pausedUntil = Date.now() + MAX_POLL_INTERVAL_MS;
      return;
    }
    try {
      const reply = await session.request('group', { handles: group.handles });
      if (this._group !== group || this.isDisposed) {
        return;
      }
      const fresh = normaliseGroup(reply.group);
      this._received = Date.now();
      this._failure = '';
      const essence = (g: IRunGroup) => JSON.stringify({ ...g, seen_at: 0 });
      if (essence(fresh) !== essence(group) && fresh.rows.length) {
        const bundle = { 'text/plain': reply.text, 'text/html': reply.html, [GROUP_MIME]: reply.group };
        if (!this._host.write(GROUP_MIME, keyOf(group), bundle)) {
          this._take(fresh);
        }
      }
    } catch (error) {
      this._failure = error instanceof NoAnswer ? '' : messageOf(error);
      this._pausedUntil = Date.now() + MAX_POLL_INTERVAL_MS;
    }
  }

  private _draw(): void {
    const group = this._group;
    if (!group) {
      return;
    }
    const trans = this._trans;
    const counts = new Map<string, number>();
    group.rows.forEach(({ state }) => counts.set(state, (counts.get(state) ?? 0) + 1));
    const states = [...counts].map(([state, n]) => `${n} ${state}`).join(', ');
    const total = group.rows.length + group.hidden;
    const heading = element('strong', 'count', trans._n('%1 run', '%1 runs', total));
    this._title.replaceChildren(heading, element('span', 'states', states));
    const live = group.rows.filter(row => !TERMINAL.has(row.state));
    if (live.length > 1 && this._mayPoll) {
      const all = this._button(trans.__('Cancel all'), trans.__('Cancel all runs of this cell'), () => void this._cancel(live));
      all.classList.add('jp-AmlGroup-cancelAll');
      this._title.append(all);
    }
    const same = Object.entries(group.same).map(([name, value]) => `${name}=${String(value)}`);
    this._same.textContent = same.length ? trans.__('The same in all: %1', same.join(', ')) : '';
    this._verdict.replaceChildren(
      ...group.verdict.map(sentence => {
        const line = document.createElement('div');
        line.textContent = sentence;
        return line;
      })
    );
    this._drawTable(group);
    this._drawTimes();
    this._drawNotice();
  }

  private _drawTable(group: IRunGroup): void {
    const trans = this._trans;
    const key = JSON.stringify([group.columns, group.curve, group.rows, group.hidden, this._open, this._mayPoll, this._trusted]);
    if (key === this._key) {
      return;
    }
    this._key = key;
    // Redrawing must not move the focus of a keyboard.
    const focused = this.node.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset.key : undefined;
    const table = element('table', 'table');
    table.setAttribute('aria-label', trans.__('Runs of this cell'));
    const head = table.createTHead().insertRow();
    const titles: [name: string, title: string][] = [
      ['name', trans.__('Run')],
      ['state', trans.__('State')],
      ...group.columns.map(({ kind, name }): [string, string] => [kind, name]),
      ...(group.curve ? [['curve', group.curve] as [string, string]] : []),
      ['ran', trans.__('Ran')],
      ['actions', trans.__('Views')]
    ];
    for (const [name, title] of titles) {
      const created = element('th', name, title);
      created.scope = 'col';
      head.append(created);
    }
    const body = table.createTBody();
    this._times = [];
    for (const row of group.rows) {
      this._drawRow(body, row, group, titles.length);
    }
    const more = group.hidden ? [element('div', 'same', trans._n('and %1 earlier', 'and %1 earlier', group.hidden))] : [];
    this._scroll.replaceChildren(table, ...more);
    if (focused) {
      this._scroll.querySelector<HTMLElement>(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    }
  }

  private _drawRow(body: HTMLTableSectionElement, row: IGroupRow, group: IRunGroup, width: number): void {
    const trans = this._trans;
    const line = body.insertRow();
    line.dataset.handle = row.handle;
    line.dataset.state = row.state;
    const cell = (name: string, ...parts: (string | Node)[]) => {
      const created = element('td', name);
      created.append(...parts);
      line.append(created);
      return created;
    };
    const isOpen = this._open === row.handle;
    const name = this._button(row.name, '', () => void this._toggle(row));
    name.classList.add('jp-AmlGroup-open');
    name.dataset.key = `open ${row.handle}`;
    name.title = isOpen ? trans.__('Hide this run') : trans.__('Show this run below: %1', row.handle);
    name.setAttribute('aria-expanded', String(isOpen));
    name.disabled = !this._mayPoll && !isOpen;
    name.classList.toggle('jp-mod-plain', name.disabled);
    cell('name', name);
    const state = cell('state', row.cancel_requested && !TERMINAL.has(row.state) ? trans.__('canceling') : row.state);
    state.title = row.reachable ? row.error : trans.__('The target is not responding.');
    group.columns.forEach(({ kind }, i) => {
      const isBest = row.best.includes(i);
      const value = cell(kind, row.values[i] ?? '');
      value.classList.toggle('jp-mod-best', isBest);
      if (isBest) {
        value.append(' ', element('span', 'best', trans.__('best')));
      }
    });
    if (group.curve) {
      const curve = new Sparkline('jp-AmlGroup-spark', CURVE_WIDTH, CURVE_HEIGHT);
      curve.update(row.curve);
      cell('curve', curve.node);
    }
    this._times.push(cell('ran'));
    cell('actions', ...this._actions(row));
    if (row.error) {
      const why = body.insertRow();
      why.className = 'jp-AmlGroup-why';
      const reason = why.insertCell();
      reason.colSpan = width;
      reason.textContent = row.error;
    }
  }

  private _actions(row: IGroupRow): HTMLElement[] {
    const trans = this._trans;
    const found: [label: string, act: () => void][] = [];
    if (this._trusted && isWhole(row.handle)) {
      // Tabs find a kernel themselves.
      for (const [id, label] of [[CommandIDs.runLogs, trans.__('Log')], [CommandIDs.runTab, trans.__('Dashboard')]] as const) {
        if (this._commands.hasCommand(id)) {
          found.push([label, () => void this._commands.execute(id, { handle: row.handle })]);
        }
      }
      if (this._mayPoll && !TERMINAL.has(row.state) && !row.cancel_requested) {
        found.push([trans.__('Cancel'), () => void this._cancel([row])]);
      }
    }
    return found.map(([label, act]) => {
      const button = this._button(label, `${label}: ${row.name}`, act);
      button.dataset.key = `${label} ${row.handle}`;
      return button;
    });
  }

  private _button(label: string, name: string, act: () => void): HTMLButtonElement {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'jp-AmlRun-link';
    button.textContent = label;
    if (name) {
      button.setAttribute('aria-label', name);
    }
    button.addEventListener('click', act);
    return button;
  }

  /** Times grow between the updates of the kernel. */
  private _drawTimes(): void {
    const now = Date.now() / 1000;
    this._group?.rows.forEach((row, i) => {
      const seconds = row.started === null ? null : Math.max(0, (row.ended ?? now) - row.started);
      const shown = seconds === null ? '' : row.ended === null ? duration(Math.round(seconds)) : duration(seconds);
      if (this._times[i] && this._times[i].textContent !== shown) {
        this._times[i].textContent = shown;
      }
    });
  }

  private _drawNotice(): void {
    const group = this._group;
    let notice = this._failure;
    if (group && !group.done && Date.now() - this._received > 2 * SILENCE_TIMEOUT_MS) {
      const age = this._trans.__('Last update %1 ago. The runs may still be running.', ago(Date.now() / 1000 - group.seen_at));
      notice = `${notice} ${age} ${this._trusted ? this._trans.__('To reconnect, run: %1', LOAD_COMMAND) : ''}`.trim();
    }
    if (this._notice.textContent !== notice) {
      this._notice.textContent = notice;
    }
  }

  /** Show one run below the table, as if it were the only one; a second click hides it. */
  private async _toggle(row: IGroupRow): Promise<void> {
    const { kernel } = this._host;
    const isOpen = this._open === row.handle;
    this._slot.widgets.slice().forEach(widget => widget.dispose());
    this._open = isOpen ? '' : row.handle;
    this._failure = '';
    this._draw();
    if (isOpen || !kernel) {
      return;
    }
    try {
      const isWanted = () => !this.isDisposed && this._open === row.handle;
      await showRun(this._slot, row.handle, isWanted, this._trans, this._host, this._commands, this._trusted);
    } catch (error) {
      this._open = '';
      this._failure =
        error instanceof NoAnswer ? this._trans.__('The kernel is not responding. To see the run: %1', `%aml_runs attach ${row.handle}`) : messageOf(error);
      this._draw();
    }
  }

  private async _cancel(rows: readonly IGroupRow[]): Promise<void> {
    const { kernel } = this._host;
    if (!kernel || !(await confirmCancel(this._trans, rows)) || this.isDisposed) {
      return;
    }
    const { errors } = await requestCancel(this._trans, sessionOf(kernel), rows);
    this._failure = errors.join(' ');
    this._pausedUntil = 0;
    this._drawNotice();
  }

  private readonly _title: HTMLElement;
  private readonly _verdict: HTMLElement;
  private readonly _scroll: HTMLElement;
  private readonly _same: HTMLElement;
  private readonly _notice: HTMLElement;
  private readonly _slot: SlotLayout;
  private readonly _seen: IntersectionObserver;
  private _group: IRunGroup | null = null;
  private _trusted = false;
  private _onScreen = false;
  /** Milliseconds since 1970 of the latest news; 0 for a saved group. */
  private _received = 0;
  private _pausedUntil = 0;
  private _polling = false;
  private _failure = '';
  /** Handle of the run that is shown below the table. */
  private _open = '';
  private _times: HTMLElement[] = [];
  private _key = '';
  private _timer: ReturnType<typeof setInterval> | undefined;
}
