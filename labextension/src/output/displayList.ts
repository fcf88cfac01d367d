/** The values that a run's script has displayed, one below the other: where no log is shown. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { IRunDisplay } from '../protocol';
import { DisplayViews, IDisplayHost } from './display';

export class DisplayList {
  constructor(trans: TranslationBundle, host: IDisplayHost) {
    this._views = new DisplayViews(trans, host, () => this.update(this._shown));
    this.node = document.createElement('div');
    this.node.className = 'jp-AmlRun-displays';
    this.node.hidden = true;
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', trans.__('Tables, images and charts'));
  }

  readonly node: HTMLElement;

  update(displays: readonly IRunDisplay[]): void {
    this._shown = displays;
    const nodes = this._views.update(displays).map(({ number }) => this._views.node(number));
    if (nodes.length !== this.node.childNodes.length || nodes.some((node, i) => node !== this.node.childNodes[i])) {
      this.node.replaceChildren(...nodes);
    }
    this.node.hidden = !nodes.length;
  }

  dispose(): void {
    this.update([]);
  }

  private readonly _views: DisplayViews;
  private _shown: readonly IRunDisplay[] = [];
}
