/** Form of the Submit section: the fields used most, and the values of the others. */

import type { IPanelContext } from '../panel/tokens';
import type { IField } from '../protocol';
import { keepTyped, same, understands, Values } from './fields';
import { FieldForm } from './form';
import type { ISubject } from './submitCells';

export class SubmitForm extends FieldForm {
  constructor(private readonly _context: IPanelContext) {
    super({ fields: [], trans: _context.trans, compact: true });
    this.changed.connect(() => {
      if (!this._filled && !this._valuesBefore) {
        this._drafts.set(this._place, this.values());
      }
      this._arrange();
    });
  }

  /** Whether the fields have not been requested yet. */
  get empty(): boolean {
    return this._all.length === 0;
  }

  /** All fields that a target understands, and those that have a value. */
  fieldsFor(target: string, values: Values): readonly IField[] {
    const { model } = this._context;
    const row = model.target(target || model.current);
    return this._all.filter(
      field => field.name in values || !row || understands(field, row.kind, row.gpus)
    );
  }

  /** Values of the shown and of the other fields. */
  values(): Values {
    return { ...this._others, ...super.values() };
  }

  /** Number of values that the form does not show. */
  get othersCount(): number {
    return Object.keys(this._others).length;
  }

  setValues(values: Values): void {
    super.setValues(values);
    const shown = new Set(this.fields.map(field => field.name));
    this._others = Object.fromEntries(Object.entries(values).filter(([name]) => !shown.has(name)));
    this._arrange();
  }

  /** Take the values that the user has entered elsewhere. */
  enter(values: Values): void {
    this._filled = false;
    this._drafts.set(this._place, values);
    this.setValues(values);
  }

  /** Show the fields that the chosen target understands. */
  targetsChanged(): void {
    this.setTargets(this._context.model.targets);
    this._arrange();
  }

  /** Request the fields from the kernel; returns whether they have changed. */
  async load(): Promise<boolean> {
    const { submit } = await this._context.model.kinds();
    const fields = submit.filter(field => field.flag !== '');
    if (this.isDisposed || same(fields, this._all)) {
      return false;
    }
    this._all = fields;
    this.setTargets(this._context.model.targets);
    this._arrange();
    this.forget();
    return true;
  }

  /** Switch to a cell and its line; `true`: the form is to be filled from the line. */
  turnTo(subject: ISubject): boolean {
    if (this.isOf(subject)) {
      return false;
    }
    const place = placeOf(subject);
    const moved = place !== this._place;
    this._read = read(subject);
    this._place = place;
    this._valuesBefore = subject.old ? this.values() : null;
    if (this._valuesBefore) {
      if (moved) {
        // Only changes that the user makes from now on belong to this line.
        this.setValues({});
        this._valuesBefore = this.values();
      }
      return true;
    }
    if (this._filled || moved) {
      // The values of another cell are not carried to this one.
      this._filled = false;
      this.setValues(this._drafts.get(place) ?? {});
    }
    return false;
  }

  /**
   * Fill the form with the values of a line, except for fields edited since the request.
   *
   * `null`: the line is no longer the subject; else whether the form has other values than the line.
   */
  fill(subject: ISubject, values: Values): boolean | null {
    if (!this.isOf(subject)) {
      return null;
    }
    const kept = this._valuesBefore ? keepTyped(this._valuesBefore, this.values(), values) : values;
    this._filled = true;
    this._valuesBefore = null;
    this.setValues(kept);
    return !same(kept, values);
  }

  /** Whether the form belongs to this cell and its line. */
  isOf(subject: ISubject): boolean {
    return this._read === read(subject);
  }

  /** Force reading the line again. */
  forget(): void {
    this._read = '';
    this._valuesBefore = null;
  }

  /** Forget what the user has typed for a file, after its submit. */
  submittedFile(): void {
    this._drafts.delete(FILE);
  }

  /** Clear the form and the stored draft. */
  clear(): void {
    this._drafts.delete(this._place);
    this.setValues({});
  }

  /** Show the fields used most that the chosen target understands; the values of the others are kept. */
  private _arrange(): void {
    const values = this.values();
    const target = typeof values.target === 'string' ? values.target : '';
    const shown = this.fieldsFor(target, values).filter(field => !field.advanced);
    if (!this._arranging && !same(shown, this.fields)) {
      this._arranging = true;
      this.setFields(shown);
      this.setValues(values);
      this._arranging = false;
    }
  }

  private _all: readonly IField[] = [];
  /** Values of the fields that the form does not show. */
  private _others: Values = {};
  private _arranging = false;
  /** Place and line of the last subject of the form; the line may be empty */
  private _read = '';
  private _place = '';
  /** Whether the form has the values of a line in the notebook. */
  private _filled = false;
  /** Values that the user has typed for cells without a line, by place. */
  private readonly _drafts = new Map<string, Values>();
  /** Values of the form when the request to parse a line was sent; `null`: no request is in progress. */
  private _valuesBefore: Values | null = null;
}

function read(subject: ISubject): string {
  return `${subject.place}\n${subject.old}`;
}

/** Key of the draft of all files: a path changes with every letter. */
const FILE = 'file';

/** Key of a draft; of several cells the first counts, so that one more selected cell changes nothing. */
function placeOf(subject: ISubject): string {
  return subject.mode === 'file' ? FILE : subject.place.split(' ')[0];
}
