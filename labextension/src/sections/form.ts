/** A form made from the kernel's description of its fields; in a section or as the body of a dialog. */

import type { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { caretDownIcon } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import type { IField } from '../protocol';
import { IControl, ITargetChoice, makeControl } from './controls';
import { element, say } from './dom';
import { Values, labelOf, rawOf, sortErrors, valueOf } from './fields';

interface IPart {
  readonly field: IField;
  readonly control: IControl;
  readonly error: HTMLElement;
  /** A person has been there, so that what is missing may be said. */
  touched: boolean;
}

export interface IFormOptions {
  readonly fields: readonly IField[];
  readonly trans: TranslationBundle;
  /** Choices of `target` fields. */
  readonly targets?: readonly ITargetChoice[];
  readonly values?: Values;
  /** Little room: help is a tooltip, not a text. */
  readonly compact?: boolean;
}

let forms = 0;

/**
 * What a person has given is in `values()`, by name; a field left alone is not in it.
 *
 * Errors of a field nobody has touched yet are kept back until the form is submitted: an empty form
 * is not full of errors.
 */
export class FieldForm extends Widget implements Dialog.IBodyWidget<Values> {
  constructor(options: IFormOptions) {
    super({ node: element('form') });
    this._trans = options.trans;
    this._targets = (options.targets ?? []).map(({ name, current }) => ({ name, current }));
    this.addClass('jp-AmlForm');
    this._compact = options.compact ?? false;
    this.toggleClass('jp-mod-compact', this._compact);
    const form = this.node as HTMLFormElement;
    form.noValidate = true;
    form.autocomplete = 'off';
    // JupyterLab's shortcuts are not for what is typed here.
    form.dataset.lmSuppressShortcuts = 'true';
    form.addEventListener('submit', event => {
      event.preventDefault();
      this._submitted.emit();
    });
    form.addEventListener('keydown', event => this._key(event));
    this._more.id = `jp-AmlForm-${this._id}-more`;
    this._more.hidden = true;
    this._general.setAttribute('role', 'alert');
    this._general.hidden = true;
    this._disclosure.type = 'button';
    caretDownIcon.element({ container: this._disclosure.appendChild(element('span')) });
    this._disclosure.append(element('span', '', this._trans.__('More options')));
    this._disclosure.setAttribute('aria-controls', this._more.id);
    this._disclosure.addEventListener('click', () => this._open(this._more.hidden));
    form.append(this._general, this._fields, this._disclosure, this._more);
    this.setFields(options.fields);
    if (options.values) {
      this.setValues(options.values);
    }
  }

  /** A person has changed something. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Enter was pressed. */
  get submitted(): ISignal<this, void> {
    return this._submitted;
  }

  /** Escape was pressed. */
  get canceled(): ISignal<this, void> {
    return this._canceled;
  }

  get fields(): readonly IField[] {
    return this._parts.map(part => part.field);
  }

  /** Show other fields; what was typed into a field of the same name stays. */
  setFields(fields: readonly IField[]): void {
    const old = this.values();
    const inside = this._parts.find(part => part.control.node.contains(document.activeElement));
    this._parts = fields.map(field => this._part(field));
    this._fields.replaceChildren(...this._nodes(false));
    this._more.replaceChildren(...this._nodes(true));
    this._disclosure.hidden = !fields.some(field => field.advanced);
    this._open(!this._more.hidden && !this._disclosure.hidden);
    this.setErrors({});
    for (const part of this._parts.filter(({ field }) => field.name in old)) {
      part.control.set(rawOf(part.field, old[part.field.name]));
      part.touched = true;
    }
    if (inside) {
      this._parts.find(part => part.field.name === inside.field.name)?.control.input.focus();
    }
  }

  /** Choices of the `target` fields have changed. */
  setTargets(targets: readonly ITargetChoice[]): void {
    const choices = targets.map(({ name, current }) => ({ name, current }));
    if (JSON.stringify(choices) !== JSON.stringify(this._targets)) {
      this._targets = choices;
      if (this._parts.some(part => part.field.kind === 'target')) {
        this.setFields(this.fields);
      }
    }
  }

  values(): Values {
    const values: Values = {};
    for (const { field, control } of this._parts) {
      const value = valueOf(field, control.get());
      if (value !== undefined) {
        values[field.name] = value;
      }
    }
    return values;
  }

  /** For a dialog. */
  getValue(): Values {
    return this.values();
  }

  /** Fill the form; a field that is not named is emptied. */
  setValues(values: Values): void {
    for (const part of this._parts) {
      part.control.set(rawOf(part.field, values[part.field.name]));
      part.touched = part.field.name in values;
    }
    if (this._parts.some(({ field }) => field.advanced && field.name in values)) {
      this._open(true);
    }
  }

  /**
   * Show errors by field, and the others above them all.
   *
   * `focus`: the form was submitted; all of them are shown and the first wrong field gets the focus.
   */
  setErrors(errors: Readonly<Record<string, string>>, focus = false): void {
    const { of, rest } = sortErrors(this.fields, errors);
    say(this._general, rest.join('\n'));
    this._general.hidden = rest.length === 0;
    let first: IPart | null = null;
    for (const part of this._parts) {
      part.touched = part.touched || focus;
      const text = part.touched ? (of.get(part.field.name) ?? '') : '';
      say(part.error, text);
      part.error.hidden = text === '';
      part.control.wrong(text !== '');
      first = first ?? (text ? part : null);
    }
    if (first && focus) {
      if (first.field.advanced) {
        this._open(true);
      }
      first.control.input.focus();
    }
  }

  /** Begin at the first field; what stands above it stays in view. */
  focus(): void {
    this._parts[0]?.control.input.focus({ preventScroll: true });
  }

  dispose(): void {
    Signal.clearData(this);
    super.dispose();
  }

  private _part(field: IField): IPart {
    const error = element('div', 'jp-AmlForm-error');
    const part: IPart = {
      field,
      error,
      touched: false,
      control: makeControl(field, this._targets, this._trans, () => {
        part.touched = true;
        this._changed.emit();
      })
    };
    error.setAttribute('role', 'alert');
    error.hidden = true;
    return part;
  }

  private _nodes(advanced: boolean): HTMLElement[] {
    return this._parts.filter(part => part.field.advanced === advanced).map(part => this._node(part));
  }

  private _node({ field, control, error }: IPart): HTMLElement {
    const { input } = control;
    const id = `jp-AmlForm-${this._id}-${field.name}`;
    input.id = id;
    error.id = `${id}-error`;
    const label = element('label', '', labelOf(field));
    label.htmlFor = id;
    if (field.flag) {
      label.title = field.flag;
    }
    const head = element('div', 'jp-AmlForm-head', '', label);
    if (field.required) {
      input.setAttribute('aria-required', 'true');
      const star = element('span', 'jp-AmlForm-required', '*');
      star.title = this._trans.__('Required');
      star.setAttribute('aria-hidden', 'true');
      head.append(star);
    }
    const node = element('div', 'jp-AmlForm-field');
    node.dataset.field = field.name;
    if (field.kind === 'bool') {
      head.prepend(control.node);
      head.classList.add('jp-AmlForm-tick');
      node.append(head);
    } else {
      // `NAME` says nothing beside the label `Name`, and an empty list shows what goes into it.
      const told = field.kind === 'list' || field.metavar.toLowerCase() === labelOf(field).toLowerCase();
      if (field.metavar && !told && field.kind !== 'target' && field.kind !== 'choice') {
        head.append(element('span', 'jp-AmlForm-unit', field.metavar));
      }
      node.append(head, control.node);
    }
    const described = [error.id];
    if (field.help) {
      const help = element('div', 'jp-AmlForm-help', field.help);
      help.id = `${id}-help`;
      described.push(help.id);
      if (this._compact) {
        node.title = field.flag ? `${field.flag}: ${field.help}` : field.help;
        label.title = '';
      }
      node.append(help);
    }
    input.setAttribute('aria-describedby', described.join(' '));
    node.append(error);
    return node;
  }

  private _key(event: KeyboardEvent): void {
    const { target } = event;
    if (event.key === 'Escape') {
      // A dialog closes by itself.
      this._canceled.emit();
    } else if (
      event.key === 'Enter' &&
      !event.isComposing &&
      (target instanceof HTMLInputElement || target instanceof HTMLSelectElement)
    ) {
      // Without a submit button inside, a browser would not submit.
      event.preventDefault();
      this._submitted.emit();
    }
  }

  private _open(open: boolean): void {
    this._more.hidden = !open;
    this._disclosure.setAttribute('aria-expanded', String(open));
  }

  private readonly _trans: TranslationBundle;
  private readonly _compact: boolean;
  private _targets: readonly ITargetChoice[];
  private _parts: IPart[] = [];
  private readonly _id = (forms += 1);
  private readonly _general = element('div', 'jp-AmlForm-general');
  private readonly _fields = element('div', 'jp-AmlForm-fields');
  private readonly _more = element('div', 'jp-AmlForm-more');
  private readonly _disclosure = element('button', 'jp-AmlForm-disclosure');
  private readonly _changed = new Signal<this, void>(this);
  private readonly _submitted = new Signal<this, void>(this);
  private readonly _canceled = new Signal<this, void>(this);
}
