/** The Compute section: the targets, what can be done with them, and the form for a new one. */

import {
  LabIcon,
  PanelWithToolbar,
  ToolbarButton,
  addIcon,
  checkIcon,
  refreshIcon
} from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { Panel, Widget } from '@lumino/widgets';
import { keeperOf } from '../panel/sections';
import { selection } from '../panel/selection';
import { CommandIDs, IPanelContext, IPanelModel } from '../panel/tokens';
import type { IAct } from '../protocol';
import { Acts, IOutcome, notify } from './acts';
import { NewTarget } from './compute_new';
import { OutcomeView } from './compute_outcome';
import { IRowHost, TargetView } from './compute_row';
import { element, say } from './dom';
import { toolbarButton } from './toolbar';

const sections = new WeakMap<IPanelModel, ComputeSection>();

export class ComputeSection extends PanelWithToolbar implements IRowHost {
  constructor(private readonly _context: IPanelContext) {
    super();
    const { trans, model } = _context;
    sections.set(model, this);
    this.addClass('jp-AmlCompute');
    this.title.label = trans.__('Compute');
    this._acts = Acts.of(_context);
    this._outcome = new OutcomeView(trans);
    this._list.setAttribute('role', 'tree');
    this._list.setAttribute('aria-label', trans.__('Compute targets'));
    this._list.addEventListener('keydown', event => this._key(event));
    this._body.node.addEventListener('click', event => this._click(event), true);
    // What came of an act stays in sight, and covers no row.
    this.addWidget(new Widget({ node: this._outcome.node }));
    this._body.addClass('jp-AmlCompute-body');
    this._body.addWidget(new Widget({ node: element('div', '', '', this._empty, this._list) }));
    this.addWidget(this._body);
    this._addButtons();
    model.targetsChanged.connect(this._draw, this);
    model.connectionChanged.connect(this._draw, this);
    this._acts.pendingChanged.connect(this._draw, this);
    this._acts.outcome.connect(this._show, this);
    this._draw();
  }

  /** The section of this page; `null` before the panel was made. */
  static of(context: IPanelContext): ComputeSection | null {
    return sections.get(context.model) ?? null;
  }

  get trans(): IPanelContext['trans'] {
    return this._context.trans;
  }

  /** Name of the selected target; empty for none. */
  get selected(): string {
    return this._views.has(this._selected) ? this._selected : '';
  }

  /** Open the form for a new target. */
  openNew(): void {
    if (this._new) {
      this._new.node.querySelector<HTMLElement>('input, select')?.focus();
      return;
    }
    const form = (this._new = new NewTarget(this._context));
    form.closed.connect(() => this._closeNew());
    form.enable(this._whyNot());
    this._body.insertWidget(0, form);
    void form.load().then(() => this._makeRoom(form.node));
  }

  select(name: string, open: boolean): void {
    this._selected = name;
    this._open = open;
    if (open) {
      void this._learnDefaults();
    }
    this._draw();
    selection.target = name;
    // The row takes the focus, not a button in it that was pressed; and not from who is elsewhere by now.
    const view = this._views.get(name);
    if (view && !view.node.contains(document.activeElement) && this.node.contains(document.activeElement)) {
      view.node.focus({ preventScroll: true });
    }
    this._makeRoom(view?.node);
  }

  use(name: string): void {
    const row = this._context.model.target(name);
    const act = row?.acts.find(({ verb }) => verb === 'use');
    if (row && !row.current && act && !act.why_not && this._whyNot() === '') {
      void this._acts.perform(name, act);
    }
  }

  perform(name: string, act: IAct): void {
    void this._acts.perform(name, act);
  }

  dismiss(name: string): void {
    void this._acts.run({ verb: 'dismiss', target: name });
  }

  isDefault(kind: string, name: string, value: unknown): boolean {
    return this._defaults.has(`${kind} ${name} ${JSON.stringify(value)}`);
  }

  dispose(): void {
    clearInterval(this._timer);
    this._outcome.dispose();
    const { model } = this._context;
    model.targetsChanged.disconnect(this._draw, this);
    model.connectionChanged.disconnect(this._draw, this);
    this._acts.pendingChanged.disconnect(this._draw, this);
    this._acts.outcome.disconnect(this._show, this);
    sections.delete(model);
    super.dispose();
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._wake();
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._wake();
  }

  protected onBeforeHide(msg: Message): void {
    clearInterval(this._timer);
    super.onBeforeHide(msg);
  }

  protected onBeforeDetach(msg: Message): void {
    clearInterval(this._timer);
    super.onBeforeDetach(msg);
  }

  private _wake(): void {
    clearInterval(this._timer);
    if (this.isVisible) {
      this._draw();
      this._timer = window.setInterval(() => this._views.forEach(view => view.tick()), 1000);
    }
  }

  /** What targets have unless they are told otherwise: the details leave it out. */
  private async _learnDefaults(): Promise<void> {
    const { model } = this._context;
    if (model.connection.state !== 'ready' || this._kernel === model.kernel) {
      return;
    }
    const kernel = (this._kernel = model.kernel);
    try {
      const { kinds } = await model.kinds();
      if (this.isDisposed || kernel !== this._kernel) {
        return;
      }
      this._defaults = new Set(
        kinds.flatMap(({ kind, fields }) => fields.map(field => `${kind} ${field.name} ${JSON.stringify(field.default)}`))
      );
      this._draw();
    } catch {
      // Then the details are longer.
      this._kernel = kernel === this._kernel ? null : this._kernel;
    }
  }

  private _whyNot(): string {
    const { model, trans } = this._context;
    return model.connection.state === 'ready' ? '' : trans.__('The kernel does not answer now.');
  }

