/** Actions on targets: a confirmation for those that cost money or lose data, and their outcome. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { ISignal, Signal } from '@lumino/signaling';
import type { IPanelContext, IPanelModel } from '../panel/tokens';
import type { ITargetAction, ITargetActionReply } from '../protocol';
import { element } from './dom';
import type { Values } from './fields';
import { FieldForm } from './form';
import { verbText } from './targetText';

/** Action on a target. */
export interface ITargetRequest {
  readonly verb: string;
  readonly target: string;
  /** Target kind, for `create` and `attach`. */
  readonly kind?: string;
  readonly values?: Values;
}

/** Outcome of an action. */
export interface IOutcome {
  readonly request: ITargetRequest;
  /** `false`: refused by the kernel or declined by the user. */
  readonly done: boolean;
  /** Output of the equivalent magic, or the reason for a failure; may be empty. */
  readonly text: string;
  /** Equivalent magic; empty if the action was not performed. */
  readonly line: string;
  readonly errors: Readonly<Record<string, string>>;
}

const instances = new WeakMap<IPanelModel, TargetActions>();

/** Actions of a page: one instance for each model, shared by the section and the commands. */
export class TargetActions {
  private constructor(private readonly _context: IPanelContext) {}

  static of(context: IPanelContext): TargetActions {
    let acts = instances.get(context.model);
    if (!acts) {
      instances.set(context.model, (acts = new TargetActions(context)));
    }
    return acts;
  }

  /** Emitted when an action was performed or refused. */
  get outcome(): ISignal<this, IOutcome> {
    return this._outcome;
  }

  /** Emitted when a request begins or ends. */
  get pendingChanged(): ISignal<this, void> {
    return this._pendingChanged;
  }

  /** Whether a request for the target is in progress. */
  pending(target: string): boolean {
    return (this._pending.get(target) ?? 0) > 0;
  }

  /** Check an action with the kernel without performing it. */
  check(request: ITargetRequest): Promise<ITargetActionReply> {
    return this._send(request, true, false);
  }

  /** Perform an action, after a confirmation where the kernel requires one. */
  async run(request: ITargetRequest): Promise<IOutcome> {
    const outcome = await this._run(request);
    this._outcome.emit(outcome);
    return outcome;
  }

  /** Perform an action of a row; if it has fields, show a dialog until they are valid or the user cancels. */
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

  /** Show a dialog with the fields of an action, checked while the user types. */
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
    if (act.confirmation) {
      form.node.prepend(element('p', 'jp-AmlForm-lead', act.confirmation));
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
      if (!reply.accepted && reply.confirmation) {
        if (!(await this._confirm(request, reply))) {
          return { request, done: false, text: '', line: '', errors: {} };
        }
        reply = await this._send(request, false, true);
      }
      const { accepted, errors, message, line } = reply;
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
    body.node.prepend(element('p', 'jp-AmlForm-lead', reply.confirmation));
    const buttons = [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.warnButton({ label: verb })
    ];
    const title = trans.__('%1 "%2"?', verb, request.target);
    // Pressing Enter alone must not confirm a cost or a loss.
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

/** Checker that sends a request when the user pauses; only the reply to the latest request counts. */
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

  /** Send a request at once; `null` if there is nothing to request, no reply, or a later request. */
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

  /** Ignore the reply to the request in progress. */
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

/** Notify the user of the result of an action while the section is hidden. */
export function notify(outcome: IOutcome, seen: boolean): void {
  if (!seen && outcome.text) {
    Notification.emit(outcome.text, outcome.done ? 'success' : 'error', { autoClose: outcome.done ? 5000 : false });
  }
}
