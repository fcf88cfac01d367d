/**
 * Layout of the panel's sections: open state and heights, both restored after a reload.
 *
 * The sections that the user has opened are kept apart from those that fit: in a low panel only the last opened ones
 * are open, and the others open again when there is room.
 */

import type { IStateDB } from '@jupyterlab/statedb';
import { AccordionLayout, AccordionPanel, Widget } from '@lumino/widgets';

const STATE_KEY = 'jupyter-amltrain:sections';
/** Delay in milliseconds between a change and saving the layout. */
const SAVE_DELAY_MS = 500;

export interface ISection {
  /** Name of the section in the saved layout. */
  readonly name: string;
  readonly widget: Widget;
  /** Minimum usable height in pixels at the normal font size. */
  readonly minimum: number;
  /** Preferred height in pixels, or the height of the content up to a share of the available height. */
  readonly preferred: number | { readonly share: number };
  readonly flex: number;
  /** Whether the section is closed until the user opens it. */
  readonly closed?: boolean;
}

const layouts = new WeakMap<Widget, SectionLayout>();

/** Return the section layout of a panel; `null` before one is created. */
export function sectionLayoutOf(panel: Widget | null): SectionLayout | null {
  return (panel && layouts.get(panel)) ?? null;
}

export class SectionLayout {
  constructor(
    private readonly _panel: AccordionPanel,
    private readonly _sections: readonly ISection[],
    private readonly _db: IStateDB | null
  ) {
    layouts.set(_panel, this);
    this._recent = _sections.map(section => section.name);
    for (const { name, widget, closed } of _sections) {
      if (!closed) {
        this._wanted.add(name);
      }
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
    clearTimeout(this._saving);
    this._observer.disconnect();
  }

  /** Open a section at its preferred height; close others only where the available height is too small for all. */
  reveal(widget: Widget): void {
    const section = this._sections.find(each => each.widget === widget);
    if (section) {
      this._sizes.delete(section.name);
      this._want(section.name);
      this._fit();
      this.update();
      this._save();
    }
  }

  /** Set the minimum height of a section in pixels at the normal font size, for example while it shows details. */
  setMinimum(widget: Widget, pixels: number): void {
    const section = this._sections.find(each => each.widget === widget);
    const before = section && (this._minimums.get(section.name) ?? section.minimum);
    if (section && before !== undefined && before !== pixels) {
      this._minimums.set(section.name, pixels);
      if (pixels > before && !widget.isHidden) {
        // The user works in this section: another one makes room.
        this._recent = [section.name, ...this._recent.filter(name => name !== section.name)];
      }
      this.update();
    }
  }

  /** Request up to this share of the available height for a section with more content; 0 releases the space. */
  requestSpace(widget: Widget, share: number): void {
    const section = this._sections.find(each => each.widget === widget);
    if (section && (this._requested.get(section.name) ?? 0) !== share) {
      this._requested.set(section.name, share);
      this._divide();
    }
  }

  /** Assign the section heights in the next animation frame. */
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

  /** Make a section the last one that the user has opened. */
  private _want(name: string): void {
    this._wanted.add(name);
    this._recent = [name, ...this._recent.filter(other => other !== name)];
  }

  /** Open those of the sections that the user has opened for which there is room, and close the others. */
  private _fit(): void {
    const room = this._room;
    if (!this._panel.isVisible || room <= 0) {
      return;
    }
    const order = this._recent.filter(name => this._wanted.has(name));
    const minimums = order.map(name => this._minimum(this._sections.find(section => section.name === name)!));
    const open = new Set(order.slice(0, fitting(room, minimums)));
    this._fitting = true;
    this._sections.forEach(({ name, widget }, i) => {
      if (widget.isHidden === open.has(name)) {
        (open.has(name) ? this._panel.expand : this._panel.collapse).call(this._panel, i);
      }
    });
    this._fitting = false;
  }

  private _minimum(section: ISection): number {
    return (this._minimums.get(section.name) ?? section.minimum) * fontScale(this._panel.node);
  }

  private _needs(): ISectionNeed[] {
    const room = this._room;
    return this._sections.map(section => {
      const { name, widget, preferred, flex } = section;
      const minimum = this._minimum(section);
      const open = !widget.isHidden;
      const requested = this._requested.get(name) ?? 0;
      const chosen = requested ? undefined : this._sizes.get(name);
      if (typeof preferred === 'number') {
        return { open, minimum, preferred: chosen ?? preferred, flex };
      }
      const content = open ? contentHeight(widget.node, node => this._observe(node)) : 0;
      const fits = Math.min(content, Math.max(preferred.share, requested) * room);
      return { open, minimum: Math.min(minimum, content || minimum), preferred: chosen ?? fits, flex, prioritized: requested > 0 };
    });
  }

  private _divide(): void {
    this._fit();
    const room = this._room;
    if (!this._panel.isVisible || room <= 0) {
      return;
    }
    const sizes = divide(room, this._needs());
    const layout = this._panel.layout as AccordionLayout;
    const now = layout.absoluteSizes();
    const same = sizes.every((size, i) => Math.abs(size - (this._sections[i].widget.isHidden ? 0 : now[i])) < 1);
    if (!same) {
      this._panel.setRelativeSizes(sizes);
    }
    this._assigned = sizes;
  }

  private _toggled(_: AccordionPanel, index: number): void {
    if (this._fitting || this._restoring) {
      return;
    }
    const { name, widget } = this._sections[index];
    if (widget.isHidden) {
      this._wanted.delete(name);
    } else {
      this._want(name);
    }
    this.update();
    this._save();
  }

  /** Keep the heights of the two sections beside a border that the user has moved. */
  private _moved(): void {
    const sizes = (this._panel.layout as AccordionLayout).absoluteSizes();
    this._sections.forEach(({ name, widget }, i) => {
      if (!widget.isHidden && Math.abs(sizes[i] - (this._assigned[i] ?? 0)) > 2) {
        this._sizes.set(name, Math.round(sizes[i]));
        this._requested.delete(name);
      }
    });
    this._assigned = sizes;
    this._save();
  }

  private _observe(node: Element): void {
    if (!this._observed.has(node)) {
      this._observed.add(node);
      this._observer.observe(node);
    }
  }

  private async _restore(): Promise<void> {
    const stored = storedLayout(await this._db?.fetch(STATE_KEY).catch(() => null));
    if (!stored || this._panel.isDisposed) {
      return;
    }
    this._restoring = true;
    this._recent = [...new Set([...stored.recent.filter(name => this._recent.includes(name)), ...this._recent])];
    this._sections.forEach(({ name }, i) => {
      if (stored.closed.includes(name)) {
        this._wanted.delete(name);
        this._panel.collapse(i);
      } else {
        this._wanted.add(name);
        this._panel.expand(i);
      }
    });
    Object.entries(stored.sizes).forEach(([name, size]) => this._sizes.set(name, size));
    this._restoring = false;
    this.update();
  }

  private _save(): void {
    if (this._restoring || !this._db) {
      return;
    }
    clearTimeout(this._saving);
    this._saving = setTimeout(() => {
      const layout: IStoredLayout = {
        closed: this._sections.map(section => section.name).filter(name => !this._wanted.has(name)),
        recent: this._recent,
        sizes: Object.fromEntries(this._sizes)
      };
      this._db?.save(STATE_KEY, JSON.parse(JSON.stringify(layout))).catch(() => undefined);
    }, SAVE_DELAY_MS);
  }

  private readonly _observer: ResizeObserver;
  private readonly _observed = new WeakSet<Element>();
  private readonly _sizes = new Map<string, number>();
  private readonly _requested = new Map<string, number>();
  private readonly _minimums = new Map<string, number>();
  /** Names of the sections that the user wants open, whether or not there is room. */
  private readonly _wanted = new Set<string>();
  /** Names of all sections, the last opened first. */
  private _recent: readonly string[];
  private _assigned: readonly number[] = [];
  private _fitting = false;
  private _restoring = false;
  private _frame = 0;
  private _saving: ReturnType<typeof setTimeout> | undefined;
}

/** Height of the content of a node without scrolling; `part` is called with each part. */
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

export interface ISectionNeed {
  readonly open: boolean;
  /** Minimum usable height in pixels. */
  readonly minimum: number;
  /** Preferred height in pixels. */
  readonly preferred: number;
  /** Flexibility: the remaining height goes to the most flexible open section. */
  readonly flex: number;
  /** Whether the preferred height of this section takes precedence over those of others. */
  readonly prioritized?: boolean;
}

/** Height of each section in pixels: the minimum, then preferred heights, the rest to the most flexible section. */
export function divide(room: number, sections: readonly ISectionNeed[]): number[] {
  const open = sections.map(section => (section.open ? 1 : 0));
  const sum = (values: readonly number[]) => values.reduce((all, value) => all + value, 0);
  const minimum = sections.map((section, i) => open[i] * section.minimum);
  const preferences = sections.map((section, i) => open[i] * Math.max(section.preferred, section.minimum));
  const need = sum(minimum);
  if (need >= room) {
    return minimum.map(value => (need ? (value / need) * room : 0));
  }
  const grow = (from: readonly number[], prioritized: boolean) => {
    const more = preferences.map((value, i) => ((sections[i].prioritized ?? false) === prioritized ? value - minimum[i] : 0));
    const share = sum(more) > 0 ? Math.min(1, (room - sum(from)) / sum(more)) : 0;
    return from.map((value, i) => value + more[i] * share);
  };
  const sizes = grow(grow(minimum, true), false);
  const rest = room - sum(sizes);
  let mostFlexible = -1;
  sections.forEach((section, i) => {
    if (section.open && (mostFlexible < 0 || section.flex > sections[mostFlexible].flex)) {
      mostFlexible = i;
    }
  });
  if (mostFlexible >= 0) {
    sizes[mostFlexible] += rest;
  }
  return sizes;
}

/** Number of sections, the last opened first, whose minimum heights fit; at least one. */
export function fitting(room: number, minimums: readonly number[]): number {
  let need = 0;
  const over = minimums.findIndex((minimum, i) => (need += minimum) > room && i > 0);
  return over < 0 ? minimums.length : over;
}

/** Size of the font of the page relative to the normal one, for heights that hold text. */
export function fontScale(node: Element): number {
  const size = parseFloat(getComputedStyle(node).getPropertyValue('--jp-ui-font-size1'));
  return Number.isFinite(size) && size > 0 ? size / NORMAL_FONT_PX : 1;
}

/** JupyterLab's `--jp-ui-font-size1` without the user's increase. */
const NORMAL_FONT_PX = 13;

/** Saved layout of the sections, by section name. */
interface IStoredLayout {
  readonly closed: readonly string[];
  /** Names of all sections, the last opened first. */
  readonly recent: readonly string[];
  /** Heights in pixels that the user has chosen. */
  readonly sizes: Readonly<Record<string, number>>;
}

/** Return the valid parts of a saved layout. */
export function storedLayout(value: unknown): IStoredLayout | null {
  if (typeof value !== 'object' || value === null) {
    return null;
  }
  const { closed, recent, sizes } = value as { closed?: unknown; recent?: unknown; sizes?: unknown };
  const names = (list: unknown) =>
    Array.isArray(list) ? list.filter((name): name is string => typeof name === 'string') : [];
  const stored: Record<string, number> = {};
  if (typeof sizes === 'object' && sizes !== null) {
    for (const [name, size] of Object.entries(sizes)) {
      if (typeof size === 'number' && Number.isFinite(size) && size > 0) {
        stored[name] = size;
      }
    }
  }
  return {
    closed: names(closed),
    recent: names(recent),
    sizes: stored
  };
}
