/** The browser's end of a feed: ticks come in, the marks of the charts are redrawn, nothing goes back. */

import { ISerializers, unpack_models, WidgetModel } from '@jupyter-widgets/base';
import { choiceOf, drawn as drawnValues, MetricChoice } from '../charts/metricChoice';
import { DrawGate } from '../charts/drawGate';
import { IPoints, ITicks, NodeHistory } from '../charts/series';
import { Controls, IScaleModel, markTime, ShownSpan, ShownSteps, Span, untold, YRanges } from './axes';
import type { IChart } from '../protocol';
import { complete } from '../untyped';
import { addFeed, IFeed, ISite, removeFeed } from './feeds';
import { IReadings, newest } from './gpuTable';
import {
  dashed,
  decode,
  Frame,
  fromState,
  hasLone,
  ILayout,
  IStateSnapshot,
  layoutOf,
  MarkSpec,
  MetricStore,
  pointsOf,
  SampleAge,
  specOf,
  takeReadings
} from './frames';

/** Charts lower than this (CSS pixels) have two ticks on their y axis. */
const LOW_HEIGHT = 100;

/** Beginning of the key of a metric's chart. */
const METRIC = 'metric ';

/** Milliseconds that a new point of a metric waits to be drawn with a tick. */
const METRIC_DELAY_MS = 300;

/** Ticks after a gap wait this long for the missing ones, which were requested. */
const GAP_TIMEOUT_MS = 10000;

/** The x axis of a chart: its visible and its possible range, in unix seconds or, for a metric by step, in steps. */
export interface IChartAxis {
  /** of a metric; null for time */
  metric: string | null;
  shown: Span;
  all: Span;
}

interface IFeedSite extends ISite {
  /** the marks have new points */
  drawn(): void;
  /** the tables have new readings */
  tabulate(): void;
}

type MakeSite = (feed: StreamFeedModel) => Promise<ISite>;

export class StreamFeedModel extends WidgetModel implements IFeed {
  /** Makes the views; set by the plugin, which knows the language. */
  static makeSite: MakeSite | null = null;

  static serializers: ISerializers = {
    ...WidgetModel.serializers,
    ...Object.fromEntries(
      ['root', 'xscale', 'window', 'view', 'pause', 'follow', 'status', 'table', 'figures', 'marks'].map(name => [
        name,
        { deserialize: unpack_models as any }
      ])
    ),
    // The record has everything that a saved notebook needs.
    snapshot: { serialize: () => null }
  };

  defaults(): any {
    return {
      ...super.defaults(),
      _model_name: 'StreamFeedModel',
      _model_module: 'jupyter-amltrain',
      _model_module_version: '^0.1.0',
      feed: '',
      handle: '',
      root: null,
      xscale: null,
      window: null,
      view: null,
      pause: null,
      follow: null,
      status: null,
      table: null,
      figures: [],
      marks: [],
      specs: [],
      charts: [],
      layout: {},
      rate: 4,
      done: false,
      heat: false,
      snapshot: null
    };
  }

