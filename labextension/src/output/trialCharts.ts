/** Charts of a sweep's metric: the best value so far by trial, and the curves of single trials by step. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { ChartFrame, IChartSize, IReadable, IReading, ISpot, IValue, svg } from '../charts/chart';
import { COLORS } from '../charts/palette';
import { extent, linear, metricAxis, nearest, path, Scale, stepAxis } from '../charts/scale';
import { number } from '../format';
import type { ISweepBoard, ITrialAxis } from '../protocol';
import { bestSoFar, hasFailed, isLive, ITrial, paramText, spreads, STOPPED } from '../sweep';

/** A trial under the pointer, by its position; null for none. */
export type Hovered = (at: number | null) => void;

const SIZE: IChartSize = { height: 196, left: 52, right: 14, top: 8, bottom: 22 };

/** Parameters in the box at the pointer. */
const MAX_READ_PARAMS = 8;

/** Drawing with axes: the metric upwards, whole numbers to the right. */
class TrialPlot {
  constructor(
    private readonly _trans: TranslationBundle,
    chart: IReadable,
    name: string,
    redraw: () => void
  ) {
    this._svg = svg('svg', { height: SIZE.height, role: 'img' });
    this._axes = svg('g', { class: 'jp-AmlRun-axes' }, this._svg);
    this.data = svg('g', {}, this._svg);
    this.marks = svg('g', { class: 'jp-AmlSweep-marks' }, this._svg);
    this.frame = new ChartFrame(_trans, chart, this._svg, `jp-AmlSweep-${name}`);
    this.node = this.frame.node;
    this.node.style.setProperty('--jp-amlrun-plot-top', `${SIZE.top}px`);
    this.node.style.setProperty('--jp-amlrun-plot-bottom', `${SIZE.bottom}px`);
    this._resize = new ResizeObserver(() => {
      const width = Math.round(this.node.clientWidth);
      if (width && width !== this._width) {
        this._width = width;
        redraw();
      }
    });
    this._resize.observe(this.node);
  }

  readonly node: HTMLElement;
  readonly frame: ChartFrame;
  readonly data: SVGElement;
  readonly marks: SVGElement;
  readonly base = SIZE.height - SIZE.bottom;
  sx: Scale | null = null;
  sy: Scale | null = null;
  right = 0;

  /** Draw the axes; false where there is no room or nothing to draw. */
  scale(x: [number, number], y: [number, number] | null, log: boolean, description: string): boolean {
    this.sx = this.sy = null;
    this._axes.replaceChildren();
    this._svg.setAttribute('aria-label', description);
    if (!this._width) {
      return false;
    }
    this._svg.setAttribute('width', String(this._width));
    const { left, top } = SIZE;
    const right = (this.right = this._width - SIZE.right);
    const steps = stepAxis(...x);
    this.sx = linear(steps.min, steps.max, left, right);
    steps.ticks.forEach((tick, i) => {
      const at = this.sx!(tick);
      const anchor = at > right - 8 ? 'end' : 'middle';
      svg('text', { x: at, y: SIZE.height - 6, 'text-anchor': anchor }, this._axes).textContent = steps.labels[i];
    });
    svg('line', { class: 'jp-mod-base', x1: left, x2: right, y1: this.base, y2: this.base }, this._axes);
    if (!y) {
      const at = { class: 'jp-AmlSweep-noValues', x: (left + right) / 2, y: (top + this.base) / 2, 'text-anchor': 'middle' };
      svg('text', at, this._axes).textContent = this._trans.__('No values yet');
      return true;
    }
    const axis = metricAxis(y[0], y[1], log);
    this.sy = linear(axis.min, axis.max, this.base, top);
    axis.ticks.forEach((tick, i) => {
      const at = this.sy!(tick);
      svg('line', { x1: left, x2: right, y1: at, y2: at }, this._axes);
      svg('text', { x: left - 6, y: Math.max(8, at + 3), 'text-anchor': 'end' }, this._axes).textContent = axis.labels[i];
    });
    return true;
  }

  dispose(): void {
    this._resize.disconnect();
  }

  private readonly _svg: SVGElement;
  private readonly _axes: SVGElement;
  private readonly _resize: ResizeObserver;
  private _width = 0;
}

const powers = (values: readonly (number | null)[], log: boolean): (number | null)[] =>
  log ? values.map(value => (value !== null && value > 0 ? Math.log10(value) : null)) : [...values];

