/** GPU charts of the panel: their data from the store, and their draw schedule. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { IChartSize, ILineData, ISeries, LineChart } from '../charts/chart';
import { DrawGate } from '../charts/drawGate';
import { HeatMap, IHeatSize } from '../charts/heat';
import { DASHES } from '../charts/palette';
import { ago, bytes, percent } from '../format';
import { element, say } from './dom';
import { GpuField, GpuStore } from './gpuStore';

/** Maximum number of draws per second. */
const MAX_DRAWS_PER_S = 2;

/** Minimum number of ticks on an axis: one minute. */
const MIN_COLUMNS = 60;

/** Maximum number of GPUs with a line each. */
const MAX_LINES = 4;

const LARGE: IChartSize = { height: 79, left: 28, right: 4, top: 2, bottom: 15 };
const SMALL: IChartSize = { ...LARGE, height: 49 };
const HEAT: IHeatSize = {
  left: 28,
  right: 4,
  top: 0,
  bottom: 15,
  gap: 2,
  key: false,
  rows: [
    [8, 10],
    [20, 8],
    [40, 6],
    [96, 3],
    [256, 2]
  ]
};

/** Time of a tick relative to the last one: `now`, `12 s ago`; for an ended run `12 s before the end`. */
export function when(trans: TranslationBundle, store: GpuStore, i: number): string {
  const back = store.time(store.length - 1) - store.time(i);
  if (back < store.period / 2) {
    return store.ended ? trans.__('at the end') : trans.__('now');
  }
  return store.ended ? trans.__('%1 before the end', ago(back)) : trans.__('%1 ago', ago(back));
}

/** Number of ticks on the time axis, and how many of them are empty, at the left. */
export function columnsOf(store: GpuStore): { count: number; empty: number } {
  const count = Math.max(MIN_COLUMNS, store.length);
  return { count, empty: count - store.length };
}

/** Labels of the two ends of the time axis. */
function ends(trans: TranslationBundle, store: GpuStore): [string, string] {
  const span = ago(columnsOf(store).count * store.period);
  return store.ended ? [trans.__('%1 before', span), trans.__('end')] : [trans.__('%1 ago', span), trans.__('now')];
}

/** Common options of the time charts: x is the number of the tick. */
function timed(trans: TranslationBundle, store: GpuStore) {
  const [from, to] = [store.length - columnsOf(store).count, store.length - 1];
  const [first, last] = ends(trans, store);
  return {
    x: Float64Array.from({ length: store.length }, (_, i) => i),
    xAxis: { min: from, max: to, ticks: [from, to], labels: [first, last] },
    xFormat: (i: number) => when(trans, store, i),
    xName: ''
  };
}

/** Used and total memory of all GPUs of known size, e.g. `12 of 80 GiB`. */
function heldOf(trans: TranslationBundle, store: GpuStore): string {
  let [held, all] = [0, 0];
  for (let g = 0; g < store.count; g++) {
    // The memory of a MIG instance is part of the memory of its GPU.
    const instance = store.facts.labels[g].split(' MIG ');
    if (instance.length > 1 && store.facts.labels.includes(instance[0])) {
      continue;
    }
    const size = store.facts.memory[g];
    const share = store.value('memory', store.latest, g);
    if (typeof size !== 'number' || Number.isNaN(share)) {
      return '';
    }
    held += (share / 100) * size;
    all += size;
  }
  return all ? trans.__('%1 of %2', bytes(held), bytes(all)) : '';
}

