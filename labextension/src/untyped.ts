/** Accessors for values of unknown type. A value of the wrong type counts as missing. */

import { SHAPES } from './protocol';

export type Untyped = Record<string, unknown>;

export const object = (x: unknown): Untyped =>
  typeof x === 'object' && x !== null && !Array.isArray(x) ? (x as Untyped) : {};
export const list = (x: unknown): unknown[] => (Array.isArray(x) ? x : []);
export const text = (x: unknown, fallback = ''): string => (typeof x === 'string' ? x : fallback);
export const count = (x: unknown): number | null => (typeof x === 'number' && Number.isFinite(x) ? x : null);

type Reader = (x: unknown) => unknown;

const readers = new Map<string, Reader>();

/** Whether a value is of a type without parts. */
function fits(type: string, x: unknown): boolean {
  return type.startsWith('I') ? typeof x === 'object' && x !== null && !Array.isArray(x) : type !== 'null' && typeof x === type;
}

function readerOf(type: string): Reader {
  const known = readers.get(type);
  if (known) {
    return known;
  }
  const [kind, given] = type.split('=');
  const nested = (inner: string) => {
    // Looked up late: a type may contain itself.
    let reader: Reader | null = null;
    return (x: unknown) => (reader ??= readerOf(inner))(x);
  };
  const make = (): Reader => {
    const map = /^Record<string, (.*)>$/.exec(kind);
    if (kind.endsWith('[]')) {
      const item = nested(kind.slice(0, -2).replace(/^\((.*)\)$/, '$1'));
      return x => list(x).map(item);
    }
    if (map) {
      const item = nested(map[1]);
      return x => Object.fromEntries(Object.entries(object(x)).map(([name, value]) => [name, item(value)]));
    }
    if (kind.includes(' | ')) {
      const options = kind.split(' | ').map(option => [option, nested(option)] as const);
      return x => (options.find(([option]) => fits(option, x)) ?? options[options.length - 1])[1](x);
    }
    if (kind.startsWith('I')) {
      const fields = Object.entries(SHAPES[kind]).map(([name, field]) => [name, nested(field)] as const);
      return x => Object.fromEntries(fields.map(([name, field]) => [name, field(object(x)[name])]));
    }
    const otherwise: unknown = given ? JSON.parse(given) : { number: 0, string: '', boolean: false }[kind] ?? null;
    return kind === 'unknown' ? x => x ?? null : x => (fits(kind, x) && !(x !== x) ? x : otherwise);
  };
  const reader = make();
  readers.set(type, reader);
  return reader;
}

/** A struct from JSON that may be of an older version, or of anybody: with every field, each of its type. */
export const complete = <T>(struct: string, x: unknown): T => readerOf(struct)(x) as T;
