/** Form created from the kernel's description of its fields, for a section or the body of a dialog. */

import type { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { caretDownIcon } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import type { IField } from '../protocol';
import { IControl, ITargetChoice, makeControl } from './controls';
import { button, element, say } from './dom';
import { labelOf, rawOf, sortErrors, valueOf, Values } from './fields';

interface IPart {
  readonly field: IField;
  readonly control: IControl;
  readonly error: HTMLElement;
  /** Whether the user has visited the field, so that a missing value may be reported. */
  touched: boolean;
}

export interface IFormOptions {
  readonly fields: readonly IField[];
  readonly trans: TranslationBundle;
  /** Choices of `target` fields. */
  readonly targets?: readonly ITargetChoice[];
  readonly values?: Values;
  /** Whether help is shown only beside the field that has the focus, to save space. */
  readonly compact?: boolean;
  /** Titles of the groups in their order; without them, advanced fields are hidden until the user expands them. */
  readonly groups?: readonly (readonly [group: string, title: string])[];
  /** Let the user choose the value of a field with `choose`; `null`: nothing was chosen. */
  readonly choose?: (field: IField) => Promise<string | null>;
}

let forms = 0;

/**
 * Form whose `values()` contains the user's input by field name, without the fields left unchanged.
 *
 * Errors of a field that the user has not visited yet are hidden until the form is submitted, so
 * an empty form shows no errors.
 */
export class FieldForm extends Widget implements Dialog.IBodyWidget<Values> {
  constructor(options: IFormOptions) {
    super({ node: element('form') });
    this._trans = options.trans;
    this._targets = (options.targets ?? []).map(({ name, current }) => ({ name, current }));
    this.addClass('jp-AmlForm');
    this._compact = options.compact ?? false;
    this._groups = options.groups ?? [];
    this._choose = options.choose ?? null;
    this.toggleClass('jp-mod-compact', this._compact);
    const form = this.node as HTMLFormElement;
    form.noValidate = true;
    form.autocomplete = 'off';
    // Suppress the keyboard shortcuts of JupyterLab in the form.
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

  /** Emitted when the user changes a value. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted when Enter is pressed. */
  get submitted(): ISignal<this, void> {
    return this._submitted;
  }

  /** Emitted when Escape is pressed. */
  get canceled(): ISignal<this, void> {
    return this._canceled;
  }

  get fields(): readonly IField[] {
    return this._parts.map(part => part.field);
  }

  /** Replace the fields; fields of the same name keep their values. */
  setFields(fields: readonly IField[]): void {
    const old = this.values();
    const inside = this._parts.find(part => part.control.node.contains(document.activeElement));
    this._parts = fields.map(field => this._part(field));
    const grouped = this._groups.length > 0;
    this._fields.replaceChildren(...(grouped ? this._fieldsets() : this._nodes(false)));
    this._more.replaceChildren(...(grouped ? [] : this._nodes(true)));
    this._disclosure.hidden = grouped || !fields.some(field => field.advanced);
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

  /** Update the choices of the `target` fields. */
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

  /** Values of the form, for a dialog. */
  getValue(): Values {
    return this.values();
  }

  /** Fill the form; fields without a value are cleared. */
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
   * Show errors by field, and the others above all fields.
   *
   * `focus`: after a submit, show all errors and focus the first invalid field.
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

  /** Focus the first field without scrolling the content above it out of view. */
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

  private _fieldsets(): HTMLElement[] {
    return this._groups.flatMap(([group, title]) => {
      const parts = this._parts.filter(({ field }) => (field.group || this._groups[this._groups.length - 1][0]) === group);
      if (parts.length === 0) {
        return [];
      }
      const set = element('fieldset', 'jp-AmlForm-group', '', element('legend', '', title));
      set.append(...parts.map(part => this._node(part)));
      return [set];
    });
  }

  /** Create the button that opens the choice of a field's value. */
  private _chooser(part: IPart, choose: (field: IField) => Promise<string | null>): HTMLElement {
    return button(this._trans.__('Choose…'), 'reject', () => {
      void choose(part.field).then(value => {
        // The fields may have been replaced in the meantime.
        const now = this._parts.find(({ field }) => field.name === part.field.name);
        if (value !== null && now && !this.isDisposed) {
          now.control.set(value);
          now.touched = true;
          this._changed.emit();
          now.control.input.focus();
        }
      });
    });
  }

  private _node(part: IPart): HTMLElement {
    const { field, control, error } = part;
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
      // The unit `NAME` is redundant with the label `Name`, and an empty list shows its format.
      const isObvious = field.kind === 'list' || field.metavar.toLowerCase() === labelOf(field).toLowerCase();
      if (field.metavar && !isObvious && field.kind !== 'target' && field.kind !== 'choice') {
        head.append(element('span', 'jp-AmlForm-unit', field.metavar));
      }
      const chosen = field.choose && this._choose ? this._chooser(part, this._choose) : null;
      node.append(head, chosen ? element('div', 'jp-AmlForm-chosen', '', control.node, chosen) : control.node);
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
      // A dialog closes without this signal.
      this._canceled.emit();
    } else if (
      event.key === 'Enter' &&
      !event.isComposing &&
      (target instanceof HTMLInputElement || target instanceof HTMLSelectElement)
    ) {
      // Without a submit button in the form, a browser would not submit it.
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
  private readonly _groups: readonly (readonly [group: string, title: string])[];
  private readonly _choose: ((field: IField) => Promise<string | null>) | null;
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