/** Chart of the utilization or memory of all GPUs: one line each for a few, a band for many. */
export function fieldChart(trans: TranslationBundle, store: GpuStore, field: GpuField): ILineData {
  const { mean, low, high } = store.range(field, store.latest);
  const held = field === 'memory' ? heldOf(trans, store) : '';
  const range = store.count === 1 || low === high ? '' : ` (${Math.round(low)}–${percent(high)})`;
  const color = field === 'util' ? 0 : 2;
  const many = store.count > MAX_LINES;
  const lines = (): ISeries[] =>
    store.facts.labels.map((name, g) => ({
      name,
      y: store.row(field, g),
      color: store.count === 1 ? color : g,
      dash: DASHES[g]
    }));
  return {
    ...timed(trans, store),
    title: field === 'util' ? trans.__('Utilization') : trans.__('Memory'),
    last: Number.isNaN(mean) ? trans.__('n/a') : `${held || percent(mean)}${range}`,
    series: many ? [{ name: trans.__('mean'), y: store.together(`${field} mean`), color }] : lines(),
    band: many ? { low: store.together(`${field} low`), high: store.together(`${field} high`) } : null,
    yAxis: { min: 0, max: 100, ticks: [0, 50, 100], labels: ['0', '50', '100'] },
    yFormat: percent
  };
}

/** Chart of the CPU use or memory of the first host. */
function hostChart(trans: TranslationBundle, store: GpuStore, what: 'cpu' | 'memory'): ILineData {
  const cpu = what === 'cpu';
  const y = store.together(cpu ? 'cpu' : 'host');
  const format = cpu ? percent : bytes;
  const now = y[y.length - 1];
  const all = cpu ? store.facts.cpus && 100 * store.facts.cpus : store.facts.host_memory;
  // Add a margin and round up, so that the scale does not change with each tick.
  const most = y.reduce((a, b) => (b > a ? b : a), cpu ? 100 : 1);
  const gib = Math.ceil((1.05 * most) / 2 ** 30);
  const yMax = cpu ? 100 * Math.ceil(most / 100) : gib * 2 ** 30;
  return {
    ...timed(trans, store),
    title: cpu ? trans.__('Host CPU') : trans.__('Host memory'),
    last: Number.isNaN(now) ? '' : all ? trans.__('%1 of %2', format(now), format(all)) : format(now),
    series: [{ name: '', y }],
    yAxis: { min: 0, max: yMax, ticks: [0, yMax], labels: ['0', cpu ? String(yMax) : `${gib}G`] },
    yFormat: format
  };
}

/** Utilization by GPU in columns of `each` ticks, in row-major order; only columns with new ticks are computed. */
export class HeatCells {
  /** Number of the first column, counted from the first tick ever written */
  first = 0;
  columns = 0;
  cells = new Float32Array(0);

  update(store: GpuStore, each: number): void {
    const first = Math.floor((store.total - store.length) / each);
    const columns = Math.ceil(store.total / each) - first;
    const same = this._labels === store.facts.labels && this._each === each && this._total <= store.total;
    // Reuse the columns that were complete in the last update.
    const reused = same ? Math.max(0, Math.floor(this._total / each) - Math.max(first, this.first)) : 0;
    const cells = new Float32Array(columns * store.count);
    for (let g = 0; g < store.count; g++) {
      const from = g * this.columns + first - this.first;
      cells.set(reused ? this.cells.subarray(from, from + reused) : [], g * columns);
      for (let c = reused; c < columns; c++) {
        cells[g * columns + c] = store.mean('util', g, (first + c) * each, (first + c + 1) * each);
      }
    }
    Object.assign(this, { first, columns, cells });
    [this._labels, this._each, this._total] = [store.facts.labels, each, store.total];
  }

  private _labels: readonly string[] | null = null;
  private _each = 0;
  private _total = 0;
}

