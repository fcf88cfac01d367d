/** Form that creates or attaches a compute target. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import type { IPanelContext } from '../panel/tokens';
import type { ITargetActionReply, IField, ITargetKind } from '../protocol';
import { allow, button, element, say, sayLine } from './dom';
import { caret } from './controls';
import { FieldForm } from './form';
import { connectText, unconnectedText } from '../azure/texts';
import { chooseSize } from '../azure/sizePicker';
import { TargetActions, Checker, ITargetRequest } from './targetActions';
import { verbText } from './targetText';

/** Field of the name, which belongs to no kind: it is the first argument of `%aml_compute create`. */
function nameField(trans: TranslationBundle): IField {
  return {
    name: NAME,
    flag: '',
    kind: 'text',
    help: trans.__('The name of the target: letters, digits, dashes.'),
    default: null,
    required: true,
    choices: [],
    metavar: 'NAME',
    advanced: false,
    label: '',
    group: '',
    not_for: [],
    needs_gpus: false,
    joined: false,
    choose: ''
  };
}

const NAME = 'name';
/** Name of the field that only targets of a workspace have. */
const WORKSPACE = 'workspace';

export class NewTarget extends Widget {
  constructor(private readonly _context: IPanelContext) {
    super();
    const { trans } = _context;
    this.addClass('jp-AmlNew');
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', trans.__('New target'));
    this._form = new FieldForm({
      fields: [],
      trans,
      choose: field => (field.choose === 'size' ? this._chooseSize() : Promise.resolve(null))
    });
    this._checker = new Checker<ITargetActionReply>(() => {
      const request = this._request();
      return request ? TargetActions.of(_context).check(request) : null;
    });
    this._checker.answered.connect((_, reply) => this._checked(reply));
    this._checker.failed.connect((_, text) => this._form.setErrors({ '': text }));
    this._form.changed.connect(() => this._checker.soon());
    this._form.submitted.connect(() => void this._create());
    this._form.canceled.connect(() => this._closed.emit());

    const choose = element('select', 'jp-AmlForm-input jp-mod-styled');
    choose.addEventListener('change', () => this._choose(Number(choose.value)));
    choose.id = 'jp-AmlNew-kind';
    const label = element('label', '', trans.__('Kind'));
    label.htmlFor = choose.id;
    this._select = choose;
    this._kindField = element(
      'div',
      'jp-AmlForm-field',
      '',
      element('div', 'jp-AmlForm-head', '', label),
      element('div', 'jp-select-wrapper', '', choose, caret())
    );
    this._create_ = button(trans.__('Create'), 'accept', () => void this._create());
    const cancel = button(trans.__('Cancel'), 'reject', () => this._closed.emit());
    this._form.addClass('jp-AmlNew-form');
    this.node.append(
      element('h3', 'jp-AmlNew-title', trans.__('New target')),
      element('div', 'jp-AmlForm', '', this._kindField, this._kindHelp),
      this._unconnected,
      this._form.node,
      // The foot stays visible, regardless of the length of the form.
      element('div', 'jp-AmlNew-foot', '', this._preview, element('div', 'jp-AmlForm-buttons', '', cancel, this._create_))
    );
    this._preview.hidden = true;
    this._unconnected.append(
      element('div', '', unconnectedText(trans)),
      button(connectText(trans), 'reject', () => this._workspaceWanted.emit())
    );
    this._unconnected.hidden = true;
  }

  /** Emitted when the user wants to connect a workspace first. */
  get workspaceWanted(): ISignal<this, void> {
    return this._workspaceWanted;
  }

  /** Emitted when the form is to be closed: after a cancellation, or after the target was created. */
  get closed(): ISignal<this, void> {
    return this._closed;
  }

  /** Request the target kinds from the kernel and show the form. */
  async load(): Promise<void> {
    const { trans, model } = this._context;
    this._workspaces = this._connected;
    try {
      this._kinds = (await model.kinds()).kinds;
    } catch (error) {
      this._form.setErrors({ '': error instanceof Error ? error.message : String(error) });
      return;
    }
    if (this.isDisposed) {
      return;
    }
    this._select.replaceChildren(
      ...this._kinds.map((kind, at) => {
        const option = element('option', '', kind.title || kind.kind);
        option.value = String(at);
        return option;
      })
    );
    this._kindField.hidden = this._kinds.length < 2;
    if (this._kinds.length === 0) {
      this._form.setErrors({ '': trans.__('This kernel cannot create any kind of target.') });
      allow(this._create_, trans.__('No kind of target can be created here.'));
      return;
    }
    const before = this._kind?.kind;
    const at = Math.max(0, this._kinds.findIndex(({ kind }) => kind === before));
    this._select.value = String(at);
    this._choose(at);
    if (before === undefined) {
      this._form.focus();
    }
  }

