/** New readings in the cells of the kernel's tables of GPUs and processes (`output/tables.py`). */

/** The readings of all cells, for one version of the tables. */
export interface IReadings {
  version: number;
  /** numbers, NaN where the device does not report one */
  values: Float32Array;
  /** texts; null if they have not changed */
  words: readonly string[] | null;
}

const BYTES = 'B';
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** Size with one decimal, as the kernel formats it: `31.2 GiB`. */
function size(value: number): string {
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit ? 1 : 0)} ${UNITS[unit]}`;
}

/**
 * Text of a cell, the same as `str(Reading)` in the kernel.
 *
 * @param unit text after the number; `B` for bytes
 * @param whole formatted maximum, or empty
 */
export function readingText(values: ArrayLike<number>, unit: string, whole: string): string {
  const all = Array.from(values);
  if (!all.some(Number.isFinite)) {
    return 'n/a';
  }
  if (all.length > 1) {
    return all.map(value => (Number.isFinite(value) ? Math.round(value).toLocaleString('en-US') : 'n/a')).join(', ') + unit;
  }
  const text = unit === BYTES ? size(all[0]) : `${all[0].toFixed(0)}${unit}`;
  const [number, ...rest] = text.split(' ');
  return !whole ? text : `${whole.endsWith(` ${rest.join(' ')}`) ? number : text} of ${whole}`;
}

/** Readings after a message, which has texts only if one has changed. */
export function newest(before: IReadings | null, next: IReadings): IReadings {
  return next.words === null && before?.version === next.version ? { ...next, words: before.words } : next;
}

/** Write the readings into the cells, unless the tables are of another version. */
export function fillTable(root: HTMLElement, { version, values, words }: IReadings): void {
  const tables = root.querySelector<HTMLElement>('[data-version]');
  if (tables?.dataset.version !== String(version)) {
    return;
  }
  const write = (cell: HTMLElement, text: string) => {
    // Unchanged text keeps a person's selection.
    if (cell.textContent !== text) {
      cell.textContent = text;
    }
  };
  tables.querySelectorAll<HTMLElement>('[data-reading]').forEach(cell => {
    const { reading, count, unit, whole } = cell.dataset;
    const begin = Number(reading);
    write(cell, readingText(values.subarray(begin, begin + Number(count ?? 1)), unit ?? '', whole ?? ''));
  });
  if (words) {
    tables.querySelectorAll<HTMLElement>('[data-words]').forEach(cell => {
      write(cell, words[Number(cell.dataset.words)] ?? '');
    });
  }
}
