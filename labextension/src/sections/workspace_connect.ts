/** The form that connects an Azure ML workspace by a line in the notebook. */

import { Widget } from '@lumino/widgets';
import { ISignal, Signal } from '@lumino/signaling';
import type { IPanelContext } from '../panel/tokens';
import type { IConnectReply } from '../protocol';
import { Checker } from './acts';
import { allow, button, element, say, sayLine } from './dom';
import { FieldForm } from './form';
import { connectFromCell } from './workspace_line';

export class ConnectWorkspace extends Widget {
  constructor(private readonly _context: IPanelContext) {
    super();
    const { trans } = _context;
    this.addClass('jp-AmlNew');
    this.addClass('jp-AmlConnect');
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', trans.__('Connect Azure ML workspace'));
    this._form = new FieldForm({ fields: [], trans });
    this._form.addClass('jp-AmlNew-form');
    this._checker = new Checker<IConnectReply>(() => _context.model.request('connect', { values: this._form.values() }));
    this._checker.answered.connect((_, reply) => this._checked(reply));
    this._checker.failed.connect((_, text) => this._form.setErrors({ '': text }));
    this._form.changed.connect(() => this._checker.soon());
    this._form.submitted.connect(() => void this._connect());
    this._form.canceled.connect(() => this._closed.emit());
    this._go = button(trans.__('Connect'), 'accept', () => void this._connect());
    const cancel = button(trans.__('Cancel'), 'reject', () => this._closed.emit());
    const lead = trans.__(
      'A config.json from the page of the workspace in the portal is found by itself; without one give subscription, ' +
        'resource group and workspace.'
    );
    this._note.setAttribute('role', 'status');
    const foot = [this._note, this._preview, this._queued, element('div', 'jp-AmlForm-buttons', '', cancel, this._go)];
    this.node.append(
      element('h3', 'jp-AmlNew-title', trans.__('Connect Azure ML workspace')),
      element('div', 'jp-AmlForm-help', lead),
      this._form.node,
      element('div', 'jp-AmlNew-foot', '', ...foot)
    );
    this._preview.hidden = this._note.hidden = this._queued.hidden = true;
    say(this._queued, trans.__('The kernel is busy: the line is queued behind the running cell.'));
  }

  /** The form is to be closed: it was cancelled, or the line runs. */
  get closed(): ISignal<this, void> {
    return this._closed;
  }

  /** Ask the kernel for the fields and show them. */
  async load(): Promise<void> {
    try {
      const { connect } = await this._context.model.kinds();
      if (!this.isDisposed) {
        this._form.setFields(connect);
        this._form.focus();
        await this._checker.now();
      }
    } catch (error) {
      this._form.setErrors({ '': error instanceof Error ? error.message : String(error) });
    }
  }

  /** Why nothing can be connected now; empty when it can. */
  enable(whyNot: string): void {
    this._whyNot = whyNot;
    this._queued.hidden = whyNot !== '' || !this._context.model.connection.busy || this._writing;
    if (!this._writing) {
      allow(this._go, whyNot);
    }
  }

  dispose(): void {
    this._checker.dispose();
    this._form.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  private _checked({ line, errors, note }: IConnectReply): void {
    this._form.setErrors(errors);
    const good = Object.keys(errors).length === 0;
    sayLine(this._preview, good ? line : '');
    this._preview.hidden = !good;
    say(this._note, note);
    this._note.hidden = note === '';
  }

  private async _connect(): Promise<void> {
    if (this._writing || this._go.getAttribute('aria-disabled') === 'true') {
      return;
    }
    this._writing = true;
    this._checker.cancel();
    allow(this._go, this._context.trans.__('Waiting for the kernel…'));
    let errors: Readonly<Record<string, string>>;
    try {
      errors = await connectFromCell(this._context, this._form.values());
    } catch (error) {
      errors = { '': error instanceof Error ? error.message : String(error) };
    }
    this._writing = false;
    if (this.isDisposed) {
      return;
    }
    this.enable(this._whyNot);
    if (Object.keys(errors).length === 0) {
      this._closed.emit();
    } else {
      this._form.setErrors(errors, true);
    }
  }

  private _writing = false;
  private _whyNot = '';
  private readonly _form: FieldForm;
  private readonly _checker: Checker<IConnectReply>;
  private readonly _go: HTMLButtonElement;
  private readonly _note = element('div', 'jp-AmlForm-help jp-AmlConnect-note');
  private readonly _preview = element('code', 'jp-AmlLine jp-AmlNew-preview');
  private readonly _queued = element('div', 'jp-AmlForm-help');
  private readonly _closed = new Signal<this, void>(this);
}
