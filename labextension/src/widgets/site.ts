/** One view of a feed's charts: the kernel's widgets, with what this page adds to them. */

import type { DOMWidgetView, WidgetModel } from '@jupyter-widgets/base';
import { TranslationBundle } from '@jupyterlab/translation';
import { Panel } from '@lumino/widgets';
import { Brush } from '../charts/brush';
import { IValue, readingNodes } from '../charts/chart';
import { HeatMap, timed } from '../charts/heat';
import { MetricBar } from '../charts/metricChoice';
import { nearest as nearestIndex } from '../charts/scale';
import { find, IRows, means, nearestRow, Tally } from '../charts/series';
import { drawTiles } from '../charts/values';
import { bytes, clock, number } from '../format';
import type { StreamFeedModel } from './feed';
import { FigureFrame, figureValue } from './figures';
import { ISite } from './feeds';
import { ageText, columnsOf, MarkSpec, placed, specOf } from './frames';
import { fillTable } from './gpuTable';
import { plot, Zoom } from './zoom';

/** Milliseconds between two writings of the age. */
const AGE = 500;

/** The views of a box come after it: looks for them, and milliseconds between. */
const MAX_ATTEMPTS = 50;
const RETRY_INTERVAL_MS = 100;

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
      this._heat = new HeatMap(_trans);
    }
    this._hover = new Hover(feed, this.node, _trans, () => this._figures);
    this._bar = new MetricBar(feed.choice, _trans);
    this._tiles.className = 'jp-AmlRun-tiles';
    this._tiles.hidden = true;
    this.node.prepend(this._tiles);
    this._zoom = new Zoom(feed, this.node, () => this._figures);
    this._brush = new Brush(this.node, event => (event.shiftKey ? this._zoom.timePlot(event) : null));
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

  /** The tables have new readings, shown while the charts are paused, too. */
  tabulate(): void {
    if (this.feed.readings) {
      fillTable(this._view.el, this.feed.readings);
    }
  }

  /** The marks have new points. */
  drawn(): void {
    this.tabulate();
    this._drawHeat();
    this._drawMetrics();
    this._frames.forEach((frame, i) => frame?.update(...this._captionOf(i)));
    this._hover.refresh();
    this._writeAge();
    this.toggleClass('jp-mod-ended', this.feed.ended);
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.feed.sites.delete(this);
    this.feed.off('change:figures', this._more);
    clearInterval(this._timer);
    this._watch.disconnect();
    this._bar.dispose();
    this._hover.dispose();
    this._zoom.dispose();
    this._brush.dispose();
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
    for (let attempt = 0; attempt < MAX_ATTEMPTS && !this.isDisposed; attempt++) {
      // A box makes the views of its children on its own time.
      const models = this.feed.get('figures') as WidgetModel[];
      this._figures = await Promise.all(models.map(own));
      const statusNode = await own(status);
      statusNode?.append(this._age);
      if (this._figures.every(Boolean) && (statusNode || !status)) {
        break;
      }
      await new Promise(resolve => setTimeout(resolve, RETRY_INTERVAL_MS));
    }
    const figures = this._figures.filter((node): node is HTMLElement => node !== null);
    this._frames = this._figures.map((node, i) => node && this._dress(node, i));
    const head = this._view.el.querySelector('.jp-AmlDashboard-head');
    if (head && this._bar.node.parentElement !== head) {
      head.insertBefore(this._bar.node, head.querySelector('.jp-AmlDashboard-bar'));
    }
    // A title alone is no name.
    head?.querySelectorAll('select[title], button[title]').forEach(node => {
      if (node.tagName === 'SELECT' || !node.textContent?.trim()) {
        node.setAttribute('aria-label', node.getAttribute('title') ?? '');
      }
    });
    if (this._heat && figures.length) {
      // Right after the charts, in their grid.
      figures[figures.length - 1].parentElement?.append(this._heat.node);
    }
    this.drawn();
  }

  /** Give a figure its caption and its keyboard. */
  private _dress(node: HTMLElement, i: number): FigureFrame {
    const found = this._byNode.get(node);
    if (found) {
      return found;
    }
    const kind = this._metricOf(i) === null ? '' : 'metric';
    const frame = new FigureFrame(node, kind, this._trans, (step, edge) => this._hover.move(this._figures.indexOf(node), step, edge));
    node.addEventListener('blur', () => this._hover.leave());
    this._byNode.set(node, frame);
    return frame;
  }

  /** Name of the metric of a figure; null for a figure over time alone. */
  private _metricOf(i: number): string | null {
    return this.feed.metricOf(i);
  }

  /** Show the chosen metrics as charts, and those with one value as tiles. */
  private _drawMetrics(): void {
    const { metrics, choice } = this.feed;
    const names = this._figures.map((_, i) => this._metricOf(i));
    const lines = names.filter((name): name is string => name !== null && metrics.facts(name).length > 1);
    const shown = new Set(choice.shown(lines));
    const tiles: [string, string][] = [];
    names.forEach((name, i) => {
      const node = this._figures[i];
      if (name !== null && node) {
        const { length, last } = metrics.facts(name);
        node.style.display = shown.has(name) ? '' : 'none';
        if (length === 1) {
          tiles.push([name, number(last)]);
        }
      }
    });
    drawTiles(this._tiles, tiles);
    this._bar.update(lines, lines.length > 0);
  }

  /** Title and value of a figure. */
  private _captionOf(i: number): [title: string, value: string] {
    const { feed, _trans: trans } = this;
    const name = this._metricOf(i);
    if (name !== null) {
      const { missing, last } = feed.metrics.facts(name);
      return [missing ? trans.__('%1 (%2 not finite)', name, missing) : name, number(last)];
    }
    const { title, note } = feed.chartOf(i);
    return [[title, note].filter(Boolean).join(', '), feed.empty.has(i) ? trans.__('n/a') : figureValue(feed, i, trans)];
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
    this._heat.update({
      title: this._trans.__('Utilization by GPU'),
      last: '',
      rows: gpus,
      cells,
      columns,
      ...timed(span[0] - start, span[1] - start, columns)
    });
  }

  private _writeAge(): void {
    const feed = this.feed;
    const age = feed.age.at(Date.now() / 1000);
    const { nodes, period } = feed.layout;
    const every = ageText(period).replace('.0 s', ' s');
    this._age.title = this._trans._n('Sampled every %2 on %1 machine', 'Sampled every %2 on %1 machines', nodes.length, every);
    const parts: string[] = [];
    if (Number.isNaN(age)) {
      parts.push(this._trans.__('no sample yet'));
    } else {
      parts.push(this._trans.__('last sample %1 ago', ageText(age)));
    }
    if (feed.paused) {
      parts.push(this._trans.__('charts paused'));
    }
    const text = parts.join(' · ');
    if (this._age.textContent !== text) {
      this._age.textContent = text;
    }
    // Three ticks late: show that the charts are not updated.
    this._age.classList.toggle('jp-mod-late', !feed.ended && age > Math.max(5, 3 * feed.layout.period));
  }

  private readonly _bar: MetricBar;
  private readonly _tiles = document.createElement('div');
  private readonly _byNode = new WeakMap<HTMLElement, FigureFrame>();
  private _frames: (FigureFrame | null)[] = [];
  private readonly _age: HTMLElement;
  private readonly _hover: Hover;
  private readonly _zoom: Zoom;
  private readonly _brush: Brush;
  private readonly _watch: IntersectionObserver;
  private readonly _more: () => void;
  private readonly _timer: ReturnType<typeof setInterval>;
  private _heat: HeatMap | null = null;
  private _figures: (HTMLElement | null)[] = [];
  private _near = false;
}

