/** The sections of the panel: which are open, how high they are, and that both survive a reload. */

import type { IStateDB } from '@jupyterlab/statedb';
import { AccordionLayout, AccordionPanel, Widget } from '@lumino/widgets';

const KEY = 'jupyter-amltrain:sections';
/** Milliseconds after a change before it is written. */
const WRITE_AFTER = 500;

export interface ISection {
  /** Under which it is remembered. */
  readonly name: string;
  readonly widget: Widget;
  readonly least: number;
  /** Pixels, or as much as its content, up to a share of the room. */
  readonly wish: number | { readonly share: number };
  readonly greed: number;
  /** Closed until a person opens it. */
  readonly closed?: boolean;
}

const keepers = new WeakMap<Widget, SectionKeeper>();

/** Who keeps the sections of this panel; `null` before there is one. */
export function keeperOf(panel: Widget | null): SectionKeeper | null {
  return (panel && keepers.get(panel)) ?? null;
}

export class SectionKeeper {
  constructor(
    private readonly _panel: AccordionPanel,
    private readonly _sections: readonly ISection[],
    private readonly _db: IStateDB | null
  ) {
    keepers.set(_panel, this);
    for (const { widget, closed } of _sections) {
      widget.setHidden(closed === true);
      _panel.addWidget(widget);
    }
    _panel.expansionToggled.connect(this._toggled, this);
    _panel.handleMoved.connect(this._moved, this);
    this._observer = new ResizeObserver(() => this.update());
    this._observer.observe(_panel.node);
    void this._restore();
  }

  dispose(): void {
    cancelAnimationFrame(this._frame);
    clearTimeout(this._writing);
    this._observer.disconnect();
  }

  /** Open a section and give it what it needs; others are closed only where there is no room for all. */
  reveal(widget: Widget): void {
    const at = this._sections.findIndex(section => section.widget === widget);
    if (at < 0) {
      return;
    }
    this._sizes.delete(this._sections[at].name);
    this._panel.expand(at);
    tooMany(this._room, this._wishes(), at).forEach(i => this._panel.collapse(i));
    this.update();
  }

  /** A section has more to show for a while: up to this share of the room; 0 gives it back. */
  grant(widget: Widget, share: number): void {
    const section = this._sections.find(each => each.widget === widget);
    if (section && (this._granted.get(section.name) ?? 0) !== share) {
      this._granted.set(section.name, share);
      this._divide();
    }
  }

  /** Give each its height, with the next frame. */
  update(): void {
    cancelAnimationFrame(this._frame);
    this._frame = requestAnimationFrame(() => this._divide());
  }

  private get _room(): number {
    const layout = this._panel.layout as AccordionLayout;
    const open = this._sections.filter(section => !section.widget.isHidden).length;
    return (
      this._panel.node.clientHeight - layout.titleSpace * this._sections.length - layout.spacing * Math.max(0, open - 1)
    );
  }

  private _wishes(): IWish[] {
    const room = this._room;
    return this._sections.map(({ name, widget, least, wish, greed }) => {
      const open = !widget.isHidden;
      const granted = this._granted.get(name) ?? 0;
      const given = granted ? undefined : this._sizes.get(name);
      if (typeof wish === 'number') {
        return { open, least, wish: given ?? wish, greed };
      }
      const content = open ? contentHeight(widget.node, node => this._observe(node)) : 0;
      const fits = Math.min(content, Math.max(wish.share, granted) * room);
      return { open, least: Math.min(least, content || least), wish: given ?? fits, greed, urgent: granted > 0 };
    });
  }

  private _divide(): void {
    const room = this._room;
    if (!this._panel.isVisible || room <= 0) {
      return;
    }
    const sizes = divide(room, this._wishes());
    const layout = this._panel.layout as AccordionLayout;
    const now = layout.absoluteSizes();
    const same = sizes.every((size, i) => Math.abs(size - (this._sections[i].widget.isHidden ? 0 : now[i])) < 1);
    if (!same) {
      this._panel.setRelativeSizes(sizes);
    }
    this._given = sizes;
  }

  private _toggled(): void {
    this.update();
    this._write();
  }

  /** A person has moved a border: the sections at its two sides keep what they got. */
  private _moved(): void {
    const sizes = (this._panel.layout as AccordionLayout).absoluteSizes();
    this._sections.forEach(({ name, widget }, i) => {
      if (!widget.isHidden && Math.abs(sizes[i] - (this._given[i] ?? 0)) > 2) {
        this._sizes.set(name, Math.round(sizes[i]));
        this._granted.delete(name);
      }
    });
    this._given = sizes;
    this._write();
  }

  private _observe(node: Element): void {
    if (!this._observed.has(node)) {
      this._observed.add(node);
      this._observer.observe(node);
    }
  }