/** The lines of a box about a trial. */
function readingOf(trial: ITrial, values: readonly IValue[]): IReading {
  const params = Object.entries(trial.params);
  const shown = params.slice(0, MAX_READ_PARAMS).map(([name, value]) => ({ name: `${name}:`, text: paramText(value) }));
  return { where: '', values: [...values, ...shown, ...(params.length > shown.length ? [{ text: '…' }] : [])] };
}

/** A point for each trial, and the best completed one so far. */
export class BestChart implements IReadable {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _hovered: Hovered
  ) {
    this._plot = new TrialPlot(_trans, this, 'bestChart', () => this._draw());
    this.node = this._plot.node;
    const key = document.createElement('span');
    key.className = 'jp-AmlSweep-key';
    const kinds = [
      ['completed', _trans.__('completed')],
      ['stopped', _trans.__('stopped')],
      ['failed', _trans.__('failed')]
    ];
    for (const [kind, text] of kinds) {
      const item = document.createElement('span');
      item.dataset.kind = kind;
      item.textContent = text;
      key.append(item);
    }
    this._plot.frame.caption.append(key);
  }

  readonly node: HTMLElement;
  readonly rows = 1;

  get columns(): number {
    return this._trials.length;
  }

  /** @param selected by position; null for all */
  update(board: ISweepBoard, trials: readonly ITrial[], selected: readonly boolean[] | null, format: (value: number) => string): void {
    this._board = board;
    this._trials = trials;
    this._selected = selected;
    this._format = format;
    this._axis = board.axes[board.axes.length - 1] ?? null;
    this._log = this._axis?.kind === 'log';
    this._best = bestSoFar(trials, board.goal);
    this._draw();
  }

  /** Mark the trial that the pointer is on elsewhere. */
  highlight(at: number | null): void {
    this._highlighted = at;
    this._mark();
  }

  dispose(): void {
    this._plot.dispose();
  }

  spotAt(x: number, y: number): ISpot | null {
    const { sx } = this._plot;
    let [column, least] = [-1, Infinity];
    this._trials.forEach((trial, i) => {
      const place = this._placeOf(trial);
      if (sx && place) {
        const distance = (place[0] - x) ** 2 + 0.2 * (place[1] - y) ** 2;
        [column, least] = distance < least ? [i, distance] : [column, least];
      }
    });
    return column < 0 ? null : { column, row: 0 };
  }

  placeOf({ column }: ISpot): [number, number] {
    return [this._plot.sx?.(this._trials[column].number) ?? 0, SIZE.top];
  }

  read({ column }: ISpot): IReading | null {
    const trial = this._trials[column];
    const best = this._best[column];
    const values: IValue[] = [{ name: this._trans.__('trial %1', trial.number), text: trial.state }];
    if (trial.value !== null) {
      values.push({ name: `${this._board?.metric}:`, text: this._format(trial.value) });
    }
    if (best !== null && best !== trial.value) {
      values.push({ name: this._trans.__('best so far:'), text: this._format(best) });
    }
    return readingOf(trial, values);
  }

  mark(spot: ISpot | null): void {
    const at = spot ? (this._trials[spot.column]?.at ?? null) : null;
    if (at !== this._own) {
      this._own = at;
      this._hovered(at);
    }
  }

  private _placeOf(trial: ITrial): [number, number] | null {
    const { sx, sy, base } = this._plot;
    if (!sx) {
      return null;
    }
    if (hasFailed(trial)) {
      return [sx(trial.number), base - 5];
    }
    const [value] = powers([trial.value], this._log);
    return value === null || !sy ? null : [sx(trial.number), sy(this._inside(value))];
  }

  /** A value, or the end of the axis before it: those that diverged are there. */
  private _inside(value: number): number {
    return this._axis ? Math.max(this._axis.low, Math.min(this._axis.high, value)) : value;
  }

  private _draw(): void {
    const board = this._board;
    if (!board) {
      return;
    }
    const trans = this._trans;
    const { data } = this._plot;
    const last = this._best[this._best.length - 1] ?? null;
    const values = powers(this._trials.filter(trial => !hasFailed(trial)).map(({ value }) => value), this._log);
    const drawn = values.map(value => value && this._inside(value));
    const numbers = this._trials.map(trial => trial.number);
    const x: [number, number] = [Math.min(...numbers, 1), Math.max(...numbers, 2)];
    const text = last === null ? '' : this._format(last);
    const description = trans.__('%1 by trial: %2 trials, best %3', board.metric, this._trials.length, text || trans.__('not known yet'));
    data.replaceChildren();
    data.classList.toggle('jp-mod-many', this._trials.length > 150);
    if (this._plot.scale(x, extent(drawn), this._log, description)) {
      this._drawTrials(data);
    }
    // The best value itself is in the summary.
    this._plot.frame.update(trans.__('%1 by trial', board.metric), '');
    this._mark();
  }

  private _drawTrials(data: SVGElement): void {
    const { sx, sy } = this._plot;
    const groups = new Map<string, string>();
    for (const trial of this._trials) {
      const place = this._placeOf(trial);
      if (!place) {
        continue;
      }
      const [x, y] = place.map(value => Number(value.toFixed(1)));
      const kind = hasFailed(trial) ? 'failed' : trial.state === STOPPED || trial.state === 'canceled' ? 'stopped' : isLive(trial) ? 'live' : 'completed';
      const dim = this._selected && !this._selected[trial.at] ? ' jp-mod-dim' : '';
      const shape = kind === 'failed' ? `M${x - 3},${y - 3}l6,6m-6,0l6,-6` : `M${x},${y}h0.01`;
      groups.set(kind + dim, (groups.get(kind + dim) ?? '') + shape);
    }
    for (const kind of ['stopped jp-mod-dim', 'completed jp-mod-dim', 'live jp-mod-dim', 'failed jp-mod-dim', 'stopped', 'failed', 'live', 'completed']) {
      if (groups.has(kind)) {
        svg('path', { class: `jp-AmlSweep-dots jp-AmlSweep-${kind}`, d: groups.get(kind)! }, data);
      }
    }
    if (sx && sy) {
      let line = '';
      powers(this._best, this._log).forEach((value, i) => {
        if (value !== null) {
          line += line ? `H${sx(this._trials[i].number).toFixed(1)}V${sy(this._inside(value)).toFixed(1)}` : `M${sx(this._trials[i].number).toFixed(1)},${sy(this._inside(value)).toFixed(1)}`;
        }
      });
      if (line) {
        svg('path', { class: 'jp-AmlSweep-step', d: `${line}H${this._plot.right.toFixed(1)}` }, data);
      }
    }
  }

  private _mark(): void {
    const { marks } = this._plot;
    marks.replaceChildren();
    for (const [at, name] of [[this._board?.best ?? null, 'bestMark'], [this._highlighted, 'hoverMark']] as const) {
      const trial = at === null ? undefined : this._trials[at];
      const place = trial && this._placeOf(trial);
      if (place) {
        svg('circle', { class: `jp-AmlSweep-${name}`, cx: place[0], cy: place[1], r: 5.5 }, marks);
      }
    }
  }

  private readonly _plot: TrialPlot;
  private _board: ISweepBoard | null = null;
  private _trials: readonly ITrial[] = [];
  private _best: readonly (number | null)[] = [];
  private _selected: readonly boolean[] | null = null;
  private _format: (value: number) => string = number;
  private _axis: ITrialAxis | null = null;
  private _log = false;
  private _highlighted: number | null = null;
  private _own: number | null = null;
}

