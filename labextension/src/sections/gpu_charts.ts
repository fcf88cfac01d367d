/** The panel's charts of one quantity over time: the band of many GPUs, lines of few, lines of the host. */

import { TranslationBundle } from '@jupyterlab/translation';
import { bytes } from '../format';
import { gpuName } from '../output/gpu';
import { heatRow } from '../gpu_record';
import { Colours, columnsOf, IRoom, ISpot, LEFT, Plot, when } from './gpu_plot';
import { GpuField, GpuStore } from './gpu_store';

/** GPUs that have a line each. */
export const LINES = 4;

/** Lines are told apart by their dashes too. */
export const DASHES: readonly (readonly number[])[] = [[], [6, 2], [2, 2], [8, 2, 2, 2]];

const HEIGHT = 64;
const SMALL = 34;

export const percent = (value: number): string => `${Math.round(value)} %`;

/** `GPU 3`, or `n1 GPU 3` where there are several nodes. */
export function labelOf(store: GpuStore, gpu: number): string {
  const { node, index } = heatRow(store.labels[gpu] ?? '');
  const several = store.labels.some(label => heatRow(label).node !== heatRow(store.labels[0]).node);
  const name = gpuName(index, store.titles[gpu]);
  return several ? `n${node} ${name}` : name;
}

type Get = (i: number) => number;

/** Stroke a line with gaps where the value is NaN. */
function line(context: CanvasRenderingContext2D, store: GpuStore, room: IRoom, top: number, get: Get): void {
  const { count, empty } = columnsOf(store);
  const y = (value: number) => room.height - 1 - (Math.min(value, top) / top) * (room.height - 3);
  let open = false;
  context.beginPath();
  for (let i = 0; i < store.length; i++) {
    const value = get(i);
    if (Number.isNaN(value)) {
      open = false;
      continue;
    }
    const x = room.left + ((i + empty + 0.5) / count) * room.width;
    if (open) {
      context.lineTo(x, y(value));
    } else {
      context.moveTo(x, y(value));
      // A lone tick is a dot.
      context.lineTo(x + 0.5, y(value));
    }
    open = true;
  }
  context.stroke();
}

/** Fill between two lines, stretch by stretch. */
function band(context: CanvasRenderingContext2D, store: GpuStore, room: IRoom, field: GpuField): void {
  const { count, empty } = columnsOf(store);
  const x = (i: number) => room.left + ((i + empty + 0.5) / count) * room.width;
  const y = (value: number) => room.height - 1 - (value / 100) * (room.height - 3);
  let begin = -1;
  for (let i = 0; i <= store.length; i++) {
    const known = i < store.length && !Number.isNaN(store.range(field, i).mean);
    if (known && begin < 0) {
      begin = i;
    } else if (!known && begin >= 0) {
      context.beginPath();
      for (let k = begin; k < i; k++) {
        context.lineTo(x(k), y(store.range(field, k).high));
      }
      for (let k = i - 1; k >= begin; k--) {
        context.lineTo(x(k), y(store.range(field, k).low));
      }
      context.closePath();
      context.fill();
      begin = -1;
    }
  }
}

function grid(context: CanvasRenderingContext2D, room: IRoom, colours: Colours, labels: [number, string][]): void {
  context.fillStyle = colours.get('--jp-content-font-color2');
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  for (const [share, label] of labels) {
    const y = room.height - 1 - share * (room.height - 3);
    context.fillText(label, LEFT - 4, Math.max(5, Math.min(room.height - 5, y)), LEFT - 4);
    context.globalAlpha = 0.18;
    context.fillRect(room.left, Math.round(y), room.width, 1);
    context.globalAlpha = 1;
  }
}

/** A chart whose cursor moves in time alone. */
abstract class LinePlot extends Plot {
  protected rows(): number {
    return 1;
  }

  protected rowAt(): number {
    return 0;
  }

  protected yOf(): number {
    return 2;
  }
}

/** Utilization or memory of all GPUs, percent. */
export class FieldPlot extends LinePlot {
  constructor(
    trans: TranslationBundle,
    colours: Colours,
    title: string,
    private readonly _field: GpuField
  ) {
    super(trans, colours, title);
  }

  protected height(): number {
    return HEIGHT;
  }

  protected value(store: GpuStore): string {
    const i = store.latest;
    const { mean, low, high } = store.range(this._field, i);
    if (Number.isNaN(mean)) {
      return store.length ? this.trans.__('n/a') : '';
    }
    const held = this._field === 'memory' ? this._bytes(store, i) : '';
    if (store.count === 1) {
      return held || percent(mean);
    }
    const range = low === high ? '' : ` (${Math.round(low)}–${percent(high)})`;
    return `${held || percent(mean)}${range}`;
  }