  private async _restore(): Promise<void> {
    const found = keptOf(await this._db?.fetch(KEY).catch(() => null));
    if (!found || this._panel.isDisposed) {
      return;
    }
    this._restoring = true;
    this._sections.forEach(({ name }, i) => {
      if (found.closed.includes(name)) {
        this._panel.collapse(i);
      } else {
        this._panel.expand(i);
      }
    });
    Object.entries(found.sizes).forEach(([name, size]) => this._sizes.set(name, size));
    this._restoring = false;
    this.update();
  }

  private _write(): void {
    if (this._restoring || !this._db) {
      return;
    }
    clearTimeout(this._writing);
    this._writing = setTimeout(() => {
      const kept: IKept = {
        closed: this._sections.filter(section => section.widget.isHidden).map(section => section.name),
        sizes: Object.fromEntries(this._sizes)
      };
      this._db?.save(KEY, JSON.parse(JSON.stringify(kept))).catch(() => undefined);
    }, WRITE_AFTER);
  }

  private readonly _observer: ResizeObserver;
  private readonly _observed = new WeakSet<Element>();
  private readonly _sizes = new Map<string, number>();
  private readonly _granted = new Map<string, number>();
  private _given: readonly number[] = [];
  private _restoring = false;
  private _frame = 0;
  private _writing: ReturnType<typeof setTimeout> | undefined;
}

/** Height of all that is in a node, were nothing of it scrolled away; `part` hears of each part. */
function contentHeight(node: Element, part: (node: Element) => void): number {
  let height = 0;
  for (const child of node.children) {
    const { overflowY, display, position, paddingTop, paddingBottom } = getComputedStyle(child);
    if (display === 'none' || position === 'absolute') {
      part(child);
    } else if (overflowY === 'auto' || overflowY === 'scroll') {
      height += contentHeight(child, part) + parseFloat(paddingTop) + parseFloat(paddingBottom);
    } else {
      part(child);
      height += (child as HTMLElement).offsetHeight;
    }
  }
  return height;
}

export interface IWish {
  readonly open: boolean;
  /** Pixels below which it is of no use. */
  readonly least: number;
  /** Pixels with which it is content. */
  readonly wish: number;
  /** What is left goes to the open section that is greediest. */
  readonly greed: number;
  /** Its wish comes before those of others. */
  readonly urgent?: boolean;
}

/** Pixels for each section: the least first, then wishes as far as there is room, the rest to the greediest. */
export function divide(room: number, sections: readonly IWish[]): number[] {
  const open = sections.map(section => (section.open ? 1 : 0));
  const sum = (values: readonly number[]) => values.reduce((all, value) => all + value, 0);
  const least = sections.map((section, i) => open[i] * section.least);
  const wishes = sections.map((section, i) => open[i] * Math.max(section.wish, section.least));
  const need = sum(least);
  if (need >= room) {
    return least.map(value => (need ? (value / need) * room : 0));
  }
  const grow = (from: readonly number[], urgent: boolean) => {
    const more = wishes.map((value, i) => ((sections[i].urgent ?? false) === urgent ? value - least[i] : 0));
    const share = sum(more) > 0 ? Math.min(1, (room - sum(from)) / sum(more)) : 0;
    return from.map((value, i) => value + more[i] * share);
  };
  const sizes = grow(grow(least, true), false);
  const rest = room - sum(sizes);
  let greediest = -1;
  sections.forEach((section, i) => {
    if (section.open && (greediest < 0 || section.greed > sections[greediest].greed)) {
      greediest = i;
    }
  });
  if (greediest >= 0) {
    sizes[greediest] += rest;
  }
  return sizes;
}

/** Which sections to close, the first ones first, so that the others can be used beside the one that must be seen. */
export function tooMany(room: number, sections: readonly IWish[], must: number): number[] {
  const closed: number[] = [];
  let need = sections.reduce((all, section) => all + (section.open ? section.least : 0), 0);
  for (let i = sections.length - 1; i >= 0 && need > room; i--) {
    if (i !== must && sections[i].open) {
      closed.push(i);
      need -= sections[i].least;
    }
  }
  return closed;
}

/** What is remembered of the sections, by their names. */
export interface IKept {
  readonly closed: readonly string[];
  /** Pixels that a person has given. */
  readonly sizes: Readonly<Record<string, number>>;
}

/** What was remembered, as far as it can be used. */
export function keptOf(value: unknown): IKept | null {
  if (typeof value !== 'object' || value === null) {
    return null;
  }
  const { closed, sizes } = value as { closed?: unknown; sizes?: unknown };
  const found: Record<string, number> = {};
  if (typeof sizes === 'object' && sizes !== null) {
    for (const [name, size] of Object.entries(sizes)) {
      if (typeof size === 'number' && Number.isFinite(size) && size > 0) {
        found[name] = size;
      }
    }
  }
  return {
    closed: Array.isArray(closed) ? closed.filter((name): name is string => typeof name === 'string') : [],
    sizes: found
  };
}
