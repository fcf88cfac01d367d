/** One target in the list, with its details when it is selected. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { caretRightIcon, closeIcon } from '@jupyterlab/ui-components';
import { ago, json } from '../format';
import type { IAct, ITargetRow } from '../protocol';
import { details, facts, price, stateText, verbText, workText } from './compute_text';
import { targetIcon } from './compute_icons';
import { labelText } from './fields';
import { allow, button, element, say } from './dom';

/** What a row asks of its list. */
export interface IRowHost {
  readonly trans: TranslationBundle;
  select(name: string, open: boolean): void;
  perform(name: string, act: IAct): void;
  dismiss(name: string): void;
  /** The stored value is what a target of this kind has anyway. */
  isDefault(kind: string, name: string, value: unknown): boolean;
}

/** Acts whose button warns by its colour. */
const WARNS = new Set(['delete', 'detach']);

export class TargetView {
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
    this._detail.append(this._sentence, this._acts, this._table, this._checked);
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

  /** Selected or not, its details open or not; `whyNot`: why nothing can be done with any target. */
  show(selected: boolean, open: boolean, whyNot: string): void {
    this._whyNot = whyNot;
    this._open = open;
    this.node.classList.toggle('jp-mod-selected', selected);
    this.node.setAttribute('aria-selected', String(selected));
    this.node.setAttribute('aria-expanded', String(open));
    this._detail.hidden = !open;
    this._dismiss.disabled = whyNot !== '';
    if (open) {
      this._drawDetail();
    }
  }

  /** Draw what depends on the time. */
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
    // It changes every second: seen, not read out.
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
      // What the row says already needs no second line.
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

  /** Buttons stay the same elements, so that one keeps the focus while the row changes. */
  private _drawActs(acts: readonly IAct[]): void {
    const wanted = acts.filter(act => act.verb !== 'dismiss');
    for (const [verb, old] of this._buttons) {
      if (!wanted.some(act => act.verb === verb)) {
        old.remove();
        this._buttons.delete(verb);
      }
    }
    for (const act of wanted) {
      let made = this._buttons.get(act.verb);
      if (!made) {
        const label = verbText(act.verb, this._host.trans) + (act.fields.length ? '…' : '');
        made = button(label, WARNS.has(act.verb) ? 'warn' : 'reject', () => {
          const now = this._row.acts.find(({ verb }) => verb === act.verb);
          if (now) {
            this._host.perform(this._row.name, now);
          }
        });
        made.dataset.verb = act.verb;
        this._buttons.set(act.verb, made);
      }
      allow(made, this._whyNot || act.why_not);
    }
    // In their order; one that is in its place keeps the focus.
    wanted.forEach(({ verb }, at) => {
      const made = this._buttons.get(verb);
      if (made && this._acts.children[at] !== made) {
        this._acts.insertBefore(made, this._acts.children[at] ?? null);
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
  private readonly _acts = element('div', 'jp-AmlTarget-acts');
}
