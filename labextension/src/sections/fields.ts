/** Conversion between the contents of a form and the values sent to the kernel. Pure functions. */

import type { IField } from '../protocol';

/** Content of a control: text, a check mark, or a list of texts. */
export type Raw = string | boolean | readonly string[];

/** Values by field name. */
export type Values = Record<string, unknown>;

/** Format a default or a value as the text of an input. */
export function typed(value: unknown): string {
  if (value === null || value === undefined) {
    return '';
  }
  if (Array.isArray(value)) {
    return value.map(typed).join(', ');
  }
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

/** Content of the control of `field` for a value; empty without a value. */
export function rawOf(field: IField, value: unknown): Raw {
  if (field.kind === 'bool') {
    return typeof value === 'boolean' ? value : field.default === true;
  }
  if (field.kind === 'list') {
    return Array.isArray(value) ? value.map(typed) : value === null || value === undefined ? [] : [typed(value)];
  }
  return typed(value);
}

/**
 * Value to send for the content of a control; `undefined`: no value is sent and the default applies.
 *
 * An invalid number is sent as typed, because the kernel reports the error.
 */
export function valueOf(field: IField, raw: Raw): unknown {
  if (typeof raw === 'boolean') {
    return raw === (field.default === true) ? undefined : raw;
  }
  let value: unknown;
  if (typeof raw === 'string') {
    const text = raw.trim();
    if (text === '') {
      return undefined;
    }
    const number = Number(text);
    const good = field.kind === 'int' ? Number.isSafeInteger(number) : field.kind === 'number' && Number.isFinite(number);
    value = good ? number : text;
  } else {
    const items = raw.map(item => item.trim()).filter(item => item !== '');
    if (items.length === 0) {
      return undefined;
    }
    value = items;
  }
  return same(value, field.default) ? undefined : value;
}

/**
 * Merge the values of a reply with the changes that the user has made since the request.
 *
 * `before`: values of the form at the request; `now`: values of the form at the reply.
 */
export function keepTyped(before: Values, now: Values, answer: Values): Values {
  const result = { ...answer };
  for (const name of new Set([...Object.keys(before), ...Object.keys(now)])) {
    if (!same(before[name], now[name])) {
      if (now[name] === undefined) {
        delete result[name];
      } else {
        result[name] = now[name];
      }
    }
  }
  return result;
}

/** Whether two values are the same JSON. */
export function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** Assign errors to the fields by name; the remaining ones apply to the whole form. */
export function sortErrors(
  fields: readonly IField[],
  errors: Readonly<Record<string, string>>
): { of: Map<string, string>; rest: string[] } {
  const names = new Set(fields.map(field => field.name));
  const of = new Map<string, string>();
  const rest: string[] = [];
  for (const [name, text] of Object.entries(errors)) {
    if (names.has(name)) {
      of.set(name, text);
    } else {
      rest.push(text);
    }
  }
  return { of, rest };
}

/** Whether a target understands a field; an unknown kind or number of GPUs excludes nothing. */
export function understands(field: IField, kind: string, gpus: number | null): boolean {
  // A kernel with an older package sends neither.
  return !(field.not_for ?? []).includes(kind) && !(field.needs_gpus && gpus === 0);
}

/** Label of a field: its own, or from a flag or a name: `--max-nodes` becomes `Max nodes`, `gpus` becomes `GPUs`. */
export function labelOf(field: IField): string {
  // A kernel with an older package does not send labels.
  return field.label || labelText(field.flag.replace(/^-+/, '') || field.name);
}

/** Display text of a name from the kernel: `max_nodes` becomes `Max nodes`. */
export function labelText(name: string): string {
  const words = name.replace(/[-_]+/g, ' ').trim();
  const spelled = words.replace(/\b(gpus?|cpus?|ssh|url|id|ip|ssd|gb)\b/gi, result => {
    const upper = result.toUpperCase();
    return upper.endsWith('US') ? `${upper.slice(0, -1)}s` : upper;
  });
  return spelled.charAt(0).toUpperCase() + spelled.slice(1);
}

/** Split text pasted into a list: one item for each line. */
export function pasted(text: string): string[] {
  return text
    .split(/\r?\n/)
    .map(line => line.trim())
    .filter(line => line !== '');
}
