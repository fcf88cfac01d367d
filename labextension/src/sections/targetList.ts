/** List of compute targets and its rows. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { caretRightIcon, closeIcon } from '@jupyterlab/ui-components';
import { ago, json } from '../format';
import { targetIcon } from '../panel/icons';
import { selection } from '../panel/selection';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import type { ITargetAction, ITargetRow } from '../protocol';
import { allow, button, element, say } from './dom';
import { labelText } from './fields';
import { details, facts, price, stateText, verbText, workText } from './targetText';

export interface IListHost extends IRowHost {
  /** Make a target the current one, unless it already is. */
  use(name: string): void;
}

export class TargetList {
  /** Create the list; clicks are handled in all of `around`, which contains it. */
  constructor(
    private readonly _context: IPanelContext,
    private readonly _host: IListHost,
    around: HTMLElement
  ) {
    this.node.setAttribute('role', 'tree');
    this.node.setAttribute('aria-label', _context.trans.__('Compute targets'));
    this.node.addEventListener('keydown', event => this._key(event));
    around.addEventListener('click', event => this._click(event), true);
  }

  readonly node = element('div', 'jp-AmlCompute-list');

  /** Name of the selected target; empty for none. */
  get selected(): string {
    return this._views.has(this._selected) ? this._selected : '';
  }

  /** Whether the selected row shows its details. */
  get open(): boolean {
    return this._open;
  }

  /** Select a target; the caller redraws the list. */
  choose(name: string, open: boolean): void {
    this._selected = name;
    this._open = open;
  }

  /** Name of the target whose details are open and show how its GPUs are used; empty for none. */
  get watched(): string {
    const row = this._open ? this._views.get(this._selected)?.row : undefined;
    return row?.gpu_rows.length ? row.name : '';
  }

  /** Row of a target; undefined before it is drawn. */
  row(name: string): HTMLElement | undefined {
    return this._views.get(name)?.node;
  }

  /** Focus the row that is the tab stop. */
  focus(): void {
    this.node.querySelector<HTMLElement>('[tabindex="0"]')?.focus();
  }

  /** Update the times, once a second. */
  tick(): void {
    this._views.forEach(view => view.tick());
  }

  draw(targets: readonly ITargetRow[], disabledReason: (name: string) => string): void {
    const focused = this.node.contains(document.activeElement);
    for (const [name, view] of this._views) {
      if (!targets.some(row => row.name === name)) {
        view.node.remove();
        this._views.delete(name);
      }
    }
    if (!this._views.has(this._selected) && !targets.some(row => row.name === this._selected)) {
      this._selected = selection.target = '';
    }
    let before: Element | null = this.node.firstElementChild;
    for (const row of targets) {
      let view = this._views.get(row.name);
      if (!view) {
        this._views.set(row.name, (view = new TargetView(this._host, row)));
      } else if (view.row !== row) {
        view.update(row);
      }
      // Moving a node removes the focus from it, so only misplaced nodes are moved.
      if (view.node === before) {
        before = before.nextElementSibling;
      } else {
        this.node.insertBefore(view.node, before);
      }
      const selected = row.name === this._selected;
      view.show(selected, selected && this._open, disabledReason(row.name));
    }
    const entry = this._selected || targets[0]?.name;
    this._views.forEach((view, name) => void (view.node.tabIndex = name === entry ? 0 : -1));
    if (focused && !this.node.contains(document.activeElement) && entry) {
      this._views.get(entry)?.node.focus({ preventScroll: true });
    }
  }

  /**
   * A double click uses the target of its first click, regardless of the position of the second one.
   *
   * The first click opens a row and closes another one above it, so the second one hits another element there,
   * possibly a button.
   */
  private _click(event: MouseEvent): void {
    const summary = (event.target as Element).closest('.jp-AmlTarget-summary');
    if (event.detail === 1) {
      this._clicked = summary?.closest<HTMLElement>('.jp-AmlTarget')?.dataset.target ?? '';
    } else if (event.detail === 2 && this._clicked) {
      event.stopPropagation();
      this._host.use(this._clicked);
    }
  }

