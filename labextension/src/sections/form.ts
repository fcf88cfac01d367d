/** Form created from the kernel's description of its fields, for a section or the body of a dialog. */

import type { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { caretDownEmptyIcon, caretDownIcon } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import type { IField } from '../protocol';
import { element, say } from './dom';
import { labelOf, pasted, Raw, rawOf, sortErrors, typed, valueOf, Values } from './fields';

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
  /** Whether help is shown as tooltips instead of text, to save space. */
  readonly compact?: boolean;
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
      // The unit `NAME` is redundant with the label `Name`, and an empty list shows its format.
      const isObvious = field.kind === 'list' || field.metavar.toLowerCase() === labelOf(field).toLowerCase();
      if (field.metavar && !isObvious && field.kind !== 'target' && field.kind !== 'choice') {
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

/** Control of a field, as used by the form. */
interface IControl {
  readonly node: HTMLElement;
  /** Element that takes the focus and has the ARIA attributes. */
  readonly input: HTMLElement;
  get(): Raw;
  set(raw: Raw): void;
  wrong(is: boolean): void;
}

/** Choice of a `target` field. */
interface ITargetChoice {
  readonly name: string;
  readonly current: boolean;
}

/** Create the control of a field; `changed` is called when the user changes its content. */
function makeControl(
  field: IField,
  targets: readonly ITargetChoice[],
  trans: TranslationBundle,
  changed: () => void
): IControl {
  switch (field.kind) {
    case 'bool':
      return tick(field, changed);
    case 'choice':
      return select(field.choices.map(name => [name, name]), unset(field, trans), changed);
    case 'target': {
      const current = targets.find(target => target.current);
      const none = current && !field.default ? trans.__('In use: %1', current.name) : unset(field, trans);
      return select(targets.map(({ name }) => [name, name]), none, changed);
    }
    case 'list':
      return chips(field, trans, changed);
    default:
      return line(field, changed);
  }
}

function unset(field: IField, trans: TranslationBundle): string {
  const text = typed(field.default);
  return text ? trans.__('Default: %1', text) : field.required ? trans.__('Choose…') : trans.__('Not set');
}

function line(field: IField, changed: () => void): IControl {
  const input = element('input', 'jp-AmlForm-input jp-mod-styled');
  input.type = 'text';
  input.spellcheck = false;
  input.autocomplete = 'off';
  // `type=number` would discard an invalid number before the kernel can report the error.
  input.inputMode = field.kind === 'int' ? 'numeric' : field.kind === 'number' ? 'decimal' : 'text';
  input.placeholder = typed(field.default);
  input.addEventListener('input', changed);
  return {
    node: input,
    input,
    get: () => input.value,
    set: raw => {
      // Setting the same text would move the cursor.
      if (input.value !== raw) {
        input.value = String(raw);
      }
    },
    wrong: is => mark(input, is)
  };
}

function tick(field: IField, changed: () => void): IControl {
  const input = element('input', 'jp-mod-styled');
  input.type = 'checkbox';
  input.checked = rawOf(field, undefined) === true;
  input.addEventListener('change', changed);
  return {
    node: input,
    input,
    get: () => input.checked,
    set: raw => void (input.checked = raw === true),
    wrong: is => mark(input, is)
  };
}

function select(options: [string, string][], none: string, changed: () => void): IControl {
  const node = element('div', 'jp-select-wrapper');
  const input = element('select', 'jp-AmlForm-input jp-mod-styled');
  const add = (value: string, label: string) => {
    const option = element('option', '', label);
    option.value = value;
    input.append(option);
  };
  add('', none);
  options.forEach(([value, label]) => add(value, label));
  input.addEventListener('change', changed);
  node.append(input, caret());
  return {
    node,
    input,
    get: () => input.value,
    set: raw => {
      const value = String(raw);
      // A line may name a target that no longer exists: show the name and let the kernel report the error.
      if (value && !Array.from(input.options).some(option => option.value === value)) {
        add(value, value);
      }
      input.value = value;
    },
    wrong: is => mark(input, is)
  };
}

/** Create the arrow that JupyterLab adds to its selects. */
export function caret(): HTMLElement {
  const node = element('span', 'jp-AmlForm-caret');
  node.setAttribute('aria-hidden', 'true');
  caretDownEmptyIcon.element({ container: node });
  return node;
}

function chips(field: IField, trans: TranslationBundle, changed: () => void): IControl {
  const node = element('div', 'jp-AmlForm-chips');
  const input = element('input');
  input.type = 'text';
  input.spellcheck = false;
  input.autocomplete = 'off';
  const hint = typed(field.default) || field.metavar;
  let items: string[] = [];

  const draw = () => {
    node.querySelectorAll('.jp-AmlForm-chip').forEach(chip => chip.remove());
    items.forEach((text, at) => input.before(chip(text, at)));
    input.placeholder = items.length ? '' : hint;
  };
  const take = () => {
    const added = pasted(input.value);
    input.value = '';
    if (added.length) {
      items = [...items, ...added];
      draw();
    }
  };
  const remove = (at: number) => {
    items = items.filter((_, other) => other !== at);
    draw();
    input.focus();
    changed();
  };
  const chip = (text: string, at: number) => {
    const edit = element('button', 'jp-AmlForm-chipText', text);
    edit.type = 'button';
    edit.title = trans.__('Edit %1', text);
    edit.addEventListener('click', () => {
      take();
      input.value = text;
      remove(at);
    });
    const close = element('button', '', '×');
    close.type = 'button';
    close.title = trans.__('Remove %1', text);
    close.setAttribute('aria-label', close.title);
    close.addEventListener('click', () => remove(at));
    return element('span', 'jp-AmlForm-chip', '', edit, close);
  };

  input.addEventListener('input', changed);
  input.addEventListener('blur', take);
  input.addEventListener('paste', event => {
    const text = event.clipboardData?.getData('text/plain') ?? '';
    if (text.includes('\n')) {
      event.preventDefault();
      items = [...items, ...pasted(`${input.value}\n${text}`)];
      input.value = '';
      draw();
      changed();
    }
  });
  input.addEventListener('keydown', event => {
    if (event.key === 'Enter' && input.value.trim() !== '') {
      // The first Enter completes the item, the next one submits the form.
      event.preventDefault();
      event.stopPropagation();
      take();
      changed();
    } else if (event.key === 'Backspace' && input.value === '' && items.length) {
      event.preventDefault();
      remove(items.length - 1);
    }
  });
  node.addEventListener('mousedown', event => {
    if (event.target === node) {
      event.preventDefault();
      input.focus();
    }
  });
  node.append(input);
  draw();
  return {
    node,
    input,
    get: () => [...items, input.value],
    set: raw => {
      const next = Array.isArray(raw) ? [...raw] : [];
      const now = [...items, input.value.trim()].filter(item => item !== '');
      if (JSON.stringify(next) !== JSON.stringify(now)) {
        items = next;
        input.value = '';
        draw();
      }
    },
    wrong: is => {
      mark(input, is);
      node.classList.toggle('jp-mod-wrong', is);
    }
  };
}

function mark(input: HTMLElement, wrong: boolean): void {
  if (wrong) {
    input.setAttribute('aria-invalid', 'true');
  } else {
    input.removeAttribute('aria-invalid');
  }
}
