/** Formatters of numbers, times and sizes. */

/** Duration in seconds: `0.42 s`, `12.3 s`, `3 min 05 s`, `2 h 04 min`, `3 d 02 h`. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) {
    return '–';
  }
  const s = Math.max(0, seconds);
  if (s < 9.995) {
    return `${s.toFixed(2)} s`;
  }
  if (s < 59.95) {
    return `${s.toFixed(1)} s`;
  }
  const whole = Math.round(s);
  const two = (x: number) => String(x).padStart(2, '0');
  if (whole < 3600) {
    return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 1440) {
    return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  }
  const hours = Math.floor(minutes / 60);
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
}

/** Elapsed time in one unit: `5 s`, `3 min`, `2 h`, `4 d`. */
export function ago(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s < 59.5) {
    return `${Math.round(s)} s`;
  }
  if (s < 3570) {
    return `${Math.round(s / 60)} min`;
  }
  if (s < 84600) {
    return `${Math.round(s / 3600)} h`;
  }
  return `${Math.round(s / 86400)} d`;
}

/** Time label of an axis, from seconds since the start: `0:05`, `12:30`, `1:02:03`. */
export function clock(seconds: number): string {
  const whole = Math.round(Math.max(0, seconds));
  const two = (x: number) => String(x).padStart(2, '0');
  const h = Math.floor(whole / 3600);
  const m = Math.floor((whole % 3600) / 60);
  return h ? `${h}:${two(m)}:${two(whole % 60)}` : `${m}:${two(whole % 60)}`;
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** Size in binary units with three significant digits: `12 B`, `1.50 KiB`, `312 MiB`. */
export function bytes(n: number): string {
  if (!Number.isFinite(n)) {
    return '–';
  }
  let value = Math.max(0, n);
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : significant(value, 3)} ${UNITS[unit]}`;
}

function significant(value: number, figures: number): string {
  const before = value < 1 ? 1 : Math.floor(Math.log10(value)) + 1;
  return value.toFixed(Math.max(0, figures - before));
}

/** Percentage without decimals: `87 %`. */
export function percent(value: number): string {
  return `${Math.round(value)} %`;
}

/** Measured value with four significant digits, and an exponent only where the result is shorter; `nan` and `inf` are texts. */
export function number(value: number | string | null | undefined): string {
  if (typeof value === 'string') {
    return value;
  }
  if (value === null || value === undefined || !Number.isFinite(value)) {
    return '–';
  }
  const size = Math.abs(value);
  if (value === 0 || (Number.isInteger(value) && size < 1e6)) {
    return String(value);
  }
  return size >= 1e6 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** Value with its unit, as beside the titles of charts: `87 %`, `16 GiB`, `350 W`. */
export function amount(value: number, unit: string): string {
  if (unit === 'bytes' || unit === 'MiB') {
    return bytes(unit === 'MiB' ? value * 1024 ** 2 : value).replace(/\.0+ /, ' ');
  }
  return unit ? `${Math.round(value)} ${unit}` : number(value);
}

/** JSON value in at most `limit` characters. */
export function json(value: unknown, limit = 80): string {
  const text = typeof value === 'number' ? number(value) : typeof value === 'string' ? value : JSON.stringify(value);
  return text === undefined ? '–' : text.length > limit ? `${text.slice(0, limit - 1)}…` : text;
}

/** Remove the color and cursor codes from terminal text. */
export function plain(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/\u001b\[[0-9;?]*[ -/]*[@-~]/g, '');
}