  // Backbone calls this from the constructor: class field initializers would run after it and wipe it all.
  initialize(attributes: any, options: any): void {
    super.initialize(attributes, options);
    this.layout = layoutOf(this.get('layout'));
    this.span = new ShownSpan();
    this.age = new SampleAge();
    this.metrics = new MetricStore();
    this.steps = new ShownSteps(() => this.metrics);
    this.sites = new Set();
    this._ranges = new YRanges();
    this.revision = 0;
    this.stats = { frames: 0, draws: 0, gaps: 0, snapshots: 0 };
    this.empty = new Set();
    this.readings = null;
    this.onGap = null;
    this.onView = null;
    this._begin();
    this._gate = new DrawGate(
      () => this._draw(),
      () => this._seen(),
      () => this.get('rate') || 4
    );
    this._look = () => this._gate.look();
    document.addEventListener('visibilitychange', this._look);
    this.on('msg:custom', this._onMessage, this);
    this.on('change:snapshot', () => this._load(fromState(this.get('snapshot'))));
    this.on('change:specs change:marks', () => this._gate.dirty());
    this.on('change:layout', () => {
      this.layout = layoutOf(this.get('layout'));
      this._begin();
      this.onGap?.();
    });
    this.on('change:done', () => {
      this.revision += 1;
      this._gate.force();
    });
    const table = this.get('table') as WidgetModel | null;
    if (table) {
      // New HTML has newer readings.
      this.listenTo(table, 'change:value', () => (this.readings = null));
    }
    const view = this.get('view') as WidgetModel | null;
    if (view) {
      this.listenTo(view, 'change:index', () => this.onView?.(this.layout.views[view.get('index')] ?? ''));
    }
    this.choice = choiceOf(this.get('handle'));
    this._chosen = () => {
      this.steps.reset();
      this._gate.force();
    };
    this.choice.changed.connect(this._chosen);
    this._controls = new Controls(this, () => this._gate.force());
    this._load(fromState(this.get('snapshot')));
    addFeed(this);
  }

  layout!: ILayout;
  nodes!: NodeHistory[];
  metrics!: MetricStore;
  span!: ShownSpan;
  steps!: ShownSteps;
  age!: SampleAge;
  sites!: Set<IFeedSite>;
  /** Readings of the tables that are newer than their HTML. */
  readings!: IReadings | null;
  stats!: { frames: number; draws: number; gaps: number; snapshots: number };
  /** Numbers of the figures without a value. */
  empty!: ReadonlySet<number>;
  onGap!: (() => void) | null;
  onView!: ((view: string) => void) | null;
  revision!: number;

  /** How the metrics are charted. */
  choice!: MetricChoice;

  get feedId(): string {
    return this.get('feed') as string;
  }

  get ended(): boolean {
    return this.get('done') === true;
  }

  get paused(): boolean {
    return this.get('pause')?.get('value') === true;
  }

  get seen(): number[] {
    return this.nodes.map(node => node.ring.next);
  }

  /** Unix seconds of the newest tick of any node; NaN before the first. */
  get newest(): number {
    return this.nodes.reduce((t, node) => (node.last > t || Number.isNaN(t) ? node.last : t), NaN);
  }

  get start(): number {
    return this.nodes.reduce((t, node) => (node.start < t || Number.isNaN(t) ? node.start : t), NaN);
  }

  /** What the charts show at this moment (unix seconds). */
  get shown(): Span {
    return this.span.at(this.start, this._controls?.held ?? this.newest);
  }

  /** What a figure shows. */
  chartOf(figure: number): IChart {
    return complete<IChart>('IChart', (this.get('charts') as unknown[])[figure]);
  }

  /** Name of the metric that a figure charts; null for none. */
  metricOf(figure: number): string | null {
    const { key } = this.chartOf(figure);
    return key.startsWith(METRIC) ? key.slice(METRIC.length) : null;
  }

  /** The x axis of one of the figures; null while it has nothing to show. */
  axisOf(figure: number): IChartAxis | null {
    const name = this.metricOf(figure);
    if (name !== null) {
      const [shown, all] = [this.steps.shown(name), this.steps.all(name)];
      return shown && all ? { metric: name, shown, all } : null;
    }
    return (this.get('figures')[figure]?.get('marks') ?? []).length && this.newest > this.start
      ? { metric: null, shown: this.shown, all: [this.start, this.newest] }
      : null;
  }

  /** A person has zoomed or panned a chart. Nothing of it is sent to the kernel. */
  choose({ metric }: IChartAxis, span: Span): void {
    if (metric === null) {
      this._controls.choose(span);
    } else {
      this._controls.chooseSteps(metric, span);
      (this.get('marks') as any[]).forEach((mark, i) => {
        const spec = specOf((this.get('specs') as unknown[])[i]);
        if (spec.kind === 'metric' && spec.name === metric) {
          this._applySteps(spec.name, mark);
        }
      });
    }
  }

