/** What the panel's GPU charts have in common: a canvas with a title, a value, an axis of time and a cursor. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ago } from '../format';
import { GpuStore } from './gpu_store';

/** CSS pixels at the left, for the numbers of the vertical axis. */
export const LEFT = 28;
export const RIGHT = 4;

/** Ticks that an axis holds at least: a minute. */
const LEAST = 60;

/** Where ticks stand, left to right. */
export interface IColumns {
  /** Ticks that have room. */
  readonly count: number;
  /** Those without a tick, at the left. */
  readonly empty: number;
}

export function columnsOf(store: GpuStore): IColumns {
  const count = Math.max(LEAST, store.length);
  return { count, empty: count - store.length };
}

/** Tick under a place between 0 (left) and 1, or -1. */
export function tickAt(store: GpuStore, share: number): number {
  const { count, empty } = columnsOf(store);
  const i = Math.floor(Math.min(0.999999, Math.max(0, share)) * count) - empty;
  return i < 0 ? -1 : i;
}

/** How long before the last tick: `now`, `12 s ago`; of an ended run `12 s before the end`. */
export function when(trans: TranslationBundle, store: GpuStore, i: number): string {
  const back = store.time(store.length - 1) - store.time(i);
  if (back < store.period / 2) {
    return store.ended ? trans.__('at the end') : trans.__('now');
  }
  return store.ended ? trans.__('%1 before the end', ago(back)) : trans.__('%1 ago', ago(back));
}

/** Colours of the theme, read once for each theme. */
export class Colours {
  constructor(private readonly _node: Element) {}

  get(name: string, fallback = '#888'): string {
    let colour = this._found.get(name);
    if (colour === undefined) {
      colour = getComputedStyle(this._node).getPropertyValue(name).trim() || fallback;
      this._found.set(name, colour);
    }
    return colour;
  }

  get font(): string {
    let font = this._found.get('font');
    if (font === undefined) {
      this._found.set('font', (font = getComputedStyle(this._node).fontFamily));
    }
    return font;
  }

  forget(): void {
    this._found.clear();
  }

  private readonly _found = new Map<string, string>();
}

/** Where the cursor is. */
export interface ISpot {
  /** Number of the tick, from the oldest. */
  tick: number;
  /** Row of a heat map; 0 elsewhere. */
  row: number;
}

let ids = 0;

export abstract class Plot {
  constructor(
    protected readonly trans: TranslationBundle,
    protected readonly colours: Colours,
    title: string
  ) {
    this.node = document.createElement('figure');
    this.node.className = 'jp-AmlGpus-plot';
    const caption = document.createElement('figcaption');
    const name = document.createElement('span');
    name.className = 'jp-AmlGpus-title';
    name.id = `jp-AmlGpus-title-${ids++}`;
    name.textContent = title;
    this._value = document.createElement('span');
    this._value.className = 'jp-AmlGpus-value';
    caption.append(name, this._value);
    this._area = document.createElement('div');
    this._area.className = 'jp-AmlGpus-area';
    this._area.tabIndex = 0;
    // Arrow keys are ours here: a screen reader shall pass them on.
    this._area.setAttribute('role', 'application');
    this._area.setAttribute('aria-roledescription', trans.__('chart'));
    this._area.setAttribute('aria-labelledby', name.id);
    this.canvas = document.createElement('canvas');
    this.canvas.setAttribute('aria-hidden', 'true');
    this._rule = document.createElement('div');
    this._rule.className = 'jp-AmlGpus-rule';
    this._rule.hidden = true;
    this._tip = document.createElement('div');
    this._tip.className = 'jp-AmlGpus-tip';
    this._tip.hidden = true;
    this._said = document.createElement('div');
    this._said.className = 'jp-AmlGpus-said';
    this._said.setAttribute('aria-live', 'polite');
    this._area.append(this.canvas, this._rule, this._tip);
    this._axis = document.createElement('div');
    this._axis.className = 'jp-AmlGpus-axis';
    this._axis.setAttribute('aria-hidden', 'true');
    this._from = document.createElement('span');
    this._to = document.createElement('span');
    this._axis.append(this._from, this._to);
    this.node.append(caption, this._area, this._axis, this._said);
    this._listen();
  }

  readonly node: HTMLElement;