/** The moment under the pointer: a rule through all charts and every series' value at it. */
/** At most so many lines in the reading; a chart has no more lines than that. */
const MAX_VALUES = 18;

/** A mark is read that is nearer to the pointer than this part of the axis. */
const MARK_SHARE = 0.01;

export class Hover {
  /**
   * @param _node holds the charts; the reading and the rules are drawn over it
   * @param _figureNodes the charts of this view, in the order of the feed's figures
   */
  constructor(
    private readonly _feed: StreamFeedModel,
    private readonly _node: HTMLElement,
    private readonly _trans: TranslationBundle,
    private readonly _figureNodes: () => (HTMLElement | null)[]
  ) {
    this._box = document.createElement('div');
    this._box.className = 'jp-AmlRun-hover';
    this._box.hidden = true;
    this._node.append(this._box);
    this._move = event => this._at(event);
    this._leave = () => this._hide();
    // Captured: the charts' own zooming keeps some of these events to itself.
    this._node.addEventListener('pointermove', this._move, true);
    this._node.addEventListener('pointerleave', this._leave);
  }

  /** The charts have moved under the pointer. */
  refresh(): void {
    if (this._last) {
      this._at(this._last);
    }
  }

  dispose(): void {
    this._node.removeEventListener('pointermove', this._move, true);
    this._node.removeEventListener('pointerleave', this._leave);
    this._hide();
    this._box.remove();
  }

