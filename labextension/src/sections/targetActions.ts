/** Actions on targets: the confirmation where one costs or loses something, then the outcome. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { ISignal, Signal } from '@lumino/signaling';
import type { IPanelContext, IPanelModel } from '../panel/tokens';
import type { ITargetAction, ITargetActionReply } from '../protocol';
import { element } from './dom';
import type { Values } from './fields';
import { FieldForm } from './form';
import { verbText } from './targetText';

/** An action on a target. */
export interface ITargetRequest {
  readonly verb: string;
  readonly target: string;
  /** For `create` and `attach`. */
  readonly kind?: string;
  readonly values?: Values;
}

/** The outcome of an action. */
export interface IOutcome {
  readonly request: ITargetRequest;
  /** `false`: refused by the kernel, or declined by the user. */
  readonly done: boolean;
  /** What the magic would print, or one sentence why not; may be empty. */
  readonly text: string;
  /** The same as a magic; empty when nothing was done. */
  readonly line: string;
  readonly errors: Readonly<Record<string, string>>;
}

const instances = new WeakMap<IPanelModel, TargetActions>();

/** All acts of a page: one for each model, shared by the section and the commands. */
export class TargetActions {
  private constructor(private readonly _context: IPanelContext) {}

  static of(context: IPanelContext): TargetActions {
    let acts = instances.get(context.model);
    if (!acts) {
      instances.set(context.model, (acts = new TargetActions(context)));
    }
    return acts;
  }

  /** Something was done, or refused. */
  get outcome(): ISignal<this, IOutcome> {
    return this._outcome;
  }

  /** A request has begun or ended. */
  get pendingChanged(): ISignal<this, void> {
    return this._pendingChanged;
  }

  /** The target has an answer outstanding. */
  pending(target: string): boolean {
    return (this._pending.get(target) ?? 0) > 0;
  }

  /** What the kernel would say to it; does nothing. */
  check(request: ITargetRequest): Promise<ITargetActionReply> {
    return this._send(request, true, false);
  }

  /** Do it, with the kernel's question in between where it has one. */
  async run(request: ITargetRequest): Promise<IOutcome> {
    const outcome = await this._run(request);
    this._outcome.emit(outcome);
    return outcome;
  }

  /** Do an act of a row: asks for its fields first where it has some, until they are right or a person gives up. */
  async perform(target: string, act: ITargetAction): Promise<IOutcome | null> {
    if (act.fields.length === 0) {
      return this.run({ verb: act.verb, target });
    }
    let values: Values = {};
    let errors: Readonly<Record<string, string>> = {};
    for (;;) {
      const entered = await this._showFields(target, act, values, errors);
      if (entered === null) {
        return null;
      }
      values = entered;
      const outcome = await this._run({ verb: act.verb, target, values });
      if (outcome.done || Object.keys(outcome.errors).length === 0) {
        this._outcome.emit(outcome);
        return outcome;
      }
      errors = outcome.errors;
    }
  }

