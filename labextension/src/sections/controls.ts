/** Controls of a form's fields: a line, a check mark, a select, and a list of chips. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { caretDownEmptyIcon } from '@jupyterlab/ui-components';
import type { IField } from '../protocol';
import { element } from './dom';
import { pasted, Raw, rawOf, typed } from './fields';

/** Control of a field, as used by the form. */
export interface IControl {
  readonly node: HTMLElement;
  /** Element that takes the focus and has the ARIA attributes. */
  readonly input: HTMLElement;
  get(): Raw;
  set(raw: Raw): void;
  wrong(is: boolean): void;
}

/** Choice of a `target` field. */
export interface ITargetChoice {
  readonly name: string;
  readonly current: boolean;
}

/** Create the control of a field; `changed` is called when the user changes its content. */
export function makeControl(
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
    node: field.choices?.length ? offered(input, field.choices) : input,
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

/** A line with texts to choose from, beside any other text. */
function offered(input: HTMLInputElement, choices: readonly string[]): HTMLElement {
  const list = element('datalist');
  list.id = `jp-AmlForm-offers-${++offers}`;
  list.append(
    ...choices.map(choice => {
      const option = element('option');
      option.value = choice;
      return option;
    })
  );
  input.setAttribute('list', list.id);
  return element('div', 'jp-AmlForm-offered', '', input, list);
}

let offers = 0;

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
