/** The charts of one run: its metrics and the host, each kept and updated in place. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ILineData, LineChart } from '../charts/line';
import { bytes, clock, number } from '../format';
import { IRunRecord } from '../protocol';

export class RunCharts {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('div');
    this.node.className = 'jp-AmlRun-charts';
  }

  readonly node: HTMLElement;

  update(record: IRunRecord): void {
    const wanted = new Map<string, ILineData>();
    for (const [name, series] of Object.entries(record.metrics)) {
      if (series.value.length) {
        wanted.set(`metric ${name}`, {
          title: name,
          last: number(series.last),
          x: series.step,
          y: series.value,
          xKind: 'integer',
          yKind: 'number',
          xFormat: String,
          yFormat: number,
          xName: this._trans.__('step'),
          fromZero: false
        });
      }
    }
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
        // A metric that starts late goes before the host's charts, as on the first drawing.
        const host = key.startsWith('metric ') ? this.node.querySelector('[data-series^="host "]') : null;
        this.node.insertBefore(chart.node, host);
      }
      chart.update(data);
    }
    this.node.hidden = !wanted.size;
  }

  dispose(): void {
    this._charts.forEach(chart => chart.dispose());
    this._charts.clear();
  }

  private _host(record: IRunRecord, wanted: Map<string, ILineData>): void {
    const { t, cpu, memory, cpus, memory_total } = record.telemetry;
    if (!t.length) {
      return;
    }
    const x = t.map(at => at - t[0]);
    const last = (values: readonly (number | null)[]) => values[values.length - 1] ?? null;
    const time = { x, xKind: 'time' as const, xFormat: clock, xName: this._trans.__('at'), fromZero: true };
    const percent = (value: number) => `${Math.round(value)} %`;
    const of = (now: string, all: string | number | null) => (all ? this._trans.__('%1 of %2', now, all) : now);
    const use = last(cpu);
    wanted.set('host cpu', {
      ...time,
      title: this._trans.__('CPU'),
      last: of(use === null ? '–' : percent(use), cpus && percent(100 * cpus)),
      y: cpu,
      yKind: 'number',
      yFormat: percent
    });
    const held = last(memory);
    wanted.set('host memory', {
      ...time,
      title: this._trans.__('Memory'),
      last: of(held === null ? '–' : bytes(held), memory_total && bytes(memory_total)),
      y: memory,
      yKind: 'bytes',
      yFormat: value => bytes(value).replace(/\.0+ /, ' ')
    });
  }

  private readonly _charts = new Map<string, LineChart>();
}