/** Draw utilization by GPU; where the ticks do not fit into the width, a column is the mean of several ticks. */
function drawHeat(trans: TranslationBundle, store: GpuStore, map: HeatMap, found: HeatCells): void {
  const { count, empty } = columnsOf(store);
  const room = (map.node.clientWidth - HEAT.left - HEAT.right) * (window.devicePixelRatio || 1);
  const each = Math.max(1, Math.ceil(count / Math.max(1, Math.floor(room))));
  // Columns begin at multiples of `each` ticks, because they would flicker with each new tick otherwise.
  found.update(store, each);
  const { first, columns, cells } = found;
  const oldest = store.total - store.length;
  const edge = (tick: number) => (tick - oldest + empty) / count;
  const { labels, nodes } = store.facts;
  const known = labels.map((_, g) => ({ g, now: store.value('util', store.latest, g) })).filter(({ now }) => now >= 0);
  const low = known.reduce((a, b) => (b.now < a.now ? b : a), known[0]);
  const apart = known.some(({ now }) => now !== low.now);
  const [from, to] = ends(trans, store);
  map.update({
    title: trans.__('By GPU'),
    last: apart ? trans.__('lowest %1, %2', labels[low.g], percent(low.now)) : '',
    rows: labels.map((label, g) => ({ label, short: label.replace(/^.*GPU /, '').replace(' MIG ', '.'), node: nodes[g] })),
    cells,
    columns,
    edges: [edge(first * each), edge((first + columns) * each)],
    ticks: () => [
      [0, from],
      [1, to]
    ],
    at: column => when(trans, store, Math.min(store.length - 1, Math.max(0, (first + column + 1) * each - 1 - oldest)))
  });
}

export class GpuBoard {
  /** Create the charts of `store`; `drawing` is called for each draw, even without samples. */
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _store: GpuStore,
    _styled: HTMLElement,
    private readonly _seen: () => boolean,
    private readonly _drawing: () => void
  ) {
    const line = (name: string, size: IChartSize) => {
      const chart = new LineChart(_trans, size);
      chart.node.dataset.series = name;
      return chart;
    };
    this._util = line('gpu util', LARGE);
    this._memory = line('gpu memory', LARGE);
    this._cpu = line('host cpu', SMALL);
    this._host = line('host memory', SMALL);
    this._heat = new HeatMap(_trans, HEAT);
    this._list = new GpuList(_trans);
    const host = element('div', 'jp-AmlGpus-host', '', this._cpu.node, this._host.node);
    this.node.append(this._util.node, this._heat.node, this._memory.node, this._list.node, host);
    this._gate = new DrawGate(() => this._frame(), _seen, () => MAX_DRAWS_PER_S);
  }

  readonly node = element('div', 'jp-AmlGpus-charts');

  /** Schedule a draw of new data. */
  dirty(): void {
    // Hidden charts are not drawn and schedule no draws: they are redrawn when shown.
    if (this._seen()) {
      this._gate.dirty();
    }
  }

  dispose(): void {
    this._gate.dispose();
    cancelAnimationFrame(this._request);
    [this._util, this._heat, this._memory, this._cpu, this._host].forEach(chart => chart.dispose());
  }

  private _frame(): void {
    cancelAnimationFrame(this._request);
    this._request = requestAnimationFrame(() => this._paint());
  }

  private _paint(): void {
    const { _store: store, _trans: trans } = this;
    this.node.hidden = !store.length;
    this._drawing();
    if (!store.length || !this._seen()) {
      return;
    }
    performance.mark('jp-aml-gpus');
    const show = (chart: { node: HTMLElement }, on: boolean, draw: () => void) => {
      chart.node.hidden = !on;
      if (on) {
        draw();
      }
    };
    const any = store.count > 0;
    show(this._util, any && store.has('util'), () => this._util.update(fieldChart(trans, store, 'util')));
    show(this._heat, store.count > 1 && store.has('util'), () => drawHeat(trans, store, this._heat, this._cells));
    show(this._memory, any && store.has('memory'), () => this._memory.update(fieldChart(trans, store, 'memory')));
    show(this._cpu, store.has('cpu'), () => this._cpu.update(hostChart(trans, store, 'cpu')));
    show(this._host, store.has('host'), () => this._host.update(hostChart(trans, store, 'memory')));
    this._list.update(store);
    performance.measure('jp-aml-gpus', 'jp-aml-gpus');
    performance.clearMarks('jp-aml-gpus');
    performance.clearMeasures('jp-aml-gpus');
  }

  private readonly _util: LineChart;
  private readonly _heat: HeatMap;
  private readonly _cells = new HeatCells();
  private readonly _memory: LineChart;
  private readonly _cpu: LineChart;
  private readonly _host: LineChart;
  private readonly _list: GpuList;
  private readonly _gate: DrawGate;
  private _request = 0;
}