interface ICurve {
  trial: ITrial;
  step: readonly number[];
  value: readonly (number | null)[];
  /** As it is drawn: a power of ten on a logarithmic axis. */
  y: readonly (number | null)[];
  line: SVGElement;
}

/** The metric of each trial by step. */
export class CurvesChart implements IReadable {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _hovered: Hovered
  ) {
    this._plot = new TrialPlot(_trans, this, 'curvesChart', () => this._draw());
    this.node = this._plot.node;
    this._over = svg('path', { class: 'jp-AmlSweep-curve jp-mod-over', d: '' }, this._plot.marks);
  }

  readonly node: HTMLElement;

  get columns(): number {
    return this._steps.length;
  }

  get rows(): number {
    return this._curves.length;
  }

  update(board: ISweepBoard, trials: readonly ITrial[], selected: readonly boolean[] | null, format: (value: number) => string): void {
    this._board = board;
    this._format = format;
    const known = board.curves.filter(curve => curve.value.some(value => value !== null));
    this._log = spreads(known.flatMap(curve => curve.value));
    const old = new Map(this._curves.map(curve => [curve.trial.number, curve.line]));
    // Drawn from the least to the most important.
    const rank = (trial: ITrial) => (trial.best ? 3 : isLive(trial) ? 2 : trial.state === STOPPED ? 0 : 1);
    this._curves = known
      .map(({ trial, step, value }) => ({
        trial: trials[trial],
        step,
        value,
        y: powers(value, this._log),
        line: old.get(trials[trial].number) ?? svg('path', { fill: 'none' })
      }))
      .sort((a, b) => rank(a.trial) - rank(b.trial) || a.trial.number - b.trial.number);
    this._steps = [...new Set(this._curves.flatMap(curve => curve.step))].sort((a, b) => a - b);
    this._plot.data.replaceChildren(...this._curves.map(({ line }) => line));
    let running = 0;
    for (const { trial, line } of this._curves) {
      const kind = trial.best ? 'best' : isLive(trial) ? 'live' : trial.state === STOPPED ? 'stopped' : hasFailed(trial) ? 'failed' : 'ended';
      const isDim = selected !== null && !selected[trial.at];
      line.setAttribute('class', `jp-AmlSweep-curve jp-mod-${kind}${isDim ? ' jp-mod-dim' : ''}${selected && !isDim ? ' jp-mod-selected' : ''}`);
      line.setAttribute('data-trial', String(trial.number));
      if (kind === 'live') {
        // Green is the best.
        line.setAttribute('data-color', String([0, 1, 3, 4, 5, 6][running++ % 6] % COLORS));
      } else {
        line.removeAttribute('data-color');
      }
    }
    this._draw();
  }

  highlight(at: number | null): void {
    const { sx, sy } = this._plot;
    const curve = at === null ? undefined : this._curves.find(({ trial }) => trial.at === at);
    this._highlighted = at;
    this.node.classList.toggle('jp-mod-hovering', curve !== undefined);
    this._over.setAttribute('d', curve && sx && sy ? path(curve.step, curve.y, sx, sy) : '');
  }

  dispose(): void {
    this._plot.dispose();
  }

  spotAt(x: number, y: number): ISpot | null {
    const { sx, sy } = this._plot;
    let [found, least]: [ISpot | null, number] = [null, Infinity];
    if (!sx || !sy || !this._steps.length) {
      return null;
    }
    const span = this._steps[this._steps.length - 1] - this._steps[0] || 1;
    const at = this._steps[0] + ((x - sx(this._steps[0])) / (sx(this._steps[0] + span) - sx(this._steps[0]))) * span;
    this._curves.forEach((curve, row) => {
      const i = nearest(curve.step, at);
      const value = i < 0 ? null : curve.y[i];
      if (value !== null) {
        const distance = (sx(curve.step[i]) - x) ** 2 + (sy(value) - y) ** 2;
        if (distance < least) {
          [found, least] = [{ column: nearest(this._steps, curve.step[i]), row }, distance];
        }
      }
    });
    return found;
  }

  placeOf({ column }: ISpot): [number, number] {
    return [this._plot.sx?.(this._steps[column]) ?? 0, SIZE.top];
  }

  read({ column, row }: ISpot): IReading | null {
    const { trial, step, value } = this._curves[row];
    const i = nearest(step, this._steps[column]);
    const shown = i < 0 ? null : value[i];
    const values: IValue[] = [
      { name: this._trans.__('trial %1', trial.number), text: trial.state },
      { name: this._trans.__('step %1:', i < 0 ? '' : step[i]), text: shown === null ? this._trans.__('n/a') : this._format(shown) }
    ];
    return readingOf(trial, values);
  }

  mark(spot: ISpot | null): void {
    const at = spot ? (this._curves[spot.row]?.trial.at ?? null) : null;
    if (at !== this._own) {
      this._own = at;
      this._hovered(at);
    }
  }

  private _draw(): void {
    const board = this._board;
    if (!board) {
      return;
    }
    const trans = this._trans;
    const range = extent(this._curves.flatMap(curve => curve.y));
    const ends: [number, number] = [this._steps[0] ?? 0, this._steps[this._steps.length - 1] ?? 1];
    const isDrawn = this._plot.scale(ends, range, this._log, trans.__('%1 by step, of %2 trials', board.metric, this._curves.length));
    const { sx, sy } = this._plot;
    for (const { line, step, y } of this._curves) {
      line.setAttribute('d', isDrawn && sx && sy ? path(step, y, sx, sy) : '');
    }
    const total = board.number.length + board.hidden;
    const count = this._curves.length < total ? trans.__('%1 of %2 trials', this._curves.length, total) : '';
    this._plot.frame.update(trans.__('%1 by step', board.metric), count);
    this.highlight(this._highlighted);
  }

  private readonly _plot: TrialPlot;
  private readonly _over: SVGElement;
  private _board: ISweepBoard | null = null;
  private _curves: ICurve[] = [];
  private _steps: number[] = [];
  private _format: (value: number) => string = number;
  private _log = false;
  private _highlighted: number | null = null;
  private _own: number | null = null;
}
