/** The charts of one run, from its record alone: metrics, GPUs with heat map and processes, host. */

import { TranslationBundle } from '@jupyterlab/translation';
import { IBand, IChartSize, ILineData, ISeries, LineChart } from '../charts/chart';
import { HeatMap, timed } from '../charts/heat';
import { choiceOf, drawn, MetricBar, MetricChoice } from '../charts/metricChoice';
import { extent, metricAxis, timeAxis } from '../charts/scale';
import { drawTiles } from '../charts/values';
import { ago, amount, clock, number } from '../format';
import { IChart, IChartMark, IChartSet, IRunRecord } from '../protocol';
import { heatCells } from '../record';
import { oldCharts } from './oldCharts';

function element(tag: string, name: string, text = ''): HTMLElement {
  const node = document.createElement(tag);
  node.className = `jp-AmlRun-${name}`;
  node.textContent = text;
  return node;
}

/** A table of a record; empty if it has none. */
export function drawTable(record: IRunRecord, key: string, trans: TranslationBundle): HTMLElement[] {
  const table = record.tables.find(one => one.key === key);
  if (!table) {
    return [];
  }
  const isTitled = table.columns.some(({ title }) => title);
  const line = (tag: 'th' | 'td', texts: readonly string[]): HTMLElement => {
    const row = document.createElement('tr');
    texts.forEach((text, i) => {
      // Without titles of columns each row begins with its own.
      const cell = document.createElement(isTitled || i ? tag : 'th');
      cell.classList.toggle('jp-mod-number', table.columns[i]?.number === true);
      cell.textContent = text;
      if (cell.tagName === 'TH') {
        cell.scope = isTitled ? 'col' : 'row';
        cell.title = table.columns[i].help;
      }
      row.append(cell);
    });
    return row;
  };
  const node = element('table', 'table');
  const head = isTitled ? [line('th', table.columns.map(({ title }) => title))] : [];
  node.append(...head, ...table.rows.map(row => line('td', row)));
  return [node, ...(table.more ? [element('div', 'gpuSource', trans.__('and %1 more', table.more))] : [])];
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
    const { gpus, gpus_text: text } = record.charts;
    const key = JSON.stringify([gpus, text, part.note, part.source, part.age]);
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
    const { gpus, gpus_text: text } = record.charts;
    gpus.forEach(({ label, help }, i) => {
      const chip = element('span', 'gpuChip');
      const key = element('i', 'hoverKey');
      key.dataset.color = String(i);
      chip.append(key, label);
      chip.title = help;
      nodes.push(chip);
    });
    const words = text ? [text] : [];
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
      rows: part.gpus.map(({ node, index, label }) => ({ node, label: (part.nodes.length > 1 ? `n${node} ` : '') + (label || `GPU ${index}`) })),
      cells: heatCells(map),
      columns: map.columns,
      ...timed(0, t[t.length - 1] - t[0], map.columns)
    });
  }

  private _processes(record: IRunRecord): void {
    const key = JSON.stringify(record.tables.find(table => table.key === 'gpu processes') ?? null);
    if (this._table.dataset.key !== key) {
      this._table.dataset.key = key;
      const nodes = drawTable(record, 'gpu processes', this._trans);
      this._table.hidden = !nodes.length;
      this._table.replaceChildren(...nodes);
    }
  }

  private readonly _table: HTMLElement;
  private _heat: HeatMap | null = null;
  private _cells = '';
  private _key = '';
}

/** Margins of low charts, those of the host of a run without GPU. */
const STRIP_CLASS = 'jp-AmlRun-strip';
const STRIP: IChartSize = { height: 56, left: 50, right: 10, top: 6, bottom: 16 };

/** What a path of a chart leads to. */
const valuesAt = (record: IRunRecord, path: readonly (string | number)[]): any => path.reduce((part: any, name) => part?.[name], record) ?? [];

/** Places marks of a record on an axis of seconds. */
const at = (start: number) => (mark: IChartMark) => ({ x: mark.time - start, label: mark.label });

