/** Compute section: targets, workspaces, the forms for new ones, and the outcome of the last action. */

import { Clipboard } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  addIcon,
  closeIcon,
  copyIcon,
  LabIcon,
  PanelWithToolbar,
  ToolbarButton
} from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import type { ISignal } from '@lumino/signaling';
import { Panel, Widget } from '@lumino/widgets';
import { sectionLayoutOf } from '../panel/accordionLayout';
import { cloudIcon, testIcon } from '../panel/icons';
import { selection } from '../panel/selection';
import { CommandIDs, IPanelContext, IPanelModel } from '../panel/tokens';
import type { ITargetAction } from '../protocol';
import { NewTarget } from './computeForm';
import { element, say, sayLine } from './dom';
import { FormDialog } from './formDialog';
import { TargetActions, IOutcome, notify } from './targetActions';
import { IListHost, TargetList } from './targetList';
import { toolbarButton } from './toolbar';
import { connectText, connectTitle } from '../azure/texts';
import { ConnectWorkspace, IWorkspaceHost, WorkspaceList } from '../azure/workspaces';

const sections = new WeakMap<IPanelModel, ComputeSection>();

/** Show the section of this page; `null` if there is none. */
export async function revealCompute(context: IPanelContext): Promise<ComputeSection | null> {
  const { commands } = context.app;
  if (commands.hasCommand(CommandIDs.open)) {
    await commands.execute(CommandIDs.open);
  }
  const section = ComputeSection.of(context);
  if (section) {
    sectionLayoutOf(section.parent)?.reveal(section);
  }
  return section;
}

export class ComputeSection extends PanelWithToolbar implements IListHost, IFormHost, IWorkspaceHost {
  constructor(private readonly _context: IPanelContext) {
    super();
    const { trans, model } = _context;
    sections.set(model, this);
    this.addClass('jp-AmlCompute');
    this.title.label = trans.__('Compute');
    this._actions = TargetActions.of(_context);
    this._outcome = new OutcomeView(trans);
    this._list = new TargetList(_context, this, this._body.node);
    this._workspaces = new WorkspaceList(this);
    this._forms = new ComputeForms(_context, this);
    // The outcome of an action stays visible above the rows instead of covering them.
    this.addWidget(new Widget({ node: this._outcome.node }));
    this._body.addClass('jp-AmlCompute-body');
    this._body.addWidget(new Widget({ node: element('div', '', '', this._empty, this._list.node, this._workspaces.node) }));
    this.addWidget(this._body);
    this._addButtons();
    model.targetsChanged.connect(this._draw, this);
    model.connectionChanged.connect(this._draw, this);
    this._actions.pendingChanged.connect(this._draw, this);
    this._actions.outcome.connect(this._show, this);
    this._draw();
  }

  /** Section of this page; `null` before the panel is created. */
  static of(context: IPanelContext): ComputeSection | null {
    return sections.get(context.model) ?? null;
  }

  get trans(): IPanelContext['trans'] {
    return this._context.trans;
  }

  /** Name of the selected target; empty for none. */
  get selected(): string {
    return this._list.selected;
  }

  /** Reason why actions are disabled; empty if they are enabled. */
  get disabledReason(): string {
    const { model, trans } = this._context;
    return model.connection.ready ? '' : trans.__('The kernel is not responding.');
  }

  /** Open the form for a new target. */
  openNew(): void {
    this._outcome.hide();
    this._forms.newTarget();
  }

  /** Open the form that connects a workspace. */
  openConnect(): void {
    this._outcome.hide();
    this._forms.connect();
  }

  select(name: string, open: boolean): void {
    this._list.choose(name, open);
    if (open) {
      void this._learnDefaults();
    }
    this._draw();
    selection.target = name;
    // Focus the row instead of a pressed button in it, but only if the focus is still inside the section.
    const row = this._list.row(name);
    if (row && !row.contains(document.activeElement) && this.node.contains(document.activeElement)) {
      row.focus({ preventScroll: true });
    }
    this.makeRoom(row);
  }

  use(name: string): void {
    const row = this._context.model.target(name);
    const act = row?.acts.find(({ verb }) => verb === 'use');
    if (row && !row.current && act && !act.disabled_reason && this.disabledReason === '') {
      void this._actions.perform(name, act);
    }
  }

  perform(name: string, act: ITargetAction): void {
    void this._actions.perform(name, act);
  }

  dismiss(name: string): void {
    void this._actions.run({ verb: 'dismiss', target: name });
  }

