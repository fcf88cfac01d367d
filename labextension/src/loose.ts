/** Reading values of unknown type: what has the wrong type is as good as missing. Pure functions. */

export type Loose = Record<string, unknown>;

export const object = (x: unknown): Loose =>
  typeof x === 'object' && x !== null && !Array.isArray(x) ? (x as Loose) : {};
export const list = (x: unknown): unknown[] => (Array.isArray(x) ? x : []);
export const text = (x: unknown, fallback = ''): string => (typeof x === 'string' ? x : fallback);
export const count = (x: unknown): number | null => (typeof x === 'number' && Number.isFinite(x) ? x : null);
