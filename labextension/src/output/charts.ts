/** The charts of one run, from its record alone: metrics, GPUs with heat map and processes, host. */

import { TranslationBundle } from '@jupyterlab/translation';
import { IChartSize, ILevel, ILineData, ISeries, IShade, LineChart } from '../charts/chart';
import { HeatMap, timed } from '../charts/heat';
import { choiceOf, drawn, MetricBar, MetricChoice } from '../charts/metricChoice';
import { extent, metricAxis } from '../charts/scale';
import { drawTiles, valueText } from '../charts/values';
import { ago, bytes, clock, number, percent } from '../format';
import { GPU_COLUMNS, IGpuColumn } from '../gpuColumns';
import { IGpuBand, IGpuProcess, IGpuSeries, IGpuTelemetry, IMetricSeries, IRunRecord } from '../protocol';
import { gpuName, heatCells, heatRow, TERMINAL } from '../record';

/** Dashed lines of sizes and limits in one chart. */
const MAX_LEVELS = 4;

type Field = 'util' | 'memory' | 'power';

/** `16 GiB` on an axis, where `bytes` says `16.0 GiB`. */
const size = (value: number): string => bytes(value).replace(/\.0+ /, ' ');

/** Return the formatter of a column's values. A record has memory in bytes. */
function formatOf({ unit }: IGpuColumn): (value: number) => string {
  return unit === 'MiB' ? size : unit === '%' ? percent : value => `${Math.round(value)} ${unit}`;
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
  const result = new Map<string, ILineData>();
  const part = record.gpu;
  if (!part || !part.t.length || !part.gpus.length) {
    return result;
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
  const add = (
    field: Field,
    more: Partial<ILineData>
  ) => {
    const column = GPU_COLUMNS.find(({ name }) => name === field)!;
    const yKind = column.unit === 'MiB' ? ('bytes' as const) : ('number' as const);
    const yFormat = formatOf(column);
    const title = trans.__(column.label);
    const yMax = column.range[1] ?? undefined;
    const band: IGpuBand | null = part[field];
    const own = part.gpus.filter(gpu => gpu[field].length);
    const series = band ? [{ name: trans.__('mean'), y: band.mean, color: 0 }] : lines(part, own, field, trans);
    if (!band && !series.some(({ y }) => extent(y))) {
      // Never sampled: an empty chart would look like zero.
      return;
    }
    const last = band
      ? now(trans, [lastOf(band.low), lastOf(band.high)], yFormat)
      : now(
          trans,
          own.map(gpu => lastOf(gpu[field])),
          yFormat
        );
    result.set(`gpu ${field}`, { ...common, title, last, yKind, yFormat, yMax, series, band, ...more });
  };
  // GPUs may have different sizes and limits: a line for each.
  const levels = (name: string, values: (number | null)[]): ILevel[] =>
    [...new Set(values.filter((value): value is number => value !== null && value > 0))]
      .sort((a, b) => a - b)
      .slice(-MAX_LEVELS)
      .map(value => ({ name, value }));
  const totals = part.gpus.map(gpu => gpu.memory_total);
  const limits = part.gpus.map(gpu => gpu.power_limit);
  const activity = part.gpus.some(gpu => gpu.sm_activity.some(value => value !== null));
  add('util', activity ? { title: trans.__('GPU utilization, dashed: SM activity') } : {});
  add('memory', { levels: levels(trans.__('size'), totals) });
  add('power', { levels: levels(trans.__('limit'), limits) });
  return result;
}

function lines(
  part: IGpuTelemetry,
  gpus: readonly IGpuSeries[],
  field: Field,
  trans: TranslationBundle
): ISeries[] {
  return gpus.flatMap(gpu => {
    const color = part.gpus.indexOf(gpu);
    const name = gpuLabel(part, gpu.node, gpu.index);
    const line: ISeries = { name, y: gpu[field], color };
    // Between two points the device may have been busier than their mean says.
    const peaks = field === 'util' && gpu.peak.some((value, i) => value !== gpu.util[i]);
    const result: ISeries[] = peaks ? [{ name: trans.__('%1 peak', name), y: gpu.peak, color, faint: true }, line] : [line];
    if (field === 'util' && gpu.sm_activity.some(value => value !== null)) {
      result.push({ name: trans.__('%1 SM activity', name), y: gpu.sm_activity, color, dashed: true });
    }
    return result;
  });
}

/** Rows of the list of processes. */
const MAX_PROCESSES = 20;
/** More GPUs than this have no line, so no color, of their own. */
const MAX_CHIPS = 8;

function element(tag: string, name: string, text = ''): HTMLElement {
  const node = document.createElement(tag);
  node.className = `jp-AmlRun-${name}`;
  node.textContent = text;
  return node;
}

/** Title of a column, text of an item in it, and whether it is set flush right. */
export type Column<T> = [title: string, text: (item: T) => string, number?: boolean];

/** A table with a row for each item. */
export function table<T>(columns: readonly Column<T>[], items: readonly T[]): HTMLElement {
  const line = (tag: 'th' | 'td', texts: readonly string[]): HTMLElement => {
    const row = document.createElement('tr');
    texts.forEach((text, i) => {
      const cell = document.createElement(tag);
      cell.classList.toggle('jp-mod-number', columns[i][2] === true);
      cell.textContent = text;
      if (tag === 'th') {
        cell.scope = 'col';
      }
      row.append(cell);
    });
    return row;
  };
  const result = element('table', 'table');
  const titles = columns.map(([title]) => title);
  result.append(line('th', titles), ...items.map(item => line('td', columns.map(([, text]) => text(item)))));
  return result;
}

/** What a record says of its GPUs beside the charts: which they are, their processes, the heat map. */
class GpuView {
  constructor(private readonly _trans: TranslationBundle) {
    this.legend = element('div', 'gpuLegend');
    this.node = element('div', 'gpu');
    this._table = element('div', 'gpuProcesses');
    this.node.append(this._table);
  }

  /** Which GPUs, and where the samples come from: above the charts. */
  readonly legend: HTMLElement;

  /** Heat map and processes: below the charts. */
  readonly node: HTMLElement;

  update(record: IRunRecord): void {
    const part = record.gpu;
    this.legend.hidden = !part || (!part.gpus.length && !part.note);
    this.node.hidden = !part || !part.gpus.length;
    if (!part) {
      return;
    }
    const key = JSON.stringify([part.gpus.map(g => [g.node, g.index, g.name]), part.note, part.source, part.age]);
    if (this._key !== key) {
      this._key = key;
      this.legend.replaceChildren(...this._legend(record));
    }
    this._heatMap(record);
    this._processes(record);
  }

  dispose(): void {
    this._heat?.dispose();
  }

  private _legend(record: IRunRecord): HTMLElement[] {
    const part = record.gpu;
    const nodes: HTMLElement[] = [];
    if (!part) {
      return nodes;
    }
    if (part.gpus.length && part.gpus.length <= MAX_CHIPS) {
      part.gpus.forEach((gpu, i) => {
        const chip = element('span', 'gpuChip');
        const key = element('i', 'hoverKey');
        key.dataset.color = String(i);
        const label = gpuLabel(part, gpu.node, gpu.index);
        chip.append(key, gpu.lost ? this._trans.__('%1 lost', label) : label);
        chip.title = [gpu.name, gpu.uuid].filter(Boolean).join(', ');
        nodes.push(chip);
      });
    }
    const words: string[] = [];
    if (part.gpus.length) {
      words.push(gpuCounts(part.gpus, this._trans));
      if (part.gpus.length > MAX_CHIPS) {
        words.push(this._trans.__('mean, and the range from lowest to highest'));
      }
    }
    if (part.note) {
      words.push(part.note);
    }
    if (part.source) {
      words.push(part.source);
    }
    if (part.age !== null && !record.done) {
      words.push(this._trans.__('last sample %1 before this output was saved', ago(part.age)));
    }
    nodes.push(element('span', 'gpuSource', words.join(' · ')));
    return nodes;
  }

  private _heatMap(record: IRunRecord): void {
    const part = record.gpu;
    const map = part?.heat;
    if (!part || !map || part.t.length < 2) {
      this._heat?.dispose();
      this._heat = null;
      this._cells = '';
      return;
    }
    if (this._cells === map.cells) {
      return;
    }
    this._cells = map.cells;
    if (!this._heat) {
      this._heat = new HeatMap(this._trans);
      this.node.prepend(this._heat.node);
    }
    const { t } = part;
    this._heat.update({
      title: this._trans.__('Utilization by GPU'),
      last: '',
      rows: map.labels.map(heatRow).map(({ node, index }) => ({ node, label: gpuLabel(part, node, index) })),
      cells: heatCells(map),
      columns: map.columns,
      ...timed(0, t[t.length - 1] - t[0], map.columns)
    });
  }

  private _processes(record: IRunRecord): void {
    const all = record.gpu?.processes ?? [];
    const key = JSON.stringify(all);
    if (this._table.dataset.key === key) {
      return;
    }
    this._table.dataset.key = key;
    this._table.hidden = !all.length;
    this._table.replaceChildren();
    if (!all.length) {
      return;
    }
    const trans = this._trans;
    const owners: Record<string, string> = { mine: trans.__('this run'), other: trans.__('others') };
    const columns: Column<IGpuProcess>[] = [
      [trans.__('GPU'), ({ node, index }) => (record.gpu ? gpuLabel(record.gpu, node, index) : '')],
      [trans.__('pid'), ({ pid }) => String(pid), true],
      [trans.__('user'), ({ user }) => user || trans.__('n/a')],
      [trans.__('command'), ({ name }) => name || trans.__('n/a')],
      [trans.__('whose'), ({ owner }) => owners[owner] ?? trans.__('cannot tell')],
      [trans.__('SM'), ({ sm }) => (sm === null ? trans.__('n/a') : percent(sm)), true],
      [trans.__('GPU memory'), ({ memory }) => (memory === null ? trans.__('n/a') : bytes(memory)), true]
    ];
    this._table.append(table(columns, all.slice(0, MAX_PROCESSES)));
    if (all.length > MAX_PROCESSES) {
      this._table.append(element('div', 'gpuSource', trans.__('and %1 more', all.length - MAX_PROCESSES)));
    }
  }

  private readonly _table: HTMLElement;
  private _heat: HeatMap | null = null;
  private _cells = '';
  private _key = '';
}

/** Where charts of each kind stand. */
const KINDS = ['metric', 'gpu', 'host'];

/** Height and margins of the charts of a run without GPU: one low strip. */
const STRIP_CLASS = 'jp-AmlRun-strip';
const STRIP: IChartSize = { height: 56, left: 50, right: 10, top: 6, bottom: 16 };

/** Points logged without steps all have step 0: use their order instead. */
const steps = (all: readonly number[]): readonly number[] =>
  all.every(step => step === all[0]) ? all.map((_, i) => (all.length > 1 ? i : all[0])) : all;

/** Data of a metric's chart. */
function metricData(name: string, series: IMetricSeries, choice: MetricChoice, trans: TranslationBundle): ILineData {
  const seconds = series.seconds ?? [];
  const byTime = choice.byTime && seconds.length === series.value.length;
  const y = drawn(series.value, choice);
  const raw = choice.smoothing ? drawn(series.value, { smoothing: 0, log: choice.log }) : null;
  const missing = series.value.filter(value => value === null).length;
  const known = extent(raw ?? y);
  const axis = known && metricAxis(known[0], known[1], choice.log);
  return {
    title: missing ? trans.__('%1 (%2 not finite)', name, missing) : name,
    last: number(series.last),
    x: byTime ? seconds : steps(series.step),
    series: raw ? [{ name: '', y: raw, faint: true }, { name, y }] : [{ name, y }],
    gaps: series.value.map((value, i) => (value === null ? i : -1)).filter(i => i >= 0),
    xKind: byTime ? 'time' : 'integer',
    yKind: 'number',
    xFormat: byTime ? clock : String,
    yFormat: choice.log ? value => number(10 ** value) : number,
    xName: byTime ? trans.__('at') : trans.__('step'),
    yTicks: axis ? axis.ticks.map((tick, i) => [tick, axis.labels[i]] as const) : undefined,
    fromZero: false
  };
}

/** The charts of one run, each kept and updated in place. */
export class RunCharts {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('div');
    this._tiles = element('div', 'tiles');
    this._head = element('div', 'chartsHead');
    this._grid = document.createElement('div');
    this._grid.className = 'jp-AmlRun-charts';
    this._line.className = 'jp-AmlRun-lineBreak';
    this._more = document.createElement('div');
    this._more.className = 'jp-AmlRun-gpuSource';
    this._gpu = new GpuView(_trans);
    this._head.append(this._gpu.legend);
    this.node.append(this._tiles, this._head, this._grid, this._more, this._gpu.node);
  }

  readonly node: HTMLElement;

  update(record: IRunRecord): void {
    const requested = new Map<string, ILineData>();
    this._metrics(record, requested);
    gpuCharts(record, this._trans).forEach((data, key) => requested.set(key, data));
    this._host(record, requested);
    for (const [key, chart] of this._charts) {
      if (!requested.has(key)) {
        chart.dispose();
        this._charts.delete(key);
      }
    }
    for (const [key, data] of requested) {
      let chart = this._charts.get(key);
      if (!chart) {
        const isStrip = key.startsWith('host ') && !record.gpu?.gpus.length;
        this._charts.set(key, (chart = new LineChart(this._trans, isStrip ? STRIP : undefined)));
        chart.node.dataset.series = key;
        chart.node.classList.toggle(STRIP_CLASS, isStrip);
        this._grid.insertBefore(chart.node, this._after(key));
      }
      chart.update(data);
    }
    this._breakRow();
    this._gpu.update(record);
    const hidden = record.metrics_hidden;
    this._more.textContent = hidden ? this._trans.__('+%1 more metrics in MLflow', hidden) : '';
    this._more.hidden = !hidden;
    this._grid.hidden = !requested.size;
    this._head.hidden = this._gpu.legend.hidden && (this._bar?.node.hidden ?? true);
    this.node.hidden = !requested.size && this._gpu.legend.hidden && this._tiles.hidden && !hidden;
  }

  dispose(): void {
    this._choice?.changed.disconnect(this._again, this);
    this._bar?.dispose();
    this._charts.forEach(chart => chart.dispose());
    this._charts.clear();
    this._gpu.dispose();
  }

  /** Add the charts of the chosen metrics; those with one value are tiles. */
  private _metrics(record: IRunRecord, requested: Map<string, ILineData>): void {
    const choice = this._choose(record);
    const all = Object.entries(record.metrics).filter(([, { value }]) => value.length);
    const lines = all.filter(([, { value }]) => value.length > 1).map(([name]) => name);
    drawTiles(this._tiles, all.filter(([, { value }]) => value.length === 1).map(([name, { last }]) => [name, number(last)]));
    this._bar?.update(lines, lines.length > 0);
    for (const name of choice.shown(lines)) {
      requested.set(`metric ${name}`, metricData(name, record.metrics[name], choice, this._trans));
    }
  }

  private _choose(record: IRunRecord): MetricChoice {
    const choice = choiceOf(record.handle);
    this._record = record;
    if (choice !== this._choice) {
      this._choice?.changed.disconnect(this._again, this);
      this._bar?.dispose();
      this._bar?.node.remove();
      this._choice = choice;
      choice.changed.connect(this._again, this);
      this._bar = new MetricBar(choice, this._trans);
      this._head.append(this._bar.node);
    }
    return choice;
  }

  private _again(): void {
    if (this._record && !this.node.hidden) {
      this.update(this._record);
    }
  }

  /** The low strips of the host begin a row of their own below the metrics. */
  private _breakRow(): void {
    const strip = this._grid.querySelector(`.${STRIP_CLASS}`);
    const above = strip?.previousElementSibling;
    if (strip && above && above !== this._line) {
      strip.before(this._line);
    } else if (!strip || this._grid.firstElementChild === this._line) {
      this._line.remove();
    }
  }

  /** The first chart of a later kind: one that starts late stands where it would have from the beginning. */
  private _after(key: string): Element | null {
    const kind = KINDS.indexOf(key.split(' ')[0]);
    const later = KINDS.slice(kind + 1).map(name => `[data-series^="${name} "]`);
    return later.length ? this._grid.querySelector(later.join(', ')) : null;
  }

  private _host(record: IRunRecord, requested: Map<string, ILineData>): void {
    const { t, cpu, memory, cpus, memory_total } = record.telemetry;
    // A monitor has no processes: its charts would be empty.
    if (!t.length || (record.kind === 'monitor' && ![...cpu, ...memory].some(value => value !== null))) {
      return;
    }
    const trans = this._trans;
    const time = {
      x: t.map(at => at - t[0]),
      xKind: 'time' as const,
      xFormat: clock,
      xName: this._trans.__('at'),
      fromZero: true,
      shades: shades(record, t[0])
    };
    const cpuTitle = this._trans.__('CPU');
    requested.set('host cpu', {
      ...time,
      title: cpuTitle,
      last: valueText(cpu, record.done ? 'mean' : 'last', percent, cpus && percent(100 * cpus), trans),
      series: [{ name: cpuTitle, y: cpu }],
      yKind: 'number',
      yFormat: percent
    });
    const memoryTitle = this._trans.__('Memory');
    requested.set('host memory', {
      ...time,
      title: memoryTitle,
      last: valueText(memory, record.done ? 'peak' : 'last', bytes, memory_total && bytes(memory_total), trans),
      series: [{ name: memoryTitle, y: memory }],
      yKind: 'bytes',
      yFormat: size
    });
  }

  private readonly _tiles: HTMLElement;
  private readonly _head: HTMLElement;
  private readonly _grid: HTMLElement;
  private readonly _line = document.createElement('div');
  private _choice: MetricChoice | null = null;
  private _bar: MetricBar | null = null;
  private _record: IRunRecord | null = null;
  private readonly _more: HTMLElement;
  private readonly _gpu: GpuView;
  private readonly _charts = new Map<string, LineChart>();
}
