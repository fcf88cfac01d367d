/** English for the pure parts of sections: the texts themselves, with the arguments filled in. */

import type { TranslationBundle } from '@jupyterlab/translation';

function fill(text: string, args: unknown[]): string {
  return text.replace(/%(\d)/g, (_, at) => String(args[Number(at) - 1]));
}

export const trans = {
  __: (text: string, ...args: unknown[]) => fill(text, args),
  _n: (one: string, many: string, n: number, ...args: unknown[]) => fill(n === 1 ? one : many, [n, ...args])
} as unknown as TranslationBundle;
