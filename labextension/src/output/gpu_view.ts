/** What a record says of its GPUs beside the charts: which they are, their processes, the heat map. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ago, bytes } from '../format';
import { heatCells, heatRow } from '../gpu_record';
import { IGpuProcess, IRunRecord } from '../protocol';
import { HeatStrip } from '../widgets/heat';
import { gpuCounts, gpuLabel } from './gpu';

/** Rows of the list of processes. */
const PROCESSES = 20;
/** Columns of that list which are set flush right. */
const NUMBERS = new Set([1, 5, 6]);
/** More GPUs than this have no line, so no colour, of their own. */
const LINES = 8;

function element(tag: string, name: string, text = ''): HTMLElement {
  const node = document.createElement(tag);
  node.className = `jp-AmlRun-${name}`;
  node.textContent = text;
  return node;
}

export class GpuView {
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
    if (part.gpus.length && part.gpus.length <= LINES) {
      part.gpus.forEach((gpu, i) => {
        const chip = element('span', 'gpuChip');
        const colour = element('i', 'hoverKey');
        colour.dataset.colour = String(i);
        const label = gpuLabel(part, gpu.node, gpu.index);
        chip.append(colour, gpu.lost ? this._trans.__('%1 lost', label) : label);
        chip.title = [gpu.name, gpu.uuid].filter(Boolean).join(', ');
        nodes.push(chip);
      });
    }
    const words: string[] = [];
    if (part.gpus.length) {
      words.push(gpuCounts(part.gpus, this._trans));
      if (part.gpus.length > LINES) {
        words.push(this._trans.__('mean, with the range from the least to the most'));
      }
    }
    if (part.note) {
      words.push(part.note);
    }
    if (part.source) {
      words.push(part.source);
    }
    if (part.age !== null && !record.done) {
      words.push(this._trans.__('last sample %1 before this record', ago(part.age)));
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
      this._heat = new HeatStrip(this._trans);
      this.node.prepend(this._heat.node);
    }
    const rows = map.labels.map(heatRow);
    this._heat.update({
      rows: rows.map(({ node, index }) => ({ node, label: gpuLabel(part, node, index) })),
      cells: heatCells(map),
      columns: map.columns,
      span: [part.t[0], part.t[part.t.length - 1]],
      start: part.t[0]
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
    const table = element('table', 'table');
    const head = document.createElement('tr');
    const titles = [
      trans.__('GPU'),
      trans.__('pid'),
      trans.__('user'),
      trans.__('command'),
      trans.__('whose'),
      trans.__('SM'),
      trans.__('GPU memory')
    ];
    for (const [i, title] of titles.entries()) {
      const cell = document.createElement('th');
      cell.classList.toggle('jp-mod-number', NUMBERS.has(i));
      cell.scope = 'col';
      cell.textContent = title;
      head.append(cell);
    }
    table.append(head, ...all.slice(0, PROCESSES).map(process => this._row(record, process)));
    this._table.append(table);
    if (all.length > PROCESSES) {
      this._table.append(element('div', 'gpuSource', trans.__('and %1 more', all.length - PROCESSES)));
    }
  }

  private _row(record: IRunRecord, process: IGpuProcess): HTMLElement {
    const trans = this._trans;
    const owners: Record<string, string> = { mine: trans.__('this run'), other: trans.__('others') };
    const where = record.gpu ? gpuLabel(record.gpu, process.node, process.index) : '';
    const row = document.createElement('tr');
    const texts = [
      where,
      String(process.pid),
      process.user || trans.__('n/a'),
      process.name || trans.__('n/a'),
      owners[process.owner] ?? trans.__('cannot tell'),
      process.sm === null ? trans.__('n/a') : `${Math.round(process.sm)} %`,
      process.memory === null ? trans.__('n/a') : bytes(process.memory)
    ];
    for (const [i, text] of texts.entries()) {
      const cell = document.createElement('td');
      cell.classList.toggle('jp-mod-number', NUMBERS.has(i));
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  }

  private readonly _table: HTMLElement;
  private _heat: HeatStrip | null = null;
  private _cells = '';
  private _key = '';
}
