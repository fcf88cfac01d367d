/** One view of a feed's charts: the kernel's widgets, with what this page adds to them. */

import type { DOMWidgetView, WidgetModel } from '@jupyter-widgets/base';
import { TranslationBundle } from '@jupyterlab/translation';
import { Panel } from '@lumino/widgets';
import { ageText } from './age';
import type { StreamFeedModel } from './feed';
import { ISite } from './feeds';
import { HeatStrip } from './heat';
import { Hover } from './hover';
import { means } from './reduce';
import { Zoom } from './zoom';

/** Milliseconds between two writings of the age. */
const AGE = 500;

/** The views of a box come after it: looks for them, and milliseconds between. */
const ATTEMPTS = 50;
const AGAIN = 100;

export class FeedSite extends Panel implements ISite {
  /** Create the views of the charts, which takes a moment. */
  static async make(feed: StreamFeedModel, trans: TranslationBundle): Promise<FeedSite> {
    const root = feed.get('root') as WidgetModel;
    const view = (await root.widget_manager.create_view(root as any)) as DOMWidgetView;
    const site = new FeedSite(feed, view, trans);
    feed.addSite(site);
    void site._findFigures();
    return site;
  }

  private constructor(
    readonly feed: StreamFeedModel,
    private readonly _view: DOMWidgetView,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-AmlRun-dashboard');
    this.addWidget(_view.luminoWidget);
    this._age = document.createElement('span');
    this._age.className = 'jp-AmlRun-age';
    this.node.append(this._age);
    if (feed.get('heat')) {
      this._heat = new HeatStrip(_trans);
    }
    this._hover = new Hover(feed, this.node, _trans, () => this._figures);
    this._zoom = new Zoom(feed, this.node, () => this._figures);
    this._watch = new IntersectionObserver(entries => {
      this._near = entries[entries.length - 1].isIntersecting;
      feed.look();
    });
    this._watch.observe(this.node);
    this._timer = setInterval(() => this._writeAge(), AGE);
    // Metrics that come late bring charts of their own.
    this._more = () => void this._findFigures();
    feed.on('change:figures', this._more);
  }

  get onScreen(): boolean {
    return this._near && this.isVisible;
  }

  /** The marks have new points. */
  drawn(): void {
    this._drawHeat();
    this._hover.refresh();
    this._writeAge();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.feed.sites.delete(this);
    this.feed.off('change:figures', this._more);
    clearInterval(this._timer);
    this._watch.disconnect();
    this._hover.dispose();
    this._zoom.dispose();
    this._heat?.dispose();
    // Disposing of the lumino widget removes the view and all its children.
    super.dispose();
  }

  /** The nodes of this view's own charts: a model may be shown twice on the page. */
  private async _findFigures(): Promise<void> {
    const own = async (model: WidgetModel | null): Promise<HTMLElement | null> => {
      for (const promise of Object.values(model?.views ?? {})) {
        // The view of an output that was thrown away never comes.
        const late = new Promise<null>(resolve => setTimeout(() => resolve(null), 2000));
        const view = await Promise.race([promise, late]);
        if (view && this._view.el.contains(view.el)) {
          return view.el as HTMLElement;
        }
      }
      return null;
    };
    const status = this.feed.get('status') as WidgetModel | null;
    for (let attempt = 0; attempt < ATTEMPTS && !this.isDisposed; attempt++) {
      // A box makes the views of its children on its own time.
      const models = this.feed.get('figures') as WidgetModel[];
      this._figures = await Promise.all(models.map(own));
      const statusNode = await own(status);
      statusNode?.append(this._age);
      if (this._figures.every(Boolean) && (statusNode || !status)) {
        break;
      }
      await new Promise(resolve => setTimeout(resolve, AGAIN));
    }
    const figures = this._figures.filter((node): node is HTMLElement => node !== null);
    if (this._heat && figures.length) {
      // Right after the charts, in their grid.
      figures[figures.length - 1].parentElement?.append(this._heat.node);
    }
    this.drawn();
  }

  private _drawHeat(): void {
    const feed = this.feed;
    if (!this._heat || !this.onScreen) {
      return;
    }
    const span = feed.shown;
    const { layout } = feed;
    const columns = Math.max(1, Math.min(300, Math.floor((span[1] - span[0]) / layout.period)));
    const gpus = [...layout.gpus].sort((a, b) => a.node - b.node || a.index - b.index);
    const cells = new Float32Array(gpus.length * columns).fill(NaN);
    gpus.forEach((gpu, r) => {
      const i = layout.nodes.findIndex(node => node.node === gpu.node);
      const column = i < 0 ? -1 : layout.nodes[i].columns.indexOf(`gpu${gpu.index}.util`);
      if (column >= 0) {
        cells.set(means(feed.nodes[i].rows(span[0]), column, span[0], span[1], columns), r * columns);
      }
    });
    const start = layout.start || feed.start;
    this._heat.update({ rows: gpus, cells, columns, span, start });
  }

  private _writeAge(): void {
    const feed = this.feed;
    const age = feed.age.at(Date.now() / 1000);
    const { nodes, period } = feed.layout;
    const hosts = nodes.length === 1 ? nodes[0].host : this._trans.__('%1 nodes', nodes.length);
    const parts = [this._trans.__('%1, every %2', hosts, ageText(period).replace('.0 s', ' s'))];
    if (feed.ended) {
      parts.push(this._trans.__('ended'));
    } else if (Number.isNaN(age)) {
      parts.push(this._trans.__('no sample yet'));
    } else {
      parts.push(this._trans.__('last sample %1 ago', ageText(age)));
    }
    if (feed.paused) {
      parts.push(this._trans.__('drawing paused'));
    }
    const text = parts.join(', ');
    if (this._age.textContent !== text) {
      this._age.textContent = text;
    }
    // Three ticks late: whoever looks at the charts should know that they stand still.
    this._age.classList.toggle('jp-mod-late', !feed.ended && age > Math.max(5, 3 * feed.layout.period));
  }

  private readonly _age: HTMLElement;
  private readonly _hover: Hover;
  private readonly _zoom: Zoom;
  private readonly _watch: IntersectionObserver;
  private readonly _more: () => void;
  private readonly _timer: ReturnType<typeof setInterval>;
  private _heat: HeatStrip | null = null;
  private _figures: (HTMLElement | null)[] = [];
  private _near = false;
}