  onLost(callback: () => void): void {
    this.once('destroy comm:close', callback);
    this.on('comm_live_update', () => this.comm_live || callback());
  }

  createSite(): Promise<ISite> {
    return StreamFeedModel.makeSite ? StreamFeedModel.makeSite(this) : Promise.reject(new Error('no view'));
  }

  addSite(site: IFeedSite): void {
    this.sites.add(site);
    this._gate.force();
  }

  /** What is on the screen has changed. */
  look(): void {
    this._gate.look();
  }

  close(commClosed = false): Promise<void> {
    document.removeEventListener('visibilitychange', this._look);
    this._gate.dispose();
    this.choice.changed.disconnect(this._chosen);
    removeFeed(this);
    return super.close(commClosed);
  }

  /** Nothing is known yet of the nodes that the layout names. */
  private _begin(): void {
    const { nodes, capacity, buckets, period } = this.layout;
    this.nodes = nodes.map(node => new NodeHistory(node.columns.length, capacity, buckets, period));
    this._gapSince = nodes.map(() => 0);
  }

  private _onMessage(content: any, buffers: any[]): void {
    let frame: Frame | null = null;
    try {
      const columns = (node: number) => this.layout.nodes.find(other => other.node === node)?.columns.length ?? 0;
      const [readings, rest] = takeReadings(content ?? {}, buffers ?? []);
      frame = decode(content ?? {}, rest, columns);
      if (readings) {
        this.readings = newest(this.readings, readings);
        this.sites.forEach(site => site.tabulate());
      }
    } catch (error) {
      console.error('jupyter-amltrain: a message of a feed could not be read', error);
    }
    if (frame?.kind === 'snapshot') {
      this._load(frame);
    } else if (frame?.kind === 'metrics') {
      this.metrics.take(frame);
      // With the next tick, if it is not far: each drawing costs.
      this._changed(METRIC_DELAY_MS);
    } else if (frame?.kind === 'changed') {
      this.revision += 1;
    } else if (frame?.kind === 'ticks') {
      this.stats.frames += 1;
      frame.parts.forEach(ticks => this._take(ticks));
    }
  }

  private _load(snapshot: IStateSnapshot | null): void {
    if (!snapshot) {
      return;
    }
    for (const part of snapshot.nodes) {
      const i = this.layout.nodes.findIndex(node => node.node === part.node);
      // One that is older than what has been streamed takes nothing away.
      if (i >= 0 && part.next >= this.nodes[i].ring.next) {
        this.nodes[i].load(part);
        this._gapSince[i] = 0;
      }
    }
    this.stats.snapshots += 1;
    if (Number.isFinite(this.newest)) {
      this.age.arrived(this.newest, Date.now() / 1000);
    }
    // Seen or not: a view that is made or scrolled to later starts with the whole picture.
    if (!this.paused) {
      this._gate.force();
    }
  }

  private _take(ticks: ITicks): void {
    const i = this.layout.nodes.findIndex(node => node.node === ticks.node);
    if (i < 0) {
      return;
    }
    const now = Date.now();
    const waited = this._gapSince[i] !== 0 && now - this._gapSince[i] > GAP_TIMEOUT_MS;
    if (!this.nodes[i].take(ticks, waited)) {
      this.stats.gaps += 1;
      this._gapSince[i] = this._gapSince[i] || now;
      this.onGap?.();
      return;
    }
    this._gapSince[i] = 0;
    if (ticks.count) {
      this.age.arrived(ticks.t[ticks.count - 1], now / 1000);
    }
    this._changed();
  }

  private _changed(within = 0): void {
    const { chosen } = this.span;
    const past = chosen !== null && chosen[1] + 2 * this.layout.period < this.newest;
    if (!this.paused && !past) {
      this._gate.dirty(within);
    }
  }

  private _seen(): boolean {
    return !document.hidden && [...this.sites].some(site => site.onScreen);
  }