  /** Move the reading of a figure by points, or to an edge; returns the text to announce. */
  move(figure: number, step: number, edge: -1 | 0 | 1): string {
    const span = this._span(figure);
    const area = plot(this._figureNodes()[figure]);
    const times = span && this._times(figure, span);
    if (!span || !area || !times?.length) {
      return '';
    }
    const from = this._key?.figure === figure ? this._key.t : null;
    const before = from === null ? times.length - 1 : nearestIndex(times, from) + step;
    const at = edge < 0 ? 0 : edge > 0 ? times.length - 1 : Math.max(0, Math.min(times.length - 1, before));
    this._last = null;
    this._key = { figure, t: times[at] };
    return this._showAt(figure, times[at], area, span);
  }

  /** End the reading by keyboard. */
  leave(): void {
    this._key = null;
    this._hide();
  }

  /** Positions of the points of a figure that are shown. */
  private _times(figure: number, [from, to]: [number, number]): number[] {
    const metric = this._feed.metricOf(figure);
    const node = this._feed.nodes[0];
    const rows = metric === null ? node?.rows(from) : this._feed.metrics.rows(metric);
    const all = rows ? Array.from({ length: rows.length }, (_, i) => rows.t(i)) : [];
    return all.filter(t => t >= from && t <= to);
  }

  private _showAt(figure: number, t: number, area: DOMRect, span: [number, number]): string {
    const where = this._where(figure, t);
    const values = this._readings(figure, t);
    this._box.replaceChildren(...readingNodes({ where, values }));
    this._box.hidden = false;
    this._rules(this._figureNodes(), this._feed.axisOf(figure)?.metric !== null, t);
    const x = area.left + ((t - span[0]) / (span[1] - span[0])) * area.width;
    this._place({ clientX: x, clientY: area.top }, area);
    return [where, ...values.map(({ name, text }) => `${name ?? ''} ${text}`.trim())].join(', ');
  }

  private _where(figure: number, t: number): string {
    const byStep = this._feed.metricOf(figure) !== null && !this._feed.choice.byTime;
    return byStep ? this._trans.__('step %1', t) : this._time(t);
  }