/** Maximum number of GPUs in the list; more are shown in the heat map only. */
const MAX_LISTED = 8;

function part(parent: HTMLElement, tag: string, name: string): HTMLElement {
  const node = document.createElement(tag);
  node.className = `jp-AmlGpus-${name}`;
  parent.append(node);
  return node;
}

const NS = 'http://www.w3.org/2000/svg';

/** Legend key of a GPU: the color and dashes of its line in the charts. */
function key(gpu: number): SVGElement {
  const node = document.createElementNS(NS, 'svg');
  node.setAttribute('class', 'jp-AmlGpus-key');
  node.setAttribute('aria-hidden', 'true');
  const line = document.createElementNS(NS, 'path');
  line.setAttribute('d', 'M0 4H22');
  line.setAttribute('stroke-dasharray', DASHES[gpu] || 'none');
  line.style.stroke = `var(--jp-amlrun-c${gpu})`;
  node.append(line);
  return node;
}

class GpuList {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('ul');
    this.node.className = 'jp-AmlGpus-list';
    this.node.setAttribute('aria-label', _trans.__('GPUs'));
  }

  readonly node: HTMLElement;

  update(store: GpuStore): void {
    const count = store.count <= MAX_LISTED ? store.count : 0;
    this.node.hidden = !count;
    while (this.node.children.length > count) {
      this.node.lastElementChild?.remove();
    }
    for (let g = 0; g < count; g++) {
      this._row(store, g);
    }
  }

  private _row(store: GpuStore, g: number): void {
    let row = this.node.children[g] as HTMLElement | undefined;
    if (!row) {
      row = document.createElement('li');
      const head = part(row, 'div', 'listHead');
      if (g < MAX_LINES) {
        head.append(key(g));
      }
      part(head, 'span', 'listLabel');
      part(head, 'span', 'listName');
      const line = part(row, 'div', 'listLine');
      const bar = part(line, 'div', 'bar');
      bar.setAttribute('aria-hidden', 'true');
      part(bar, 'div', 'barFill');
      part(line, 'span', 'listUtil');
      part(line, 'span', 'listMemory');
      this.node.append(row);
    }
    const mark = row.querySelector('.jp-AmlGpus-key');
    mark?.toggleAttribute('hidden', store.count < 2 || store.count > MAX_LINES);
    const find = (name: string) => (row as HTMLElement).querySelector(`.jp-AmlGpus-${name}`) as HTMLElement;
    const na = this._trans.__('n/a');
    const i = store.latest;
    const util = i < 0 ? NaN : store.value('util', i, g);
    const share = i < 0 ? NaN : store.value('memory', i, g);
    const size = store.facts.memory[g];
    say(find('listLabel'), store.facts.labels[g]);
    say(find('listName'), store.facts.names[g] ?? '');
    find('listName').title = store.facts.names[g] ?? '';
    find('barFill').style.width = `${Number.isNaN(util) ? 0 : util}%`;
    const lost = store.lost.includes(g);
    row.classList.toggle('jp-mod-lost', lost);
    say(find('listUtil'), lost ? this._trans.__('lost') : Number.isNaN(util) ? na : percent(util));
    const held = Number.isNaN(share)
      ? na
      : typeof size === 'number'
        ? this._trans.__('%1 of %2', bytes((share / 100) * size), bytes(size))
        : this._trans.__('%1 of memory', percent(share));
    say(find('listMemory'), lost ? '' : held);
  }
}