/** A chart with its data, which are in the record. */
export function lineData(record: IRunRecord, chart: IChart, { start, time, phases, marks }: IChartSet, trans: TranslationBundle): ILineData {
  const series: ISeries[] = chart.series.map(({ data, label, color, style }) => {
    return { name: label, y: valuesAt(record, data), color, faint: style === 'faint', dashed: style === 'dashed' };
  });
  const common = {
    title: [chart.title, chart.note].filter(Boolean).join(', '),
    last: chart.value,
    series,
    band: chart.band.length ? (valuesAt(record, chart.band) as IBand) : null,
    levels: chart.levels,
    yAxis: chart.y,
    yFormat: (value: number) => amount(value, chart.unit)
  };
  if (!chart.steps) {
    const x = (valuesAt(record, chart.x) as number[]).map(t => t - start);
    return { ...common, x, xAxis: time ?? timeAxis(0, 1), xFormat: clock, xName: trans.__('at'), shades: phases, marks: marks.map(at(start)), origin: start };
  }
  const { y } = series[0];
  const x = chart.x.length ? (valuesAt(record, chart.x) as number[]) : Array.from(y, (_, i) => i);
  const gaps = Array.from(y, (value, i) => (value === null ? i : -1)).filter(i => i >= 0);
  const placed = chart.x.length ? marks.flatMap(({ step, label }) => (step === null ? [] : [{ x: step, label }])) : [];
  return { ...common, x, gaps, marks: placed, xAxis: chart.steps, xFormat: String, xName: trans.__('step') };
}

/** The chart of a metric as a person has chosen it: by time, smoothed, on a logarithmic axis. */
function chosen(data: ILineData, record: IRunRecord, seconds: readonly number[], choice: MetricChoice, trans: TranslationBundle): ILineData {
  const [{ name, y: values }] = data.series;
  let result = data;
  if (choice.byTime && seconds.length === values.length) {
    const [from, to] = extent(seconds) ?? [0, 0];
    const origin = record.created;
    const marks = record.charts.marks.map(at(origin));
    result = { ...result, x: seconds, marks, xAxis: timeAxis(from, Math.max(to, from + 1)), xFormat: clock, xName: trans.__('at'), origin };
  }
  if (choice.log || choice.smoothing) {
    const raw = drawn(values, { smoothing: 0, log: choice.log });
    const range = extent(raw);
    result = {
      ...result,
      series: [...(choice.smoothing ? [{ name: '', y: raw, faint: true }] : []), { name, y: drawn(values, choice) }],
      yAxis: range && metricAxis(...range, choice.log),
      yFormat: choice.log ? value => number(10 ** value) : number
    };
  }
  return result;
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
    const set = record.charts.charts.length ? record.charts : oldCharts(record);
    const requested = new Map(this._shown(record, set.charts).map(chart => [chart.key, chart]));
    for (const [key, chart] of this._charts) {
      if (!requested.has(key)) {
        chart.dispose();
        this._charts.delete(key);
      }
    }
    for (const [key, wanted] of requested) {
      let chart = this._charts.get(key);
      if (!chart) {
        const isStrip = wanted.height === STRIP.height;
        this._charts.set(key, (chart = new LineChart(this._trans, isStrip ? STRIP : undefined)));
        chart.node.dataset.series = key;
        chart.node.classList.toggle(STRIP_CLASS, isStrip);
        this._grid.insertBefore(chart.node, this._after(key, [...requested.keys()]));
      }
      const data = lineData(record, wanted, set, this._trans);
      const metric = record.metrics[String(wanted.series[0]?.data[1])];
      chart.update(wanted.steps && this._choice ? chosen(data, record, metric?.seconds ?? [], this._choice, this._trans) : data);
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

  /** The charts of the chosen metrics, which are tiles where they have one value, and the others. */
  private _shown(record: IRunRecord, charts: readonly IChart[]): IChart[] {
    const choice = this._choose(record);
    const count = ({ series: [{ data }] }: IChart): number => valuesAt(record, data).length;
    const metrics = charts.filter(({ steps }) => steps);
    const lines = metrics.filter(chart => count(chart) > 1).map(({ key }) => key.slice('metric '.length));
    drawTiles(this._tiles, metrics.filter(chart => count(chart) === 1).map(({ title, value }) => [title, value]));
    this._bar?.update(lines, lines.length > 0);
    const shown = new Set(choice.shown(lines).map(name => `metric ${name}`));
    return charts.filter(({ key, steps }) => !steps || shown.has(key));
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

  /** The first drawn chart behind one: a chart that starts late stands where it would have from the beginning. */
  private _after(key: string, keys: readonly string[]): Element | null {
    const later = keys.slice(keys.indexOf(key) + 1).find(other => this._charts.has(other));
    return (later !== undefined && this._charts.get(later)?.node) || null;
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
