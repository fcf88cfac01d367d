/** Columns, filter and order of the table of machine sizes. Independent of the DOM. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISizeRow } from '../protocol';

export interface IColumn {
  readonly title: string;
  readonly numeric: boolean;
  text(size: ISizeRow): string;
  /** Value to sort by; `null` is last in both directions. */
  value(size: ISizeRow): number | string | null;
}

/** Columns of the table; `low`: prices and quotas of low-priority machines. */
export function sizeColumns(trans: TranslationBundle, low: boolean, bytes: (value: number) => string): readonly IColumn[] {
  const price = (size: ISizeRow) => (low ? size.price_low : size.price);
  const fit = (size: ISizeRow) => (low ? size.fit_low : size.fit);
  return [
    { title: trans.__('Size'), numeric: false, text: size => size.name, value: size => size.name },
    {
      title: trans.__('GPUs'),
      numeric: false,
      text: size => (size.gpus ? `${size.gpus} × ${size.gpu}` : trans.__('none')),
      value: size => size.gpus * 1e15 + (size.gpu_memory ?? 0)
    },
    { title: trans.__('CPUs'), numeric: true, text: size => String(size.cpus ?? '?'), value: size => size.cpus },
    {
      title: trans.__('Memory'),
      numeric: true,
      text: size => (size.memory === null ? '?' : bytes(size.memory)),
      value: size => size.memory
    },
    {
      title: low ? trans.__('Low-priority price') : trans.__('Price'),
      numeric: true,
      text: size => price(size)?.toFixed(2) ?? '?',
      value: price
    },
    {
      title: trans.__('Fit now'),
      numeric: true,
      text: size => String(fit(size) ?? '?'),
      value: fit
    },
    { title: trans.__('Retirement'), numeric: false, text: size => size.retirement, value: size => size.retirement || null }
  ];
}

/** Sizes that contain all words in their name, GPU or memory, regardless of case. */
export function filterSizes(sizes: readonly ISizeRow[], words: string, gpus: boolean): readonly ISizeRow[] {
  const terms = words.toLowerCase().split(/\s+/).filter(Boolean);
  return sizes.filter(size => {
    const text = `${size.name} ${size.gpu}`.toLowerCase();
    return (!gpus || size.gpus > 0) && terms.every(term => text.includes(term));
  });
}

/** Sizes in the order of a column; those without a value last. */
export function sortSizes(sizes: readonly ISizeRow[], column: IColumn, down: boolean): readonly ISizeRow[] {
  const compare = (a: number | string, b: number | string) =>
    typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true });
  return [...sizes].sort((one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    if (a === null || b === null) {
      return a === b ? 0 : a === null ? 1 : -1;
    }
    return down ? compare(b, a) : compare(a, b);
  });
}