  private _at(event: PointerEvent): void {
    const figures = this._figureNodes();
    const i = figures.findIndex(node => node !== null && node.contains(event.target as Node));
    const area = i < 0 ? null : plot(figures[i]);
    const span = this._span(i);
    if (!area || !span || event.clientX < area.left || event.clientX > area.right) {
      this._hide();
      return;
    }
    this._last = event;
    const share = (event.clientX - area.left) / (area.width || 1);
    const metric = this._feed.metricOf(i);
    const rows = metric === null ? null : this._feed.metrics.rows(metric);
    const under = span[0] + share * (span[1] - span[0]);
    // Of a metric its points can be read, and nothing between them.
    const t = rows?.length ? rows.t(nearest(rows, under)) : under;
    const where = this._where(i, t);
    this._box.replaceChildren(...readingNodes({ where, values: this._readings(i, t) }));
    this._box.hidden = false;
    this._rules(figures, metric !== null, t);
    this._place(event, area);
  }

  /** What a chart's x axis shows: unix seconds, or steps. */
  private _span(figure: number): [number, number] | null {
    const axis = this._feed.axisOf(figure);
    if (!axis) {
      return null;
    }
    if (axis.metric !== null) {
      const [from, to] = axis.shown;
      return to > from ? axis.shown : [from - 1, from + 1];
    }
    const domain = this._feed.get('xscale')?.domain as unknown[] | undefined;
    const [t0, t1] = [Number(domain?.[0]), Number(domain?.[1])];
    return t1 > t0 ? [t0, t1] : null;
  }

  /** Values of all lines of one chart at a moment. */
  private _readings(figure: number, t: number): IValue[] {
    const own = new Set<unknown>(this._feed.get('figures')[figure]?.get('marks') ?? []);
    const marks = this._feed.get('marks') as any[];
    const specs = (this._feed.get('specs') as unknown[]).map(specOf);
    const { unit } = this._feed.chartOf(figure);
    const span = this._span(figure) ?? [t, t];
    return marks
      .flatMap((mark, i) => (own.has(mark) && specs[i] ? this._ofMark(mark, specs[i], t, unit, span) : []))
      .slice(0, MAX_VALUES);
  }

  private _ofMark(mark: any, spec: MarkSpec, t: number, unit: string, span: [number, number]): IValue[] {
    const { layout, nodes } = this._feed;
    const labels = mark.get('labels') as string[];
    const colors = mark.get('colors') as string[];
    const colorOf = (row: number) => colors[row % Math.max(1, colors.length)] ?? 'currentColor';
    if (spec.kind === 'lines') {
      const i = layout.nodes.findIndex(node => node.node === spec.node);
      if (i < 0) {
        return [];
      }
      const rows = nodes[i].rows(this._feed.shown[0]);
      const at = nearestRow(rows, t);
      const names = layout.nodes[i].columns;
      if (spec.columns.every(column => names[column]?.endsWith('.peak'))) {
        return []; // said beside the mean
      }
      return spec.columns.map((column, row) => {
        const peak = names.indexOf(names[column]?.replace(/\.util$/, '.peak'));
        const name = labels[row] || names[column];
        if (at < 0) {
          return { name, color: colorOf(row), text: this._value(NaN, unit) };
        }
        const [low, high] = [rows.low(column, at), rows.high(column, at)];
        const mean = this._value(rows.mean(column, at), unit);
        if (peak >= 0 && peak !== column) {
          const most = this._value(rows.high(peak, at), unit);
          return { name, color: colorOf(row), text: this._trans.__('%1 (peak %2)', mean, most) };
        }
        const range = [low, high].map(value => this._value(value, unit));
        const text = high > low ? this._trans.__('%1 (%2 to %3)', mean, ...range) : mean;
        return { name, color: colorOf(row), text };
      });
    }
    if (spec.kind === 'marks') {
      const near = MARK_SHARE * (span[1] - span[0]);
      return placed(spec, this._feed.choice.byTime).flatMap(([place, text]) => (Math.abs(place - t) <= near ? [{ text }] : []));
    }
    if (spec.kind === 'band') {
      return this._ofBand(spec.field, spec.high, t, colorOf(1), unit);
    }
    const rows = spec.kind === 'metric' ? this._feed.metrics.rows(spec.name) : null;
    if (!rows || spec.kind !== 'metric' || !rows.length) {
      return [];
    }
    return [{ name: labels[0] || spec.name, color: colorOf(0), text: number(rows.mean(0, nearest(rows, t))) }];
  }