  private _key(event: KeyboardEvent): void {
    const names = this._context.model.targets.map(row => row.name);
    const at = names.findIndex(name => this._views.get(name)?.node === event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const name = names[at];
    const go = (to: number) => {
      const next = names[Math.max(0, Math.min(names.length - 1, to))];
      this._host.select(next, this._open && next === this._selected);
      this._views.get(next)?.node.focus();
    };
    switch (event.key) {
      case 'ArrowDown':
        go(at + 1);
        break;
      case 'ArrowUp':
        go(at - 1);
        break;
      case 'Home':
        go(0);
        break;
      case 'End':
        go(names.length - 1);
        break;
      case 'Enter':
        // Same action as a double click.
        this._host.select(name, true);
        this._host.use(name);
        break;
      case ' ':
      case 'ArrowRight':
        this._host.select(name, true);
        break;
      case 'ArrowLeft':
      case 'Escape':
        this._host.select(name, false);
        break;
      case 'Delete':
        this._host.select(name, this._open);
        void this._context.app.commands.execute(CommandIDs.targetDelete, { target: name });
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private readonly _views = new Map<string, TargetView>();
  private _selected = '';
  private _open = false;
  private _clicked = '';
}

/** Actions of a row. */
interface IRowHost {
  readonly trans: TranslationBundle;
  select(name: string, open: boolean): void;
  perform(name: string, act: ITargetAction): void;
  dismiss(name: string): void;
  /** Whether the stored value is the default of targets of this kind. */
  isDefault(kind: string, name: string, value: unknown): boolean;
}

/** Verbs whose buttons have the warning color. */
const WARNING_VERBS = new Set(['delete', 'detach']);

class TargetView {
  constructor(
    private readonly _host: IRowHost,
    row: ITargetRow
  ) {
    this._row = row;
    const { trans } = _host;
    this.node.dataset.target = row.name;
    this.node.setAttribute('role', 'treeitem');
    this.node.setAttribute('aria-level', '1');
    this.node.tabIndex = -1;
    caretRightIcon.element({ container: this._caret });
    this._caret.setAttribute('aria-hidden', 'true');
    this._icon.setAttribute('aria-hidden', 'true');
    this._dot.setAttribute('aria-hidden', 'true');
    this._spinner.setAttribute('aria-hidden', 'true');
    this._workSaid.setAttribute('role', 'status');
    this._dismiss.type = 'button';
    this._dismiss.title = trans.__('Dismiss');
    this._dismiss.setAttribute('aria-label', this._dismiss.title);
    closeIcon.element({ container: this._dismiss });
    this._dismiss.addEventListener('click', event => {
      event.stopPropagation();
      _host.dismiss(this._row.name);
    });
    this._detail.setAttribute('role', 'group');
    const head = element('div', 'jp-AmlTarget-head', '', this._caret, this._icon, this._name, this._badge, this._price);
    const state = element('div', 'jp-AmlTarget-facts', '', this._dot, this._state, this._facts);
    this._work.append(this._spinner, element('span', 'jp-AmlTarget-workText', '', this._workSaid, this._workAge), this._dismiss);
    this._detail.append(this._sentence, this._actions, this._table, this._checked);
    this._summary.append(head, state, this._work);
    this.node.append(this._summary, this._detail);
    this._caret.addEventListener('click', event => {
      event.stopPropagation();
      _host.select(this._row.name, !this._open);
    });
    this._summary.addEventListener('click', () => _host.select(this._row.name, true));
    this.node.addEventListener('contextmenu', () => _host.select(this._row.name, this._open));
    this.update(row);
    this.show(false, false, '');
  }

  readonly node = element('div', 'jp-AmlTarget');

  get row(): ITargetRow {
    return this._row;
  }

  /** Draw a changed row. */
  update(row: ITargetRow): void {
    const { trans } = this._host;
    this._row = row;
    this.node.dataset.state = row.state;
    targetIcon(row.kind, row.price !== null || row.price_node !== null).element({ container: this._icon });
    this._icon.title = row.title || row.kind;
    say(this._name, row.name);
    this._name.title = row.name;
    this.node.classList.toggle('jp-mod-current', row.current);
    say(this._badge, row.current ? trans.__('in use') : '');
    this._badge.hidden = !row.current;
    say(this._price, price(row.price, row.currency, trans));
    say(this._state, stateText(row.state, trans));
    say(this._facts, facts(row, trans).map(text => ` · ${text}`).join(''));
    this._facts.title = facts(row, trans).join(' · ');
    this._drawWork();
    this.node.setAttribute(
      'aria-label',
      [row.name, this._badge.textContent, this._state.textContent, ...facts(row, trans), this._price.textContent]
        .filter(text => text)
        .join(', ')
    );
    if (this._open) {
      this._drawDetail();
    }
  }

  /** Show the row as selected or not, with or without details; `disabledReason`: why actions are disabled. */
  show(selected: boolean, open: boolean, disabledReason: string): void {
    this._whyNot = disabledReason;
    this._open = open;
    this.node.classList.toggle('jp-mod-selected', selected);
    this.node.setAttribute('aria-selected', String(selected));
    this.node.setAttribute('aria-expanded', String(open));
    this._detail.hidden = !open;
    this._dismiss.disabled = disabledReason !== '';
    if (open) {
      this._drawDetail();
    }
  }

  /** Update the parts that depend on the time. */
  tick(): void {
    this._drawWork();
    if (this._open) {
      this._drawChecked();
    }
  }

  private _drawWork(): void {
    const { trans } = this._host;
    const { work } = this._row;
    this._work.hidden = work === null;
    if (work === null) {
      return;
    }
    const failed = work.error !== '';
    this._work.classList.toggle('jp-mod-failed', failed);
    this._spinner.hidden = failed;
    this._dismiss.hidden = !failed;
    if (failed) {
      say(this._workSaid, trans.__('%1 failed: %2', verbText(work.verb, trans), work.error));
      say(this._workAge, '');
      return;
    }
    const since = ago(Date.now() / 1000 - work.since);
    const what = workText(work.verb, trans);
    say(this._workSaid, work.detail ? `${what} · ${work.detail}` : what);
    // The time changes every second, so it is not announced by screen readers.
    say(this._workAge, ` · ${since}`);
  }

  private _drawDetail(): void {
    const { trans } = this._host;
    const row = this._row;
    say(this._sentence, row.detail);
    this._sentence.hidden = row.detail === '' || row.detail === row.work?.detail;
    const known = details(row, trans);
    const stored = Object.entries(row.fields)
      .filter(([name, value]) => value !== null && value !== '' && !this._host.isDefault(row.kind, name, value))
      .map(([name, value]): [string, string] => [labelText(name), json(value, 200)])
      // Omit values that the row already shows.
      .filter(([label, text]) => text !== row.name && !known.some(([its, other]) => other === text || its === label));
    const lines = [...known, ...stored];
    const signature = JSON.stringify(lines);
    if (signature !== this._drawn) {
      this._drawn = signature;
      this._table.replaceChildren(
        ...lines.flatMap(([label, text]) => [element('dt', '', label), element('dd', '', text)])
      );
    }
    this._drawChecked();
    this._drawActs(row.acts);
  }

  private _drawChecked(): void {
    const { trans } = this._host;
    const at = this._row.checked_at;
    say(this._checked, at ? trans.__('Checked %1 ago', ago(Date.now() / 1000 - at)) : trans.__('Not checked yet'));
    this._checked.title = at ? new Date(at * 1000).toLocaleString() : '';
  }

  /** Draw the buttons; keep their elements, so that the focus is kept while the row changes. */
  private _drawActs(acts: readonly ITargetAction[]): void {
    const available = acts.filter(act => act.verb !== 'dismiss');
    for (const [verb, old] of this._buttons) {
      if (!available.some(act => act.verb === verb)) {
        old.remove();
        this._buttons.delete(verb);
      }
    }
    for (const act of available) {
      let created = this._buttons.get(act.verb);
      if (!created) {
        const label = verbText(act.verb, this._host.trans) + (act.fields.length ? '…' : '');
        created = button(label, WARNING_VERBS.has(act.verb) ? 'warn' : 'reject', () => {
          const now = this._row.acts.find(({ verb }) => verb === act.verb);
          if (now) {
            this._host.perform(this._row.name, now);
          }
        });
        created.dataset.verb = act.verb;
        this._buttons.set(act.verb, created);
      }
      allow(created, this._whyNot || act.disabled_reason);
    }
    // Sort the buttons; one in its place keeps the focus.
    available.forEach(({ verb }, at) => {
      const created = this._buttons.get(verb);
      if (created && this._actions.children[at] !== created) {
        this._actions.insertBefore(created, this._actions.children[at] ?? null);
      }
    });
  }

  private _row: ITargetRow;
  private _open = false;
  private _whyNot = '';
  private _drawn = '';
  private readonly _buttons = new Map<string, HTMLButtonElement>();
  private readonly _summary = element('div', 'jp-AmlTarget-summary');
  private readonly _caret = element('span', 'jp-AmlTarget-caret');
  private readonly _icon = element('span', 'jp-AmlTarget-icon');
  private readonly _name = element('span', 'jp-AmlTarget-name');
  private readonly _badge = element('span', 'jp-AmlTarget-badge');
  private readonly _price = element('span', 'jp-AmlTarget-price');
  private readonly _dot = element('span', 'jp-AmlTarget-dot');
  private readonly _state = element('span', 'jp-AmlTarget-state');
  private readonly _facts = element('span', 'jp-AmlTarget-more');
  private readonly _work = element('div', 'jp-AmlTarget-work');
  private readonly _spinner = element('span', 'jp-AmlTarget-spinner');
  private readonly _workSaid = element('span');
  private readonly _workAge = element('span');
  private readonly _dismiss = element('button', 'jp-AmlTarget-dismiss');
  private readonly _detail = element('div', 'jp-AmlTarget-detail');
  private readonly _sentence = element('p', 'jp-AmlTarget-sentence');
  private readonly _table = element('dl', 'jp-AmlTarget-table');
  private readonly _checked = element('div', 'jp-AmlTarget-checked');
  private readonly _actions = element('div', 'jp-AmlTarget-acts');
}