  /** Draw the store; the node is on the page and visible. */
  paint(store: GpuStore, width: number): void {
    this.store = store;
    this._width = width;
    this._value.textContent = this.value(store);
    this._value.title = this._value.textContent;
    const height = this.height(store);
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext('2d');
    if (!context || width < LEFT + RIGHT + 20) {
      return;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `10px ${this.colours.font}`;
    this.draw(context, store, { left: LEFT, width: width - LEFT - RIGHT, height, ratio });
    const span = columnsOf(store).count * store.period;
    this._from.textContent = store.ended ? this.trans.__('%1 before', ago(span)) : this.trans.__('%1 ago', ago(span));
    this._to.textContent = store.ended ? this.trans.__('end') : this.trans.__('now');
    this._show(false);
  }

  /** The theme has changed. */
  repaint(): void {
    // Only charts that keep colours have something to do.
  }

  protected abstract height(store: GpuStore): number;
  protected abstract value(store: GpuStore): string;
  protected abstract draw(context: CanvasRenderingContext2D, store: GpuStore, room: IRoom): void;
  /** Lines of text about a place; empty for none. */
  protected abstract read(store: GpuStore, spot: ISpot): string[];

  /** Rows that the cursor can be in. */
  protected abstract rows(store: GpuStore): number;
  /** Row at a height (CSS pixels), or -1. */
  protected abstract rowAt(store: GpuStore, y: number): number;
  /** Middle of a row, CSS pixels. */
  protected abstract yOf(store: GpuStore, row: number): number;

  private _listen(): void {
    this._area.addEventListener('pointermove', event => this._hover(event));
    this._area.addEventListener('pointerleave', () => this._leave());
    this._area.addEventListener('blur', () => this._leave());
    this._area.addEventListener('keydown', event => this._key(event));
  }

  private _hover(event: PointerEvent): void {
    const { store } = this;
    if (!store) {
      return;
    }
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const row = this.rowAt(store, event.clientY - box.top);
    const tick = share < 0 || share > 1 ? -1 : tickAt(store, share);
    this._fromEnd = tick < 0 || row < 0 ? null : { back: store.length - 1 - tick, row };
    this._show(false);
  }

  private _key(event: KeyboardEvent): void {
    const { store } = this;
    if (!store || !store.length || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const step = event.shiftKey ? 10 : 1;
    const at = this._fromEnd ?? { back: 0, row: 0 };
    const to: Record<string, { back: number; row: number }> = {
      ArrowLeft: { ...at, back: at.back + step },
      ArrowRight: { ...at, back: at.back - step },
      ArrowUp: { ...at, row: at.row - step },
      ArrowDown: { ...at, row: at.row + step },
      Home: { ...at, back: store.length - 1 },
      End: { ...at, back: 0 }
    };
    if (event.key === 'Escape' && this._fromEnd) {
      this._leave();
    } else if (to[event.key]) {
      const { back, row } = this._fromEnd ? to[event.key] : at;
      this._fromEnd = {
        back: Math.max(0, Math.min(store.length - 1, back)),
        row: Math.max(0, Math.min(this.rows(store) - 1, row))
      };
      this._show(true);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private _leave(): void {
    this._fromEnd = null;
    this._rule.hidden = true;
    this._tip.hidden = true;
    this._said.textContent = '';
  }

  /** Put cursor and reading where they belong; read out only what a key has asked for. */
  private _show(aloud: boolean): void {
    const { store } = this;
    const at = this._fromEnd;
    if (!store || !at) {
      return;
    }
    const spot = { tick: store.length - 1 - at.back, row: at.row };
    const lines = spot.tick >= 0 && spot.row < this.rows(store) ? this.read(store, spot) : [];
    this._rule.hidden = this._tip.hidden = !lines.length;
    if (!lines.length) {
      return;
    }
    const { count, empty } = columnsOf(store);
    const x = LEFT + ((spot.tick + empty + 0.5) / count) * (this._width - LEFT - RIGHT);
    this._rule.style.left = `${x}px`;
    this._rule.style.height = `${this.height(store)}px`;
    this._tip.replaceChildren(
      ...lines.map(text => {
        const line = document.createElement('div');
        line.textContent = text;
        return line;
      })
    );
    const right = x + 10 + this._tip.offsetWidth <= this._width;
    this._tip.style.left = `${Math.max(0, right ? x + 10 : x - 10 - this._tip.offsetWidth)}px`;
    this._tip.style.top = `${this.yOf(store, spot.row) + (this.rows(store) > 1 ? 8 : 0)}px`;
    if (aloud) {
      this._said.textContent = lines.join(', ');
    }
  }

  protected readonly canvas: HTMLCanvasElement;
  protected store: GpuStore | null = null;
  private readonly _value: HTMLElement;
  private readonly _area: HTMLElement;
  private readonly _rule: HTMLElement;
  private readonly _tip: HTMLElement;
  private readonly _said: HTMLElement;
  private readonly _axis: HTMLElement;
  private readonly _from: HTMLElement;
  private readonly _to: HTMLElement;
  /** The cursor stays where it is on the page while ticks move on. */
  private _fromEnd: { back: number; row: number } | null = null;
  private _width = 0;
}

/** Where a chart may draw, CSS pixels. */
export interface IRoom {
  left: number;
  width: number;
  height: number;
  ratio: number;
}
