/** The list of targets: its rows, which of them is selected, and the keys and clicks that go to one. */

import { selection } from '../panel/selection';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import type { ITargetRow } from '../protocol';
import { IRowHost, TargetView } from './compute_row';
import { element } from './dom';

export interface IListHost extends IRowHost {
  /** Make it the target in use, if it is not. */
  use(name: string): void;
}

export class TargetList {
  /** Clicks are heard in all of `around`, which holds the list. */
  constructor(
    private readonly _context: IPanelContext,
    private readonly _host: IListHost,
    around: HTMLElement
  ) {
    this.node.setAttribute('role', 'tree');
    this.node.setAttribute('aria-label', _context.trans.__('Compute targets'));
    this.node.addEventListener('keydown', event => this._key(event));
    around.addEventListener('click', event => this._click(event), true);
  }

  readonly node = element('div', 'jp-AmlCompute-list');

  /** Name of the selected target; empty for none. */
  get selected(): string {
    return this._views.has(this._selected) ? this._selected : '';
  }

  /** Whether the selected row shows its details. */
  get open(): boolean {
    return this._open;
  }

  /** Select a target; to be drawn. */
  choose(name: string, open: boolean): void {
    this._selected = name;
    this._open = open;
  }

  /** The row of a target, once it was drawn. */
  row(name: string): HTMLElement | undefined {
    return this._views.get(name)?.node;
  }

  /** Focus the row that the Tab key goes to. */
  focus(): void {
    this.node.querySelector<HTMLElement>('[tabindex="0"]')?.focus();
  }

  /** A second has passed. */
  tick(): void {
    this._views.forEach(view => view.tick());
  }

  draw(targets: readonly ITargetRow[], whyNot: (name: string) => string): void {
    const focused = this.node.contains(document.activeElement);
    for (const [name, view] of this._views) {
      if (!targets.some(row => row.name === name)) {
        view.node.remove();
        this._views.delete(name);
      }
    }
    if (!this._views.has(this._selected) && !targets.some(row => row.name === this._selected)) {
      this._selected = selection.target = '';
    }
    let before: Element | null = this.node.firstElementChild;
    for (const row of targets) {
      let view = this._views.get(row.name);
      if (!view) {
        this._views.set(row.name, (view = new TargetView(this._host, row)));
      } else if (view.row !== row) {
        view.update(row);
      }
      // Moving a node takes the focus out of it, so only what is out of place is moved.
      if (view.node === before) {
        before = before.nextElementSibling;
      } else {
        this.node.insertBefore(view.node, before);
      }
      const selected = row.name === this._selected;
      view.show(selected, selected && this._open, whyNot(row.name));
    }
    const entry = this._selected || targets[0]?.name;
    this._views.forEach((view, name) => void (view.node.tabIndex = name === entry ? 0 : -1));
    if (focused && !this.node.contains(document.activeElement) && entry) {
      this._views.get(entry)?.node.focus({ preventScroll: true });
    }
  }

  /**
   * A double click uses the target of its first click, wherever the second one hits.
   *
   * The first one opens the row and closes another above it, so that the second hits something else there,
   * a button maybe.
   */
  private _click(event: MouseEvent): void {
    const summary = (event.target as Element).closest('.jp-AmlTarget-summary');
    if (event.detail === 1) {
      this._clicked = summary?.closest<HTMLElement>('.jp-AmlTarget')?.dataset.target ?? '';
    } else if (event.detail === 2 && this._clicked) {
      event.stopPropagation();
      this._host.use(this._clicked);
    }
  }

  private _key(event: KeyboardEvent): void {
    const names = this._context.model.targets.map(row => row.name);
    const at = names.findIndex(name => this._views.get(name)?.node === event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const name = names[at];
    const go = (to: number) => {
      const next = names[Math.max(0, Math.min(names.length - 1, to))];
      this._host.select(next, this._open && next === this._selected);
      this._views.get(next)?.node.focus();
    };
    switch (event.key) {
      case 'ArrowDown':
        go(at + 1);
        break;
      case 'ArrowUp':
        go(at - 1);
        break;
      case 'Home':
        go(0);
        break;
      case 'End':
        go(names.length - 1);
        break;
      case 'Enter':
        // As a double click does.
        this._host.select(name, true);
        this._host.use(name);
        break;
      case ' ':
      case 'ArrowRight':
        this._host.select(name, true);
        break;
      case 'ArrowLeft':
      case 'Escape':
        this._host.select(name, false);
        break;
      case 'Delete':
        this._host.select(name, this._open);
        void this._context.app.commands.execute(CommandIDs.targetDelete, { target: name });
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private readonly _views = new Map<string, TargetView>();
  private _selected = '';
  private _open = false;
  private _clicked = '';
}