  connect(name: string): void {
    void this._context.app.commands.execute(CommandIDs.workspaceConnect, { workspace: name });
  }

  disconnect(name: string): void {
    void this._context.app.commands.execute(CommandIDs.workspaceDisconnect, { workspace: name });
  }

  isDefault(kind: string, name: string, value: unknown): boolean {
    return this._defaults.has(`${kind} ${name} ${JSON.stringify(value)}`);
  }

  dispose(): void {
    clearInterval(this._timer);
    this._outcome.dispose();
    this._forms.dispose();
    const { model } = this._context;
    model.targetsChanged.disconnect(this._draw, this);
    model.connectionChanged.disconnect(this._draw, this);
    this._actions.pendingChanged.disconnect(this._draw, this);
    this._actions.outcome.disconnect(this._show, this);
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
      this._timer = window.setInterval(() => this._tick(), 1000);
    }
  }

  private _tick(): void {
    this._list.tick();
    const target = this._list.watched;
    if (target === '' || document.hidden || this._isChecking || this.disabledReason !== '') {
      return;
    }
    // Who uses the GPUs is of interest while somebody looks at it.
    this._isChecking = true;
    const done = () => void (this._isChecking = false);
    this._context.model.request('check', { target }).then(done, done);
  }

  /** Request the default values of targets, which the details omit. */
  private async _learnDefaults(): Promise<void> {
    const { model } = this._context;
    if (!model.connection.ready || this._kernel === model.kernel) {
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
      // Without the default values, the details only contain more lines.
      this._kernel = kernel === this._kernel ? null : this._kernel;
    }
  }

  private _draw(): void {
    const { model, trans } = this._context;
    const { targets, workspaces } = model;
    const { disabledReason } = this;
    const pending = (name: string) => (this._actions.pending(name) ? trans.__('Waiting for the kernel…') : '');
    this._list.draw(targets, name => disabledReason || pending(name));
    this._workspaces.draw(workspaces, name => disabledReason || pending(name));
    say(this._empty, model.connection.ready ? trans.__('No targets.') : '');
    this._empty.hidden = targets.length > 0;
    this._forms.enable(disabledReason);
    this._buttons.forEach(({ button, why }) => void (button.enabled = why() === ''));
    if (this._list.row(this._awaited)) {
      const created = this._awaited;
      this._awaited = '';
      this.select(created, true);
    }
  }

  private _addButtons(): void {
    const { trans, app } = this._context;
    const add = (name: string, icon: LabIcon, tooltip: string, id: string, why: () => string) => {
      const button = toolbarButton(icon, tooltip, () => void app.commands.execute(id));
      this.toolbar.addItem(name, button);
      this._buttons.push({ button, why });
    };
    const anyway = () => this.disabledReason;
    add('new', addIcon, trans.__('New target…'), CommandIDs.targetNew, anyway);
    add('connect', cloudIcon, connectText(trans), CommandIDs.workspaceConnect, anyway);
    add('test', testIcon, trans.__('Test the selected target'), CommandIDs.targetTest, () => {
      const name = this.selected || this._context.model.current;
      const act = this._context.model.target(name)?.acts.find(({ verb }) => verb === 'test');
      return this.disabledReason || (act ? act.disabled_reason : '-');
    });
  }

  /** Request space for open details, and scroll `node` into view. */
  makeRoom(node?: HTMLElement): void {
    if (!this.isDisposed) {
      sectionLayoutOf(this.parent)?.requestSpace(this, this._list.open && this.selected ? 0.5 : 0);
      // The panel assigns its new sizes in the next animation frame.
      requestAnimationFrame(() => node?.scrollIntoView({ block: 'nearest' }));
    }
  }

  /** Show the outcome of an action: its message and the equivalent command line. */
  private _show(_: TargetActions, outcome: IOutcome): void {
    notify(outcome, this.isVisible);
    if (outcome.request.verb === 'create' || outcome.request.verb === 'attach') {
      if (outcome.done) {
        // The row of the target may arrive after the reply.
        this._awaited = outcome.request.target;
        this._draw();
      } else if (this._forms.isOpen) {
        return; // the form shows the error
      }
    }
    if (outcome.request.verb === 'dismiss' && outcome.done) {
      return;
    }
    this._outcome.show(outcome);
  }

  private readonly _actions: TargetActions;
  private readonly _body = new Panel();
  private readonly _buttons: { button: ToolbarButton; why: () => string }[] = [];
  private readonly _list: TargetList;
  private readonly _empty = element('div', 'jp-AmlCompute-empty');
  private readonly _outcome: OutcomeView;
  private readonly _workspaces: WorkspaceList;
  private readonly _forms: ComputeForms;
  private _defaults = new Set<string>();
  private _kernel: IPanelModel['kernel'] = null;
  /** Name of a new target that has no row yet. */
  private _awaited = '';
  private _timer = 0;
  private _isChecking = false;
}

