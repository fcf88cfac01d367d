/** Charts of a record of an earlier version, which has series only. */

import { number } from '../format';
import { extent, metricAxis, roundAxis, stepAxis, timeAxis } from '../charts/scale';
import { complete } from '../untyped';
import type { IChart, IChartSet, IRunRecord } from '../protocol';

/** Titles and units of the series that such a record can have. */
const SERIES: Readonly<Record<string, readonly [title: string, unit: string]>> = {
  util: ['GPU utilization', '%'],
  memory: ['GPU memory', 'bytes'],
  power: ['GPU power', 'W']
};

/** Plain charts of all series, for readers without a kernel: one that answers sends a record with its charts. */
export function oldCharts(record: IRunRecord): IChartSet {
  const { gpu, telemetry } = record;
  const charts = Object.entries(record.metrics).filter(([, { value }]) => value.length).map(([name, { step, value, last }]) => {
    const [x, y] = [extent(step), extent(value)];
    return {
      key: `metric ${name}`,
      title: name,
      value: number(last),
      x: ['metrics', name, 'step'],
      steps: stepAxis(x?.[0] ?? 0, x?.[1] ?? 0),
      y: y && metricAxis(...y),
      series: [{ data: ['metrics', name, 'value'], label: name }]
    } as unknown;
  });
  const add = (key: string, [title, unit]: readonly [string, string], source: 'gpu' | 'telemetry', more: object, rows: readonly (number | null)[][]) => {
    const range = extent(rows.flat());
    if (range) {
      charts.push({ key, title, unit, x: [source, 't'], y: roundAxis(range[1], unit), ...more });
    }
  };
  for (const field of ['util', 'memory', 'power'] as const) {
    const band = gpu?.[field];
    const lines = (gpu?.gpus ?? []).map(({ index, label }, k) => ({ data: ['gpu', 'gpus', k, field], label: label || `GPU ${index}`, color: k }));
    const series = band ? [{ data: ['gpu', field, 'mean'], label: 'mean' }] : lines;
    add(`gpu ${field}`, SERIES[field], 'gpu', { series, band: band ? ['gpu', field] : [] }, band ? [band.high] : (gpu?.gpus ?? []).map(one => one[field]));
  }
  for (const [name, title, unit] of [['cpu', 'CPU', '%'], ['memory', 'Memory', 'bytes']] as const) {
    const series = [{ data: ['telemetry', name], label: title, color: 2 }];
    add(`host ${name}`, [title, unit], 'telemetry', { series, ...(gpu?.gpus.length ? {} : { height: 56 }) }, [telemetry[name]]);
  }
  const times = extent([...telemetry.t, ...(gpu?.t ?? [])]);
  return {
    charts: charts.map(chart => complete<IChart>('IChart', chart)),
    gpus: gpu?.util ? [] : (gpu?.gpus ?? []).map(({ index, label, name }) => ({ label: label || `GPU ${index}`, help: name })),
    gpus_text: '',
    start: times?.[0] ?? 0,
    time: times && timeAxis(0, Math.max(1, times[1] - times[0])),
    phases: [],
    marks: []
  };
}
