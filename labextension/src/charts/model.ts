/** What a small chart shows. */

export type TickKind = 'number' | 'integer' | 'time' | 'bytes';

export interface ISeries {
  name: string;
  y: readonly (number | null)[];
  /** which colour of the palette; none for the chart's own */
  colour?: number;
  /** drawn thin and pale, behind the others */
  faint?: boolean;
  dashed?: boolean;
}

export interface IBand {
  low: readonly (number | null)[];
  high: readonly (number | null)[];
}

/** A dashed line at one height, such as the size of a memory. */
export interface ILevel {
  name: string;
  value: number;
}

/** A stretch of x with a ground of its own. */
export interface IShade {
  name: string;
  from: number;
  to: number;
}

export interface ILineData {
  title: string;
  /** shown beside the title */
  last: string;
  x: readonly number[];
  series: readonly ISeries[];
  band?: IBand | null;
  levels?: readonly ILevel[];
  shades?: readonly IShade[];
  xKind: TickKind;
  yKind: TickKind;
  xFormat: (x: number) => string;
  yFormat: (y: number) => string;
  /** name of the x axis in the value under the pointer, such as `step` */
  xName: string;
  /** the y axis starts at zero */
  fromZero: boolean;
  /** the y axis ends there */
  yMax?: number;
}

/** Smallest and largest value that the y axis must hold, or null when there is none. */
export function yExtent(data: ILineData): [number, number] | null {
  let [low, high] = [Infinity, -Infinity];
  const rows = [...data.series.map(series => series.y), ...(data.band ? [data.band.low, data.band.high] : [])];
  for (const row of rows) {
    for (const value of row) {
      if (value !== null && Number.isFinite(value)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
  }
  if (low > high) {
    return null;
  }
  for (const { value } of data.levels ?? []) {
    high = Math.max(high, value);
  }
  return [low, high];
}

const sameRow = (a: readonly (number | null)[] = [], b: readonly (number | null)[] = []): boolean =>
  a.length === b.length && a.every((value, i) => value === b[i]);

/** Whether two charts would look the same. */
export function same(a: ILineData, b: ILineData): boolean {
  return (
    a.title === b.title &&
    a.last === b.last &&
    a.yMax === b.yMax &&
    sameRow(a.x, b.x) &&
    a.series.length === b.series.length &&
    a.series.every((series, i) => series.name === b.series[i].name && sameRow(series.y, b.series[i].y)) &&
    sameRow(a.band?.low, b.band?.low) &&
    sameRow(a.band?.high, b.band?.high) &&
    JSON.stringify([a.levels ?? [], a.shades ?? []]) === JSON.stringify([b.levels ?? [], b.shades ?? []])
  );
}

/** Closed SVG path between two lines; stretches without both are left out. */
export function area(
  x: readonly number[],
  band: IBand,
  sx: (x: number) => number,
  sy: (y: number) => number
): string {
  let text = '';
  let run: number[] = [];
  const close = () => {
    if (run.length) {
      const point = (i: number, y: number | null) => `${sx(x[i]).toFixed(1)},${sy(y as number).toFixed(1)}`;
      const upper = run.map(i => point(i, band.high[i]));
      const lower = [...run].reverse().map(i => point(i, band.low[i]));
      text += `M${[...upper, ...lower].join('L')}Z`;
    }
    run = [];
  };
  x.forEach((_, i) => {
    const [low, high] = [band.low[i] ?? null, band.high[i] ?? null];
    if (low === null || high === null) {
      close();
    } else {
      run.push(i);
    }
  });
  close();
  return text;
}