  /** Enable the creation, or disable it for a reason; an empty reason enables it. Close if the new target has a row. */
  enable(disabledReason: string): void {
    this._whyNot = disabledReason;
    if (!this._creating) {
      allow(this._create_, disabledReason);
    } else if (this._awaited && this._context.model.target(this._awaited)) {
      this._closed.emit(); // from here on the row of the target shows the progress
      return;
    }
    if (this._kind && !disabledReason && this._connected !== this._workspaces) {
      void this.load(); // the choices depend on the workspaces
    }
  }

  dispose(): void {
    this._checker.dispose();
    this._form.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  private _choose(at: number): void {
    const { trans } = this._context;
    const kind = this._kinds[at];
    this._kind = kind;
    say(this._kindHelp, kind.help);
    this._create_.textContent = verbText(kind.verb, trans);
    const own = kind.fields.some(field => field.name === NAME);
    this._form.setFields(own ? kind.fields : [nameField(trans), ...kind.fields]);
    this._preview.hidden = true;
    this._unconnected.hidden = this._connected !== '' || !kind.fields.some(field => field.name === WORKSPACE);
    this._checker.soon();
  }

  private _chooseSize(): Promise<string | null> {
    const values = this._form.values();
    const text = (name: string) => (typeof values[name] === 'string' ? values[name] : '');
    return chooseSize(this._context, {
      kind: this._kind?.kind ?? '',
      workspace: text(WORKSPACE),
      region: text('region'),
      low: values['low_priority'] === true || values['tier'] === 'Spot'
    });
  }

  /** Names of the connected workspaces. */
  private get _connected(): string {
    return this._context.model.workspaces.map(row => row.name).join(' ');
  }

  private _request(): ITargetRequest | null {
    if (!this._kind) {
      return null;
    }
    const { [NAME]: name = '', ...values } = this._form.values();
    return { verb: this._kind.verb, target: String(name), kind: this._kind.kind, values };
  }

  /** Rename the error for `target` to the name field of the form. */
  private _named(errors: Readonly<Record<string, string>>): Record<string, string> {
    const { target, ...rest } = errors;
    return target === undefined ? rest : { ...rest, [NAME]: target };
  }

  private _checked(reply: ITargetActionReply): void {
    this._form.setErrors(this._named(reply.errors));
    const shown = reply.line !== '' && Object.keys(reply.errors).length === 0;
    sayLine(this._preview, shown ? reply.line : '');
    this._preview.hidden = !shown;
  }

  private async _create(): Promise<void> {
    const request = this._request();
    if (!request || this._creating || this._create_.getAttribute('aria-disabled') === 'true') {
      return;
    }
    this._creating = true;
    this._awaited = this._context.model.target(request.target) ? '' : request.target;
    this._checker.cancel();
    this._form.setErrors({}); // corrected fields must not be marked as wrong behind the confirmation
    const { trans } = this._context;
    allow(this._create_, trans.__('Waiting for the kernel…'));
    const outcome = await TargetActions.of(this._context).run(request);
    this._creating = false;
    if (this.isDisposed) {
      return;
    }
    allow(this._create_, this._whyNot);
    if (outcome.done) {
      this._closed.emit();
    } else if (Object.keys(outcome.errors).length > 0) {
      this._form.setErrors(this._named(outcome.errors), true);
    } else if (outcome.text) {
      this._form.setErrors({ '': outcome.text }, true);
    }
  }

  private _kinds: readonly ITargetKind[] = [];
  private _kind: ITargetKind | null = null;
  /** Whether a creation is in progress: from the click until the reply, including a confirmation. */
  private _creating = false;
  /** Name of the target in creation; empty if a target of this name existed before. */
  private _awaited = '';
  /** Names of the workspaces when the kinds were requested. */
  private _workspaces = '';
  private readonly _unconnected = element('div', 'jp-AmlNew-unconnected');
  private readonly _workspaceWanted = new Signal<this, void>(this);
  private _whyNot = '';
  private readonly _form: FieldForm;
  private readonly _checker: Checker<ITargetActionReply>;
  private readonly _select: HTMLSelectElement;
  private readonly _kindField: HTMLElement;
  private readonly _kindHelp = element('div', 'jp-AmlForm-help');
  private readonly _preview = element('code', 'jp-AmlLine jp-AmlNew-preview');
  private readonly _create_: HTMLButtonElement;
  private readonly _closed = new Signal<this, void>(this);
}
