/** Rows of a comparison of two runs, with their differences. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { bytes, duration, json, number } from '../format';
import { count, list, object, text } from '../untyped';
import type { IMetricSeries, IRunRecord } from '../protocol';
import { TERMINAL } from '../record';

export interface IRow {
  readonly group: string;
  readonly name: string;
  /** Formatted value of each run; empty if a run has none. */
  readonly left: string;
  readonly right: string;
  readonly differs: boolean;
}

const MIB = 1024 * 1024;

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
export function range(series: IMetricSeries): { last: number | null; low: number | null; high: number | null } {
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

/** Names of both records: those of the first in its order, then those only in the second. */
export function union(a: Record<string, unknown>, b: Record<string, unknown>): string[] {
  return [...new Set([...Object.keys(a), ...Object.keys(b)])];
}

/** All rows of the table, in groups. */
export function compareRows(a: IRunRecord, b: IRunRecord, trans: TranslationBundle): IRow[] {
  const rows: IRow[] = [];
  const add = (group: string, name: string, left: string, right: string, differs = left !== right) => {
    if (left || right) {
      rows.push({ group, name, left, right, differs });
    }
  };
  const put = (x: number | null, format: (value: number) => string) => (x === null ? '' : format(x));
  const run = trans.__('Run');
  add(run, trans.__('state'), stateOf(a, trans), stateOf(b, trans));
  add(run, trans.__('error'), a.error ?? '', b.error ?? '');
  add(run, trans.__('target'), a.target, b.target);
  add(run, trans.__('experiment'), a.experiment, b.experiment);
  add(run, trans.__('duration'), put(seconds(a), duration), put(seconds(b), duration));
  const code = a.source_sha256 && b.source_sha256 ? [a.source_sha256, b.source_sha256].map(x => x.slice(0, 12)) : [];
  if (code.length) {
    add(run, trans.__('code'), code[0], code[1], a.source_sha256 !== b.source_sha256);
  }
  const values = (group: string, left: Record<string, unknown>, right: Record<string, unknown>) => {
    for (const name of union(left, right)) {
      const has = (of: Record<string, unknown>) => Object.prototype.hasOwnProperty.call(of, name);
      const show = (of: Record<string, unknown>) => (has(of) ? json(of[name], 200) || "''" : '');
      // Compare complete values: two long ones may have the same beginning.
      const same = has(left) === has(right) && JSON.stringify(left[name]) === JSON.stringify(right[name]);
      add(group, name, show(left), show(right), !same);
    }
  };
  values(trans.__('Parameters'), a.params, b.params);
  for (const name of union(a.metrics, b.metrics)) {
    const [left, right] = [a.metrics[name], b.metrics[name]].map(series => (series ? range(series) : null));
    const metrics = trans.__('Metrics');
    for (const [what, title] of [
      ['last', trans.__('%1, last', name)],
      ['low', trans.__('%1, lowest', name)],
      ['high', trans.__('%1, highest', name)]
    ] as const) {
      const [x, y] = [left?.[what] ?? null, right?.[what] ?? null];
      add(metrics, title, put(x, number), put(y, number), x !== y);
    }
  }
  values(trans.__('Results'), a.outputs, b.outputs);
  const gpus = trans.__('GPUs');
  const [ga, gb] = [gpuSummary(a), gpuSummary(b)];
  const percent = (value: number) => `${Math.round(value)} %`;
  add(gpus, trans.__('number'), ga.gpus ? String(ga.gpus) : '', gb.gpus ? String(gb.gpus) : '');
  add(gpus, trans.__('mean utilization'), put(ga.util, percent), put(gb.util, percent), ga.util !== gb.util);
  add(gpus, trans.__('memory peak'), put(ga.memory, bytes), put(gb.memory, bytes), ga.memory !== gb.memory);
  const wh = (value: number) => `${number(value)} Wh`;
  add(gpus, trans.__('energy'), put(ga.energy, wh), put(gb.energy, wh), ga.energy !== gb.energy);
  add(gpus, trans.__('verdict'), text(a.truth?.verdict), text(b.truth?.verdict));
  return rows;
}

/** Metric of both runs on a common axis of steps. */
export interface IOverlay {
  readonly name: string;
  readonly x: number[];
  readonly left: (number | null)[];
  readonly right: (number | null)[];
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

/** Metrics that both runs have. */
export function overlays(a: IRunRecord, b: IRunRecord): IOverlay[] {
  return Object.keys(a.metrics)
    .filter(name => b.metrics[name]?.value.length && a.metrics[name].value.length)
    .map(name => {
      const [left, right] = [a.metrics[name], b.metrics[name]];
      const x = [...new Set([...steps(left), ...steps(right)])].sort((p, q) => p - q);
      return { name, x, left: fill(x, left), right: fill(x, right) };
    });
}
