/** Rows of a comparison of runs, with their differences. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { bytes, duration, json, number } from '../format';
import { lineShares } from '../inside/lineMarks';
import { count, list, object, text } from '../untyped';
import type { IMetricSeries, IRunRecord } from '../protocol';
import { TERMINAL } from '../record';

export interface IRow {
  readonly group: string;
  readonly name: string;
  /** Formatted value of each run; empty if a run has none. */
  readonly values: readonly string[];
  readonly differs: boolean;
}

const MIB = 1024 * 1024;

/** Difference of the parts of the time from which runs differ in a line. */
const MIN_SHARE_DIFFERENCE = 0.03;

/** Seconds in `running`, until the end or the creation of the record; null before. */
export function seconds(record: IRunRecord): number | null {
  const phase = record.phases.find(p => p.name === 'running');
  if (!phase) {
    return null;
  }
  return phase.seconds ?? (phase.end ?? record.seen_at) - phase.start;
}

function stateOf(record: IRunRecord, trans: TranslationBundle): string {
  return TERMINAL.has(record.state) && record.exit_code
    ? trans.__('%1 (exit code %2)', record.state, record.exit_code)
    : record.state;
}

/** Last, smallest and largest value of a metric. */
export function range(series: IMetricSeries): { last: number | string | null; low: number | null; high: number | null } {
  let [low, high] = [Infinity, -Infinity];
  for (const value of series.value) {
    if (value !== null && Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return { last: series.last, low: low <= high ? low : null, high: low <= high ? high : null };
}

/** Means over all GPUs from the summary of an ended run. */
export function gpuSummary(record: IRunRecord): { gpus: number; util: number | null; memory: number | null; energy: number | null } {
  const gpus = list(record.summary.gpus).map(object);
  const known = (name: string) => gpus.map(gpu => count(gpu[name])).filter((x): x is number => x !== null);
  const sum = (values: number[]) => values.reduce((a, b) => a + b, 0);
  const util = known('util_mean');
  const memory = known('memory_peak');
  const energy = known('energy_wh');
  return {
    gpus: gpus.length || record.gpu?.gpus.length || record.gpu?.heat?.labels.length || 0,
    util: util.length ? sum(util) / util.length : null,
    memory: memory.length ? Math.max(...memory) * MIB : null,
    energy: energy.length ? sum(energy) : null
  };
}

/** Names of all records: those of the first in its order, then those only in the second, and so on. */
export function union(records: readonly Record<string, unknown>[]): string[] {
  return [...new Set(records.flatMap(record => Object.keys(record)))];
}

/** Whether not all values are the same. */
function differ(values: readonly unknown[]): boolean {
  return values.some(value => value !== values[0]);
}

/** All rows of the table, in groups. */
export function compareRows(records: readonly IRunRecord[], trans: TranslationBundle): IRow[] {
  const rows: IRow[] = [];
  const add = (group: string, name: string, values: readonly string[], differs = differ(values)) => {
    if (values.some(Boolean)) {
      rows.push({ group, name, values, differs });
    }
  };
  /** Numbers are compared before they are rounded. */
  const put = <T>(group: string, name: string, values: readonly (T | null)[], format: (value: T) => string) =>
    add(group, name, values.map(value => (value === null ? '' : format(value))), differ(values));
  const run = trans.__('Run');
  const each = (of: (record: IRunRecord) => string) => records.map(of);
  add(run, trans.__('state'), each(record => stateOf(record, trans)));
  add(run, trans.__('error'), each(record => record.error ?? ''));
  add(run, trans.__('target'), each(record => record.target));
  add(run, trans.__('experiment'), each(record => record.experiment));
  add(run, trans.__('pokes'), each(record => record.pokes.map(poke => poke.text).join('; ')));
  const took = (value: number | null) => (value === null ? '' : duration(value));
  add(run, trans.__('duration'), each(record => took(seconds(record))));
  if (records.every(record => record.source_sha256)) {
    add(run, trans.__('code'), each(record => record.source_sha256.slice(0, 12)), differ(each(record => record.source_sha256)));
  }
  const named = (group: string, all: readonly Record<string, unknown>[]) => {
    for (const name of union(all)) {
      const has = (of: Record<string, unknown>) => Object.prototype.hasOwnProperty.call(of, name);
      // Compare complete values: two long ones may have the same beginning.
      const whole = all.map(of => (has(of) ? JSON.stringify(of[name]) : undefined));
      add(group, name, all.map(of => (has(of) ? json(of[name], 200) || "''" : '')), differ(whole));
    }
  };
  named(trans.__('Parameters'), records.map(record => record.params));
  for (const name of union(records.map(record => record.metrics))) {
    const ranges = records.map(record => (record.metrics[name] ? range(record.metrics[name]) : null));
    const metrics = trans.__('Metrics');
    for (const [what, title] of [
      ['last', trans.__('%1, last', name)],
      ['low', trans.__('%1, lowest', name)],
      ['high', trans.__('%1, highest', name)]
    ] as const) {
      put(metrics, title, ranges.map(found => found?.[what] ?? null), number);
    }
  }
  named(trans.__('Results'), records.map(record => record.outputs));
  const shares = records.map(({ lines }) => lineShares(lines));
  for (const line of union(shares)) {
    const parts = shares.map(of => of[line] ?? 0);
    const texts = shares.map(of => (line in of ? `${Math.round(100 * of[line])} %` : ''));
    add(trans.__('Time by line'), line, texts, Math.max(...parts) - Math.min(...parts) >= MIN_SHARE_DIFFERENCE);
  }
  const gpus = trans.__('GPUs');
  const found = records.map(gpuSummary);
  add(gpus, trans.__('number'), found.map(({ gpus: n }) => (n ? String(n) : '')));
  put(gpus, trans.__('mean utilization'), found.map(({ util }) => util), value => `${Math.round(value)} %`);
  put(gpus, trans.__('memory peak'), found.map(({ memory }) => memory), bytes);
  put(gpus, trans.__('energy'), found.map(({ energy }) => energy), value => `${number(value)} Wh`);
  add(gpus, trans.__('verdict'), each(record => text(record.truth?.verdict)));
  return rows;
}

/** Metric of several runs on a common axis of steps. */
export interface IOverlay {
  readonly name: string;
  readonly x: number[];
  /** Values of each run; `null` for a run without the metric. */
  readonly rows: readonly ((number | null)[] | null)[];
}

const steps = (series: IMetricSeries): readonly number[] =>
  series.step.every(step => step === series.step[0]) ? series.step.map((_, i) => i) : series.step;

/** Values of a series on a common axis: interpolated between its points, null outside its range. */
function fill(x: readonly number[], series: IMetricSeries): (number | null)[] {
  const at = steps(series);
  const points: [number, number][] = [];
  at.forEach((step, i) => {
    const value = series.value[i];
    if (value !== null && Number.isFinite(value)) {
      points.push([step, value]);
    }
  });
  points.sort((p, q) => p[0] - q[0]);
  let k = 0;
  return x.map(step => {
    while (k < points.length - 1 && points[k + 1][0] <= step) {
      k += 1;
    }
    const [here, next] = [points[k], points[k + 1]];
    if (!here || step < here[0] || (!next && step > here[0])) {
      return null;
    }
    return !next || here[0] === step
      ? here[1]
      : here[1] + ((next[1] - here[1]) * (step - here[0])) / (next[0] - here[0]);
  });
}

/** Metrics that at least two of the runs have. */
export function overlays(records: readonly IRunRecord[]): IOverlay[] {
  return union(records.map(record => record.metrics)).flatMap(name => {
    const all = records.map(record => (record.metrics[name]?.value.length ? record.metrics[name] : null));
    const known = all.filter((series): series is IMetricSeries => series !== null);
    if (known.length < 2) {
      return [];
    }
    const x = [...new Set(known.flatMap(series => [...steps(series)]))].sort((p, q) => p - q);
    return [{ name, x, rows: all.map(series => series && fill(x, series)) }];
  });
}