interface IForm extends Widget {
  readonly closed: ISignal<unknown, void>;
  load(): Promise<void>;
  enable(disabledReason: string): void;
}

/** Host of the forms. */
interface IFormHost {
  readonly disabledReason: string;
}

class ComputeForms {
  constructor(
    private readonly _context: IPanelContext,
    private readonly _host: IFormHost
  ) {}

  /** Close the open form, if any. */
  dispose(): void {
    this._close();
  }

  /** Whether a form is open. */
  get isOpen(): boolean {
    return this._form !== null;
  }

  /** Open the form for a new target. */
  newTarget(): void {
    this._show(NewTarget, this._context.trans.__('New target'), () => {
      const form = new NewTarget(this._context);
      form.workspaceWanted.connect(() => this.connect());
      return form;
    });
  }

  /** Open the form that connects a workspace. */
  connect(): void {
    this._show(ConnectWorkspace, connectTitle(this._context.trans), () => new ConnectWorkspace(this._context));
  }

  /** Enable the form, or disable it for a reason; an empty reason enables it. */
  enable(disabledReason: string): void {
    this._form?.enable(disabledReason);
  }

  private _show(kind: new (context: IPanelContext) => IForm, label: string, make: () => IForm): void {
    if (this._form instanceof kind) {
      this._form.node.querySelector<HTMLElement>('input, select')?.focus();
      return;
    }
    this._close();
    const form = (this._form = make());
    form.closed.connect(() => this._close());
    form.enable(this._host.disabledReason);
    const dialog = (this._dialog = new FormDialog(form, label, this._context.trans));
    dialog.canceled.connect(() => this._close());
    dialog.open();
    void form.load();
  }

  private _close(): void {
    const dialog = this._dialog;
    this._form = this._dialog = null;
    dialog?.dispose();
  }

  private _dialog: FormDialog | null = null;
  private _form: IForm | null = null;
}

/** Milliseconds until the message of a successful action is hidden. */
const OUTCOME_SHOWN_MS = 15000;

class OutcomeView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node.hidden = true;
    this.node.setAttribute('role', 'status');
  }

  readonly node = element('div', 'jp-AmlOutcome');

  show(outcome: IOutcome): void {
    const trans = this._trans;
    const { node } = this;
    clearTimeout(this._timer);
    node.hidden = outcome.text === '' && outcome.line === '';
    node.classList.toggle('jp-mod-failed', !outcome.done);
    const parts: Node[] = [];
    if (outcome.text) {
      parts.push(element('div', 'jp-AmlOutcome-text', outcome.text));
    }
    if (outcome.line) {
      const line = element('code', 'jp-AmlLine');
      sayLine(line, outcome.line);
      const copy = this._icon(copyIcon, trans.__('Copy the line'), () => Clipboard.copyToSystem(outcome.line));
      parts.push(element('div', 'jp-AmlOutcome-same', '', element('span', '', trans.__('The same as:')), line, copy));
    }
    const close = this._icon(closeIcon, trans.__('Dismiss'), () => void (node.hidden = true));
    node.replaceChildren(element('div', 'jp-AmlOutcome-parts', '', ...parts), close);
    if (outcome.done) {
      this._leave();
    }
  }

  /** Hide the outcome. */
  hide(): void {
    clearTimeout(this._timer);
    this.node.hidden = true;
  }

  dispose(): void {
    clearTimeout(this._timer);
  }

  /** Hide the outcome after a delay, but not while the pointer or the focus is in it. */
  private _leave(): void {
    this._timer = setTimeout(() => {
      if (this.node.matches(':hover, :focus-within')) {
        this._leave();
      } else {
        this.node.hidden = true;
      }
    }, OUTCOME_SHOWN_MS);
  }

  private _icon(shape: LabIcon, label: string, click: () => void): HTMLElement {
    const created = element('button', 'jp-AmlOutcome-button');
    created.type = 'button';
    created.title = label;
    created.setAttribute('aria-label', label);
    shape.element({ container: created });
    created.addEventListener('click', click);
    return created;
  }

  private _timer: ReturnType<typeof setTimeout> | undefined;
}
