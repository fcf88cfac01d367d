/** What a form holds and what of it is sent. Pure functions. */

import type { IField } from '../protocol';

/** What a control holds: text, a tick, or a list of texts. */
export type Raw = string | boolean | readonly string[];

/** Values by name of a field. */
export type Values = Record<string, unknown>;

/** A default or value as a person would type it. */
export function typed(value: unknown): string {
  if (value === null || value === undefined) {
    return '';
  }
  if (Array.isArray(value)) {
    return value.map(typed).join(', ');
  }
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

/** What the control of `field` has to hold for a value; nothing given is an empty control. */
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
 * The value to send for what a control holds; `undefined`: nothing is sent and the default holds.
 *
 * What is not a number where one is wanted is sent as it was typed: the kernel has the words for it.
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
 * Values that an answer brings, but for those that a person has changed since it was asked for.
 *
 * `before`: of the form when it was asked for; `now`: of the form when the answer is there.
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

/** Two values are the same JSON. */
export function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** Errors for the fields there are; what names none of them is about the whole. */
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

/** A label from a flag or a name: `--max-nodes` is `Max nodes`, `gpus` is `GPUs`. */
export function labelOf(field: IField): string {
  return labelText(field.flag.replace(/^-+/, '') || field.name);
}

/** A name of the kernel's as a person reads it: `max_nodes` is `Max nodes`. */
export function labelText(name: string): string {
  const words = name.replace(/[-_]+/g, ' ').trim();
  const spelled = words.replace(/\b(gpus?|cpus?|ssh|url|id|ip|ssd|gb)\b/gi, result => {
    const upper = result.toUpperCase();
    return upper.endsWith('US') ? `${upper.slice(0, -1)}s` : upper;
  });
  return spelled.charAt(0).toUpperCase() + spelled.slice(1);
}

/** Texts pasted into a list: one a line. */
export function pasted(text: string): string[] {
  return text
    .split(/\r?\n/)
    .map(line => line.trim())
    .filter(line => line !== '');
}