  /** `set_state`, not `set`: as if it came from the kernel, so the points are never sent there. */
  private _draw(): void {
    const shown = this.shown;
    this.stats.draws += 1;
    const marks = this.get('marks') as any[];
    const specs = (this.get('specs') as unknown[]).map(specOf);
    const drawn = new Map<any, [MarkSpec, IPoints]>();
    const { choice } = this;
    this.metrics.byTime = choice.byTime;
    marks.forEach((mark, i) => {
      const spec = specs[i];
      const span = spec?.kind === 'metric' ? this.steps.shown(spec.name) : shown;
      const points = mark && spec && span ? pointsOf(this, spec, span) : null;
      if (points && spec.kind === 'metric' && (choice.log || choice.smoothing)) {
        points.y = points.y.map(row => Float32Array.from(drawnValues(row, choice)));
      }
      if (points) {
        drawn.set(mark, [spec, isMetric(spec) ? points : dashed(points, shown[1] - shown[0])]);
      }
    });
    const charts = new Map((this.get('figures') as any[]).flatMap((figure, i) => {
      const chart = this.chartOf(i);
      return ((figure?.get('marks') ?? []) as unknown[]).map((mark): [unknown, IChart] => [mark, chart]);
    }));
    // A dirty mark does not redraw for an axis that moves: it gets its points right after, if they are others.
    drawn.forEach(([spec, { y }], mark) => {
      mark.dirty = !STILL.has(spec.kind);
      const chart = charts.get(mark);
      if (chart && !STILL.has(spec.kind)) {
        const metric = isMetric(spec);
        const low = chart.height < LOW_HEIGHT;
        this._ranges.add(mark.get('scales')?.y, y, { metric, unit: chart.unit, log: metric && choice.log, fixed: chart.y, low });
      }
      if (spec.kind === 'metric') {
        this._applySteps(spec.name, mark);
      }
    });
    this._controls.move(shown);
    this._axes(this.get('xscale')).forEach(axis => markTime(axis, shown, this.start));
    this._ranges.apply(scale => this._axes(scale)[0]);
    this.empty = this._emptyFigures(drawn);
    for (const [mark, [spec, points]] of drawn) {
      const { x, y } = points;
      if (isMetric(spec)) {
        // A line through one value has no length.
        mark.set_state({ x, y, marker: hasLone(points) ? 'circle' : null });
      } else {
        mark.set_state({ x, y });
      }
      mark.dirty = false;
    }
    this.sites.forEach(site => site.drawn());
  }

  private _applySteps(name: string, mark: any): void {
    const scale = (mark.get('scales')?.x ?? null) as IScaleModel | null;
    this.steps.apply(name, scale, this._axes(scale)[0], this.choice.byTime ? this.start : null);
  }

  /** The axes that show a scale. */
  private _axes(scale: IScaleModel | null): IScaleModel[] {
    const axes = (this.get('figures') as any[]).flatMap(figure => (figure?.get('axes') ?? []) as any[]);
    return scale ? axes.filter(axis => axis?.get('scale') === scale) : [];
  }

  /** Figures whose lines have times, but no value at any of them. */
  private _emptyFigures(drawn: ReadonlyMap<unknown, readonly [MarkSpec, IPoints]>): ReadonlySet<number> {
    const empty = new Set<number>();
    (this.get('figures') as any[]).forEach((figure, i) => {
      const own = ((figure?.get('marks') ?? []) as unknown[])
        .map(mark => drawn.get(mark))
        .filter(found => found !== undefined && !STILL.has(found[0].kind));
      if (own.length && own.every(found => found && untold(found[1]))) {
        empty.add(i);
      }
    });
    return empty;
  }

  private _controls!: Controls;
  private _gate!: DrawGate;
  private _ranges!: YRanges;
  private _chosen!: () => void;
  private _gapSince!: number[];
  private _look!: () => void;
}

/** Kinds of marks without values of the run. */
const STILL: ReadonlySet<MarkSpec['kind']> = new Set<MarkSpec['kind']>(['span', 'marks', 'static']);

function isMetric(spec: MarkSpec): boolean {
  return spec.kind === 'metric';
}