  private _draw(): void {
    const { model, trans } = this._context;
    const { targets } = model;
    const whyNot = this._whyNot();
    const focused = this._list.contains(document.activeElement);
    for (const [name, view] of this._views) {
      if (!targets.some(row => row.name === name)) {
        view.node.remove();
        this._views.delete(name);
      }
    }
    if (!this._views.has(this._selected) && !targets.some(row => row.name === this._selected)) {
      this._selected = selection.target = '';
    }
    let before: Element | null = this._list.firstElementChild;
    for (const row of targets) {
      let view = this._views.get(row.name);
      if (!view) {
        this._views.set(row.name, (view = new TargetView(this, row)));
      } else if (view.row !== row) {
        view.update(row);
      }
      // Moving a node takes the focus out of it, so only what is out of place is moved.
      if (view.node === before) {
        before = before.nextElementSibling;
      } else {
        this._list.insertBefore(view.node, before);
      }
      const pending = this._acts.pending(row.name) ? trans.__('Waiting for the kernel…') : '';
      const selected = row.name === this._selected;
      view.show(selected, selected && this._open, whyNot || pending);
    }
    const entry = this._selected || targets[0]?.name;
    this._views.forEach((view, name) => void (view.node.tabIndex = name === entry ? 0 : -1));
    if (focused && !this._list.contains(document.activeElement) && entry) {
      this._views.get(entry)?.node.focus({ preventScroll: true });
    }
    say(this._empty, model.connection.state === 'ready' ? trans.__('There are no targets.') : '');
    this._empty.hidden = targets.length > 0;
    this._new?.enable(whyNot);
    this._buttons.forEach(({ button, why }) => void (button.enabled = why() === ''));
    if (this._views.has(this._awaited)) {
      const made = this._awaited;
      this._awaited = '';
      this.select(made, true);
    }
  }

  private _addButtons(): void {
    const { trans, app } = this._context;
    const add = (name: string, icon: LabIcon, tooltip: string, id: string, why: () => string) => {
      const button = toolbarButton(icon, tooltip, () => void app.commands.execute(id));
      this.toolbar.addItem(name, button);
      this._buttons.push({ button, why });
    };
    const anyway = () => this._whyNot();
    add('new', addIcon, trans.__('New target…'), CommandIDs.targetNew, anyway);
    add('test', checkIcon, trans.__('Test the selected target'), CommandIDs.targetTest, () => {
      const name = this.selected || this._context.model.current;
      const act = this._context.model.target(name)?.acts.find(({ verb }) => verb === 'test');
      return this._whyNot() || (act ? act.why_not : '-');
    });
    add('refresh', refreshIcon, trans.__('Refresh'), CommandIDs.refresh, () => '');
  }

  private _closeNew(): void {
    const form = this._new;
    this._new = null;
    if (form) {
      const inside = form.node.contains(document.activeElement);
      form.dispose();
      if (inside) {
        this._list.querySelector<HTMLElement>('[tabindex="0"]')?.focus();
      }
      this._makeRoom();
    }
  }

  /** A form and details are seen whole where that can be, `node` of them first. */
  private _makeRoom(node?: HTMLElement): void {
    if (!this.isDisposed) {
      keeperOf(this.parent)?.grant(this, this._new ? 0.7 : this._open && this.selected ? 0.5 : 0);
      // The panel has its new sizes with the next frame.
      requestAnimationFrame(() => node?.scrollIntoView({ block: 'nearest' }));
    }
  }

  /** What came of an act: what was said, and what could have been typed. */
  private _show(_: Acts, outcome: IOutcome): void {
    notify(outcome, this.isVisible);
    if (outcome.wanted.verb === 'create' || outcome.wanted.verb === 'attach') {
      if (!outcome.done) {
        return; // The form shows it.
      }
      // Its row may come later than the answer.
      this._awaited = outcome.wanted.target;
      this._draw();
    }
    if (outcome.wanted.verb === 'dismiss' && outcome.done) {
      return;
    }
    this._outcome.show(outcome);
  }

  /**
   * A double click uses the target of its first click, wherever the second one hits.
   *
   * The first one opens the row and closes another above it, so that the second hits something else there,
   * a button maybe.
   */
  private _click(event: MouseEvent): void {
    const summary = (event.target as Element).closest('.jp-AmlTarget-summary');
    if (event.detail === 1) {
      this._clicked = summary?.closest<HTMLElement>('.jp-AmlTarget')?.dataset.target ?? '';
    } else if (event.detail === 2 && this._clicked) {
      event.stopPropagation();
      this.use(this._clicked);
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
      this.select(next, this._open && next === this._selected);
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
        // As a double click does.
        this.select(name, true);
        this.use(name);
        break;
      case ' ':
      case 'ArrowRight':
        this.select(name, true);
        break;
      case 'ArrowLeft':
      case 'Escape':
        this.select(name, false);
        break;
      case 'Delete':
        this.select(name, this._open);
        void this._context.app.commands.execute(CommandIDs.targetDelete, { target: name });
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private readonly _acts: Acts;
  private readonly _body = new Panel();
  private readonly _views = new Map<string, TargetView>();
  private readonly _buttons: { button: ToolbarButton; why: () => string }[] = [];
  private readonly _list = element('div', 'jp-AmlCompute-list');
  private readonly _empty = element('div', 'jp-AmlCompute-empty');
  private readonly _outcome: OutcomeView;
  private _new: NewTarget | null = null;
  private _defaults = new Set<string>();
  private _kernel: IPanelModel['kernel'] = null;
  private _selected = '';
  private _clicked = '';
  /** Was made just now and has no row yet. */
  private _awaited = '';
  private _open = false;
  private _timer = 0;
}
