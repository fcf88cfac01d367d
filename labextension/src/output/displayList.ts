/** The values that a run's script has displayed, one below the other: where no log is shown. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { IRunDisplay } from '../protocol';
import { DisplayView, IDisplayHost } from './display';

export class DisplayList {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _host: IDisplayHost
  ) {
    this.node = document.createElement('div');
    this.node.className = 'jp-AmlRun-displays';
    this.node.hidden = true;
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', _trans.__('Tables, images and charts'));
  }

  readonly node: HTMLElement;

  /** Redraw; displays that stay keep their elements. */
  update(displays: readonly IRunDisplay[]): void {
    this._shown = displays;
    const numbers = new Set(displays.map(({ number }) => number));
    this._views.forEach((view, number) => {
      if (!numbers.has(number)) {
        view.dispose();
        this._views.delete(number);
      }
    });
    const drawn = displays.map(display => {
      let view = this._views.get(display.number);
      if (!view) {
        view = new DisplayView(this._trans, this._host, () => this._changed());
        this._views.set(display.number, view);
      }
      view.update(display);
      return view;
    });
    const nodes = drawn.filter(({ isDrawn }) => isDrawn).map(({ node }) => node);
    if (nodes.length !== this.node.childNodes.length || nodes.some((node, i) => node !== this.node.childNodes[i])) {
      this.node.replaceChildren(...nodes);
    }
    this.node.hidden = !nodes.length;
  }

  dispose(): void {
    this.update([]);
  }

  /** A display has other forms now. */
  private _changed(): void {
    this.update(this._shown);
  }

  private readonly _views = new Map<number, DisplayView>();
  private _shown: readonly IRunDisplay[] = [];
}
