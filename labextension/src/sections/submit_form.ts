/** The form of a submit: what a person has typed for cells without a line, or what a cell's line says. */

import type { IPanelContext } from '../panel/tokens';
import { Values, keepTyped, same } from './fields';
import { FieldForm } from './form';
import type { ISubject } from './submit_cells';

export class SubmitForm extends FieldForm {
  constructor(private readonly _context: IPanelContext) {
    super({ fields: [], trans: _context.trans, compact: true });
    this.changed.connect(() => {
      if (!this._filled && !this._asked) {
        this._draft = this.values();
      }
    });
  }

  /** The kernel has not been asked for the fields yet. */
  get empty(): boolean {
    return this.fields.length === 0;
  }

  /** Ask the kernel for the fields; whether others than before are shown now. */
  async load(): Promise<boolean> {
    const { submit } = await this._context.model.kinds();
    const fields = submit.filter(field => field.flag !== '');
    if (this.isDisposed || same(fields, this.fields)) {
      return false;
    }
    this.setTargets(this._context.model.targets);
    this.setFields(fields);
    this.forget();
    return true;
  }

  /** Another cell, or another line in it, may be meant now; `true`: the form is to be filled from its line. */
  turnTo(subject: ISubject): boolean {
    if (this.isOf(subject)) {
      return false;
    }
    this._read = read(subject);
    this._asked = subject.old ? this.values() : null;
    if (this._asked) {
      return true;
    }
    if (this._filled) {
      // The form said what another cell's line says; back to what a person has typed.
      this._filled = false;
      this.setValues(this._draft);
    }
    return false;
  }

  /**
   * Say what the line of a cell says, and keep what was typed while the kernel was asked for it.
   *
   * `null`: another line is meant by now; else whether the form says more than the line.
   */
  fill(subject: ISubject, values: Values): boolean | null {
    if (!this.isOf(subject)) {
      return null;
    }
    const kept = this._asked ? keepTyped(this._asked, this.values(), values) : values;
    this._filled = true;
    this._asked = null;
    this.setValues(kept);
    return !same(kept, values);
  }

  /** Whether the form is about this cell and its line. */
  isOf(subject: ISubject): boolean {
    return this._read === read(subject);
  }

  /** What was read is to be read again. */
  forget(): void {
    this._read = '';
    this._asked = null;
  }

  /** Empty it, for good. */
  clear(): void {
    this._draft = {};
    this.setValues({});
  }

  /** Place and line that the form was filled from, or was found without one. */
  private _read = '';
  /** The form says what a line in the notebook says. */
  private _filled = false;
  /** What a person has typed for cells without a line. */
  private _draft: Values = {};
  /** What the form said when the kernel was asked what a line says; `null`: it has answered. */
  private _asked: Values | null = null;
}

function read(subject: ISubject): string {
  return `${subject.place}\n${subject.old}`;
}