  private _ofBand(field: string, top: string, t: number, color: string, unit: string): IValue[] {
    const { layout, nodes } = this._feed;
    const all = new Tally();
    nodes.forEach((node, i) => {
      const rows = node.rows(this._feed.shown[0]);
      const at = nearestRow(rows, t);
      if (at >= 0) {
        all.add(rows, columnsOf(layout.nodes[i], field), at, columnsOf(layout.nodes[i], top));
      }
    });
    const reading = (name: string, value: number) => ({ name, color, text: this._value(value, unit) });
    return [
      reading(this._trans.__('highest'), all.count ? all.high : NaN),
      reading(this._trans.__('mean'), all.mean),
      reading(this._trans.__('lowest'), all.count ? all.low : NaN)
    ];
  }

  private _value(value: number, unit: string): string {
    if (Number.isNaN(value)) {
      return this._trans.__('n/a');
    }
    if (unit === 'MiB' || unit === 'bytes') {
      return bytes(unit === 'MiB' ? value * 1024 ** 2 : value);
    }
    return unit ? `${number(value)} ${unit}` : number(value);
  }

  private _time(t: number): string {
    const start = this._feed.layout.start || this._feed.start;
    return this._trans.__('%1 (%2)', clock(t - start), new Date(t * 1000).toLocaleTimeString());
  }

  /** A rule at `t` through all charts of the same kind. */
  private _rules(figures: (HTMLElement | null)[], metric: boolean, t: number): void {
    const outer = this._node.getBoundingClientRect();
    figures.forEach((figure, i) => {
      const axis = this._feed.axisOf(i);
      const span = axis && (axis.metric !== null) === metric ? this._span(i) : null;
      const area = span && t >= span[0] && t <= span[1] ? plot(figure) : null;
      const share = span ? (t - span[0]) / (span[1] - span[0]) : 0;
      let rule = this._lines[i];
      if (!rule) {
        rule = this._lines[i] = document.createElement('div');
        rule.className = 'jp-AmlRun-hoverRule';
        this._node.append(rule);
      }
      rule.hidden = !area;
      if (area) {
        rule.style.left = `${area.left + share * area.width - outer.left}px`;
        rule.style.top = `${area.top - outer.top}px`;
        rule.style.height = `${area.height}px`;
      }
    });
  }

  private _place(event: { clientX: number; clientY: number }, area: DOMRect): void {
    const outer = this._node.getBoundingClientRect();
    const [width, height] = [this._box.offsetWidth, this._box.offsetHeight];
    const right = event.clientX + 14 + width < outer.right;
    this._box.style.left = `${event.clientX - outer.left + (right ? 14 : -14 - width)}px`;
    const top = Math.min(event.clientY - outer.top + 10, area.bottom - outer.top - height + 20);
    this._box.style.top = `${Math.max(0, top)}px`;
  }

  private _hide(): void {
    this._last = null;
    this._box.hidden = true;
    this._lines.forEach(line => (line.hidden = true));
  }

  private readonly _box: HTMLElement;
  private readonly _lines: HTMLElement[] = [];
  private readonly _move: (event: PointerEvent) => void;
  private readonly _leave: () => void;
  private _key: { figure: number; t: number } | null = null;
  private _last: PointerEvent | null = null;
}

/** Number of the row whose `t` is nearest; the last of several. */
function nearest(rows: IRows, t: number): number {
  const after = find(rows, t);
  const next = Math.min(after, rows.length - 1);
  return after > 0 && (after >= rows.length || t - rows.t(after - 1) < rows.t(after) - t) ? after - 1 : next;
}