  /** `12 of 80 GiB`: of all GPUs whose sizes are known. */
  private _bytes(store: GpuStore, i: number): string {
    let [held, all] = [0, 0];
    for (let g = 0; g < store.count; g++) {
      // The memory of an instance is its GPU's.
      const instance = (store.titles[g] ?? '').split(' MIG ');
      if (instance.length > 1 && store.titles.includes(instance[0])) {
        continue;
      }
      const size = store.sizes[g];
      const share = store.value('memory', i, g);
      if (typeof size !== 'number' || Number.isNaN(share)) {
        return '';
      }
      held += (share / 100) * size;
      all += size;
    }
    return all ? this.trans.__('%1 of %2', bytes(held), bytes(all)) : '';
  }

  protected draw(context: CanvasRenderingContext2D, store: GpuStore, room: IRoom): void {
    const { colours } = this;
    const field = this._field;
    grid(context, room, colours, [
      [0, '0'],
      [0.5, '50'],
      [1, '100']
    ]);
    context.lineWidth = 1.5;
    context.lineJoin = 'round';
    if (store.count <= LINES) {
      for (let g = 0; g < store.count; g++) {
        context.strokeStyle = store.count === 1 ? this._own : colours.get(`--jp-amlrun-c${g}`);
        context.setLineDash([...DASHES[g]]);
        line(context, store, room, 100, i => store.value(field, i, g));
      }
      context.setLineDash([]);
      return;
    }
    context.fillStyle = this._own;
    context.globalAlpha = 0.25;
    band(context, store, room, field);
    context.globalAlpha = 1;
    context.strokeStyle = this._own;
    line(context, store, room, 100, i => store.range(field, i).mean);
  }

  protected read(store: GpuStore, { tick }: ISpot): string[] {
    const { mean, low, high } = store.range(this._field, tick);
    const at = when(this.trans, store, tick);
    if (Number.isNaN(mean)) {
      return [this.trans.__('%1: no sample', at)];
    }
    if (store.count <= LINES) {
      const one = (g: number) => {
        const value = store.value(this._field, tick, g);
        return `${labelOf(store, g)}: ${Number.isNaN(value) ? this.trans.__('n/a') : percent(value)}`;
      };
      return [at, ...store.labels.map((_, g) => one(g))];
    }
    return [
      at,
      this.trans.__('highest %1', percent(high)),
      this.trans.__('mean %1', percent(mean)),
      this.trans.__('lowest %1', percent(low))
    ];
  }

  private get _own(): string {
    return this.colours.get(this._field === 'util' ? '--jp-brand-color1' : '--jp-amlrun-c2');
  }
}

/** CPU or memory of the first host. */
export class HostPlot extends LinePlot {
  constructor(
    trans: TranslationBundle,
    colours: Colours,
    title: string,
    private readonly _what: 'cpu' | 'memory'
  ) {
    super(trans, colours, title);
  }

  protected height(): number {
    return SMALL;
  }

  protected value(store: GpuStore): string {
    const now = this._get(store, store.length - 1);
    if (!store.length || Number.isNaN(now)) {
      return '';
    }
    const all = this._what === 'cpu' ? store.cpus && 100 * store.cpus : store.hostSize;
    return all ? this.trans.__('%1 of %2', this._format(now), this._format(all)) : this._format(now);
  }

  protected draw(context: CanvasRenderingContext2D, store: GpuStore, room: IRoom): void {
    const top = this._top(store);
    const gib = top / 2 ** 30;
    const most = this._what === 'cpu' ? String(Math.round(top)) : gib >= 1 ? `${Math.round(gib)}G` : '';
    grid(context, room, this.colours, [
      [0, '0'],
      [1, most]
    ]);
    context.lineWidth = 1.25;
    context.strokeStyle = this.colours.get(this._what === 'cpu' ? '--jp-accent-color1' : '--jp-amlrun-c4');
    line(context, store, room, top, i => this._get(store, i));
  }

  protected read(store: GpuStore, { tick }: ISpot): string[] {
    const value = this._get(store, tick);
    const text = Number.isNaN(value) ? this.trans.__('no sample') : this._format(value);
    return [when(this.trans, store, tick), text];
  }

  private _top(store: GpuStore): number {
    let top = this._what === 'cpu' ? 100 : 1;
    for (let i = 0; i < store.length; i++) {
      const value = this._get(store, i);
      top = value > top ? value : top;
    }
    // A little air, in steps: the scale shall not move with each tick.
    return this._what === 'cpu' ? 100 * Math.ceil(top / 100) : 2 ** 30 * Math.ceil((1.05 * top) / 2 ** 30);
  }

  private _get(store: GpuStore, i: number): number {
    return i < 0 ? NaN : this._what === 'cpu' ? store.hostCpu(i) : store.hostMemory(i);
  }

  private _format(value: number): string {
    return this._what === 'cpu' ? percent(value) : bytes(value);
  }
}
