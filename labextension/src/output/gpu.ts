/** Charts of the GPUs in a record. Pure functions: what to draw, not how. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ILevel, ILineData, ISeries, IShade } from '../charts/model';
import { bytes, clock } from '../format';
import { IGpuBand, IGpuSeries, IGpuTelemetry, IRunRecord } from '../protocol';
import { TERMINAL } from '../record';

/** Dashed lines of sizes and limits in one chart. */
const LEVELS = 4;

type Field = 'util' | 'memory' | 'power';

/** `GPU 3`, or `GPU 0 MIG 1`: what the kernel calls it. Records of earlier versions have a number only. */
export function gpuName(index: number, label = ''): string {
  return label || (index < 100 ? `GPU ${index}` : `GPU ${Math.floor(index / 100) - 1} MIG ${index % 100}`);
}

/** `GPU 3`, or `n1 GPU 3` where there are several nodes. */
export function gpuLabel(part: IGpuTelemetry, node: number, index: number): string {
  const several = part.nodes.length > 1 || part.gpus.some(gpu => gpu.node !== part.gpus[0].node);
  const name = gpuName(index, part.gpus.find(gpu => gpu.node === node && gpu.index === index)?.label);
  return several ? `n${node} ${name}` : name;
}

/** `2 × NVIDIA A100, 3 × NVIDIA A100 MIG 1g.10gb`: GPUs and instances counted apart. */
export function gpuCounts(gpus: readonly IGpuSeries[], trans: TranslationBundle): string {
  const counts = new Map<string, number>();
  for (const gpu of gpus) {
    const name = gpu.name || trans.__('GPU');
    const kind = gpuName(gpu.index, gpu.label).includes(' MIG ') && !name.includes(' MIG') ? `${name} MIG` : name;
    counts.set(kind, (counts.get(kind) ?? 0) + 1);
  }
  return [...counts].map(([name, count]) => `${count} × ${name}`).join(', ');
}

/** Phases other than *running*, in seconds since `start`. */
export function shades(record: IRunRecord, start: number): IShade[] {
  return record.phases
    .filter(phase => phase.name !== 'running' && !TERMINAL.has(phase.name as IRunRecord['state']))
    .map(({ name, start: from, end, seconds }) => {
      const to = end ?? (seconds !== null ? from + seconds : record.seen_at);
      return { name, from: from - start, to: to - start };
    })
    .filter(shade => shade.to - shade.from > 0.2);
}

const lastOf = (values: readonly (number | null)[]): number | null => {
  for (let i = values.length - 1; i >= 0 && i >= values.length - 3; i--) {
    if (values[i] !== null) {
      return values[i];
    }
  }
  return null;
};

/** `at most` of one or many GPUs now; `n/a` where none of them can tell. */
function now(trans: TranslationBundle, values: (number | null)[], format: (value: number) => string): string {
  const known = values.filter((value): value is number => value !== null);
  if (!known.length) {
    return trans.__('n/a');
  }
  const [low, high] = [format(Math.min(...known)), format(Math.max(...known))];
  return low === high ? high : trans.__('%1 to %2', low, high);
}

export function gpuCharts(record: IRunRecord, trans: TranslationBundle): Map<string, ILineData> {
  const found = new Map<string, ILineData>();
  const part = record.gpu;
  if (!part || !part.t.length || !part.gpus.length) {
    return found;
  }
  const start = part.t[0];
  const common = {
    x: part.t.map(t => t - start),
    xKind: 'time' as const,
    xFormat: clock,
    xName: trans.__('at'),
    fromZero: true,
    shades: shades(record, start)
  };
  const percent = (value: number) => `${Math.round(value)} %`;
  const watts = (value: number) => `${Math.round(value)} W`;
  const size = (value: number) => bytes(value).replace(/\.0+ /, ' ');
  const add = (
    field: Field,
    title: string,
    yKind: 'number' | 'bytes',
    yFormat: (value: number) => string,
    more: Partial<ILineData>
  ) => {
    const band: IGpuBand | null = part[field];
    const own = part.gpus.filter(gpu => gpu[field].length);
    const series = band ? [{ name: trans.__('mean'), y: band.mean, colour: 0 }] : lines(part, own, field, trans);
    if (!band && !series.some(({ y }) => y.some(value => value !== null))) {
      // Nothing was ever told of it: an empty chart would look like zero.
      return;
    }
    const last = band
      ? now(trans, [lastOf(band.low), lastOf(band.high)], yFormat)
      : now(
          trans,
          own.map(gpu => lastOf(gpu[field])),
          yFormat
        );
    found.set(`gpu ${field}`, { ...common, title, last, yKind, yFormat, series, band, ...more });
  };
  // GPUs may have different sizes and limits: a line for each.
  const levels = (name: string, values: (number | null)[]): ILevel[] =>
    [...new Set(values.filter((value): value is number => value !== null && value > 0))]
      .sort((a, b) => a - b)
      .slice(-LEVELS)
      .map(value => ({ name, value }));
  const totals = part.gpus.map(gpu => gpu.memory_total);
  const limits = part.gpus.map(gpu => gpu.power_limit);
  const activity = part.gpus.some(gpu => gpu.sm_activity.some(value => value !== null));
  const util = activity ? trans.__('GPU utilization, dashed: SM activity') : trans.__('GPU utilization');
  add('util', util, 'number', percent, { yMax: 100 });
  add('memory', trans.__('GPU memory'), 'bytes', size, { levels: levels(trans.__('size'), totals) });
  add('power', trans.__('GPU power'), 'number', watts, { levels: levels(trans.__('limit'), limits) });
  return found;
}

function lines(
  part: IGpuTelemetry,
  gpus: readonly IGpuSeries[],
  field: Field,
  trans: TranslationBundle
): ISeries[] {
  return gpus.flatMap(gpu => {
    const colour = part.gpus.indexOf(gpu);
    const name = gpuLabel(part, gpu.node, gpu.index);
    const line: ISeries = { name, y: gpu[field], colour };
    // Between two points the device may have been busier than their mean says.
    const peaks = field === 'util' && gpu.peak.some((value, i) => value !== gpu.util[i]);
    const found: ISeries[] = peaks ? [{ name: trans.__('%1 peak', name), y: gpu.peak, colour, faint: true }, line] : [line];
    if (field === 'util' && gpu.sm_activity.some(value => value !== null)) {
      found.push({ name: trans.__('%1 SM activity', name), y: gpu.sm_activity, colour, dashed: true });
    }
    return found;
  });
}
