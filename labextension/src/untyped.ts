/** Accessors for values of unknown type. A value of the wrong type counts as missing. */

export type Untyped = Record<string, unknown>;

export const object = (x: unknown): Untyped =>
  typeof x === 'object' && x !== null && !Array.isArray(x) ? (x as Untyped) : {};
export const list = (x: unknown): unknown[] => (Array.isArray(x) ? x : []);
export const text = (x: unknown, fallback = ''): string => (typeof x === 'string' ? x : fallback);
export const count = (x: unknown): number | null => (typeof x === 'number' && Number.isFinite(x) ? x : null);
