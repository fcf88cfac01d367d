/** The charts of one run, from its record: metrics, GPUs, host; each kept and updated in place. */

import { TranslationBundle } from '@jupyterlab/translation';
import { LineChart } from '../charts/line';
import { ILineData } from '../charts/model';
import { bytes, clock, number } from '../format';
import { IRunRecord } from '../protocol';
import { gpuCharts, shades } from './gpu';
import { GpuView } from './gpu_view';

/** Where charts of each kind stand. */
const KINDS = ['metric', 'gpu', 'host'];

/** Logged without steps, all are at 0: then their order is what is known. */
const steps = (all: readonly number[]): readonly number[] =>
  all.every(step => step === all[0]) ? all.map((_, i) => (all.length > 1 ? i : all[0])) : all;

/** The charts of one run. */
export class RunCharts {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('div');
    this._grid = document.createElement('div');
    this._grid.className = 'jp-AmlRun-charts';
    this._more = document.createElement('div');
    this._more.className = 'jp-AmlRun-gpuSource';
    this._gpu = new GpuView(_trans);
    this.node.append(this._gpu.legend, this._grid, this._more, this._gpu.node);
  }

  readonly node: HTMLElement;

  update(record: IRunRecord): void {
    const wanted = new Map<string, ILineData>();
    for (const [name, series] of Object.entries(record.metrics)) {
      if (series.value.length) {
        wanted.set(`metric ${name}`, {
          title: name,
          last: number(series.last),
          x: steps(series.step),
          series: [{ name, y: series.value }],
          xKind: 'integer',
          yKind: 'number',
          xFormat: String,
          yFormat: number,
          xName: this._trans.__('step'),
          fromZero: false
        });
      }
    }
    gpuCharts(record, this._trans).forEach((data, key) => wanted.set(key, data));
    this._host(record, wanted);
    for (const [key, chart] of this._charts) {
      if (!wanted.has(key)) {
        chart.dispose();
        this._charts.delete(key);
      }
    }
    for (const [key, data] of wanted) {
      let chart = this._charts.get(key);
      if (!chart) {
        this._charts.set(key, (chart = new LineChart()));
        chart.node.dataset.series = key;
        this._grid.insertBefore(chart.node, this._after(key));
      }
      chart.update(data);
    }
    this._gpu.update(record);
    const hidden = record.metrics_hidden;
    this._more.textContent = hidden ? this._trans.__('+%1 more metrics in MLflow', hidden) : '';
    this._more.hidden = !hidden;
    this._grid.hidden = !wanted.size;
    this.node.hidden = !wanted.size && this._gpu.legend.hidden && !hidden;
  }

  dispose(): void {
    this._charts.forEach(chart => chart.dispose());
    this._charts.clear();
    this._gpu.dispose();
  }

  /** The first chart of a later kind: one that starts late stands where it would have from the beginning. */
  private _after(key: string): Element | null {
    const kind = KINDS.indexOf(key.split(' ')[0]);
    const later = KINDS.slice(kind + 1).map(name => `[data-series^="${name} "]`);
    return later.length ? this._grid.querySelector(later.join(', ')) : null;
  }

  private _host(record: IRunRecord, wanted: Map<string, ILineData>): void {
    const { t, cpu, memory, cpus, memory_total } = record.telemetry;
    // A monitor has no processes: its charts would be empty.
    if (!t.length || (record.kind === 'monitor' && ![...cpu, ...memory].some(value => value !== null))) {
      return;
    }
    const last = (values: readonly (number | null)[]) => values[values.length - 1] ?? null;
    const time = {
      x: t.map(at => at - t[0]),
      xKind: 'time' as const,
      xFormat: clock,
      xName: this._trans.__('at'),
      fromZero: true,
      shades: shades(record, t[0])
    };
    const percent = (value: number) => `${Math.round(value)} %`;
    const of = (now: string, all: string | number | null) => (all ? this._trans.__('%1 of %2', now, all) : now);
    const use = last(cpu);
    const cpuTitle = this._trans.__('CPU');
    wanted.set('host cpu', {
      ...time,
      title: cpuTitle,
      last: of(use === null ? '–' : percent(use), cpus && percent(100 * cpus)),
      series: [{ name: cpuTitle, y: cpu }],
      yKind: 'number',
      yFormat: percent
    });
    const held = last(memory);
    const memoryTitle = this._trans.__('Memory');
    wanted.set('host memory', {
      ...time,
      title: memoryTitle,
      last: of(held === null ? '–' : bytes(held), memory_total && bytes(memory_total)),
      series: [{ name: memoryTitle, y: memory }],
      yKind: 'bytes',
      yFormat: value => bytes(value).replace(/\.0+ /, ' ')
    });
  }

  private readonly _grid: HTMLElement;
  private readonly _more: HTMLElement;
  private readonly _gpu: GpuView;
  private readonly _charts = new Map<string, LineChart>();
}