  /** A dialog with the fields of an act, checked while they are typed. */
  private async _showFields(
    target: string,
    act: ITargetAction,
    values: Values,
    errors: Readonly<Record<string, string>>
  ): Promise<Values | null> {
    const { trans, model } = this._context;
    const title = trans.__('%1 "%2"', verbText(act.verb, trans), target);
    const form = new FieldForm({ fields: act.fields, trans, targets: model.targets, values });
    form.addClass('jp-AmlForm-inDialog');
    if (act.ask) {
      form.node.prepend(element('p', 'jp-AmlForm-lead', act.ask));
    }
    form.setErrors(errors, Object.keys(errors).length > 0);
    const check = new Checker(() => this.check({ verb: act.verb, target, values: form.values() }));
    check.answered.connect((_, reply) => form.setErrors(reply.errors));
    form.changed.connect(() => check.soon());
    const result = await showDialog<Values>({
      title,
      body: form,
      focusNodeSelector: 'input, select',
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        Dialog.okButton({ label: verbText(act.verb, trans) })
      ]
    });
    check.dispose();
    return result.button.accept ? (result.value ?? {}) : null;
  }

  private async _run(request: ITargetRequest): Promise<IOutcome> {
    try {
      let reply = await this._send(request, false, false);
      if (!reply.accepted && reply.ask) {
        if (!(await this._confirm(request, reply))) {
          return { request, done: false, text: '', line: '', errors: {} };
        }
        reply = await this._send(request, false, true);
      }
      const { accepted, errors, said: message, line } = reply;
      const text = accepted ? message : Object.values(errors).join('\n');
      return { request, done: accepted, text, line: accepted ? line : '', errors };
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      return { request, done: false, text, line: '', errors: {} };
    }
  }

  private async _confirm(request: ITargetRequest, reply: ITargetActionReply): Promise<boolean> {
    const { trans } = this._context;
    const verb = verbText(request.verb, trans);
    const body = new FieldForm({ fields: [], trans });
    body.addClass('jp-AmlForm-inDialog');
    body.node.prepend(element('p', 'jp-AmlForm-lead', reply.ask));
    const buttons = [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.warnButton({ label: verb })
    ];
    const title = trans.__('%1 "%2"?', verb, request.target);
    // Enter alone must not spend or lose anything.
    const result = await showDialog({ title, body, buttons, defaultButton: 0 });
    return result.button.accept;
  }

  private async _send(request: ITargetRequest, dry: boolean, confirmed: boolean): Promise<ITargetActionReply> {
    const { verb, target, kind = '', values = {} } = request;
    const count = (by: number) => {
      this._pending.set(target, (this._pending.get(target) ?? 0) + by);
      this._pendingChanged.emit();
    };
    if (dry) {
      return this._context.model.request('act', { verb, target, kind, values, dry, confirmed });
    }
    count(1);
    try {
      return await this._context.model.request('act', { verb, target, kind, values, dry, confirmed }, 15000);
    } finally {
      count(-1);
    }
  }

  private readonly _pending = new Map<string, number>();
  private readonly _outcome = new Signal<this, IOutcome>(this);
  private readonly _pendingChanged = new Signal<this, void>(this);
}

/** Ask the kernel when a person pauses; of several questions under way only the last one's answer counts. */
export class Checker<T> {
  constructor(
    private readonly _showFields: () => Promise<T> | null,
    private readonly _wait = 400
  ) {}

  get answered(): ISignal<this, T> {
    return this._answered;
  }

  get failed(): ISignal<this, string> {
    return this._failed;
  }

  soon(): void {
    clearTimeout(this._timer);
    this._turn += 1;
    this._timer = setTimeout(() => void this.now(), this._wait);
  }

  /** Ask at once; `null` when there is nothing to ask, no answer, or a later question. */
  async now(): Promise<T | null> {
    clearTimeout(this._timer);
    const turn = (this._turn += 1);
    try {
      const reply = await this._showFields();
      if (reply === null || turn !== this._turn) {
        return null;
      }
      this._answered.emit(reply);
      return reply;
    } catch (error) {
      if (turn === this._turn) {
        this._failed.emit(error instanceof Error ? error.message : String(error));
      }
      return null;
    }
  }

  /** What is under way counts no more. */
  cancel(): void {
    clearTimeout(this._timer);
    this._turn += 1;
  }

  dispose(): void {
    this.cancel();
    Signal.clearData(this);
  }

  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _turn = 0;
  private readonly _answered = new Signal<this, T>(this);
  private readonly _failed = new Signal<this, string>(this);
}

/** Notify the user of the result of an action when the section is hidden. */
export function notify(outcome: IOutcome, seen: boolean): void {
  if (!seen && outcome.text) {
    Notification.emit(outcome.text, outcome.done ? 'success' : 'error', { autoClose: outcome.done ? 5000 : false });
  }
}
