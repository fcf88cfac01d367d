/** The moment under the pointer: a rule through all charts and every series' value at it. */

import { TranslationBundle } from '@jupyterlab/translation';
import { bytes, clock, number } from '../format';
import type { StreamFeedModel } from './feed';
import { find, IRows, nearestRow } from './history';
import { columnsOf, MarkSpec, specOf, unitOf } from './layout';
import { plot } from './zoom';

interface IReading {
  name: string;
  colour: string;
  text: string;
}

/** At most so many lines in the reading; a chart has no more lines than that. */
const MOST = 18;

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
    const metric = this._feed.axisOf(i)?.metric ?? null;
    const rows = metric === null ? null : this._feed.metrics.rows(metric);
    const under = span[0] + share * (span[1] - span[0]);
    // Of a metric its points can be read, and nothing between them.
    const t = rows?.length ? rows.t(nearest(rows, under)) : under;
    this._write(metric === null ? this._time(t) : this._trans.__('step %1', t), this._readings(i, t));
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
    const { shift } = this._feed;
    const [t0, t1] = [Number(domain?.[0]) / 1000 - shift, Number(domain?.[1]) / 1000 - shift];
    return t1 > t0 ? [t0, t1] : null;
  }

  /** Values of all lines of one chart at a moment. */
  private _readings(figure: number, t: number): IReading[] {
    const own = new Set<unknown>(this._feed.get('figures')[figure]?.get('marks') ?? []);
    const marks = this._feed.get('marks') as any[];
    const specs = (this._feed.get('specs') as unknown[]).map(specOf);
    return marks
      .flatMap((mark, i) => (own.has(mark) && specs[i] ? this._ofMark(mark, specs[i], t) : []))
      .slice(0, MOST);
  }

  private _ofMark(mark: any, spec: MarkSpec, t: number): IReading[] {
    const { layout, nodes } = this._feed;
    const labels = mark.get('labels') as string[];
    const colours = mark.get('colors') as string[];
    const colour = (row: number) => colours[row % Math.max(1, colours.length)] ?? 'currentColor';
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
        const unit = unitOf(layout, names[column] ?? '');
        if (at < 0) {
          return { name, colour: colour(row), text: this._value(NaN, unit) };
        }
        const [low, high] = [rows.low(column, at), rows.high(column, at)];
        const mean = this._value(rows.mean(column, at), unit);
        if (peak >= 0 && peak !== column) {
          const most = this._value(rows.high(peak, at), unit);
          return { name, colour: colour(row), text: this._trans.__('%1 (peak %2)', mean, most) };
        }
        const range = [low, high].map(value => this._value(value, unit));
        const text = high > low ? this._trans.__('%1 (%2 to %3)', mean, ...range) : mean;
        return { name, colour: colour(row), text };
      });
    }
    if (spec.kind === 'band') {
      return this._ofBand(spec.field, spec.high, t, colour(1));
    }
    const rows = spec.kind === 'metric' ? this._feed.metrics.rows(spec.name) : null;
    if (!rows || spec.kind !== 'metric' || !rows.length) {
      return [];
    }
    return [{ name: labels[0] || spec.name, colour: colour(0), text: number(rows.mean(0, nearest(rows, t))) }];
  }

  private _ofBand(field: string, top: string, t: number, colour: string): IReading[] {
    let [low, high, sum, count] = [Infinity, -Infinity, 0, 0];
    const { layout, nodes } = this._feed;
    nodes.forEach((node, i) => {
      const rows = node.rows(this._feed.shown[0]);
      const at = nearestRow(rows, t);
      const tops = columnsOf(layout.nodes[i], top);
      (at < 0 ? [] : columnsOf(layout.nodes[i], field)).forEach((column, k) => {
        const mean = rows.mean(column, at);
        if (!Number.isNaN(mean)) {
          low = Math.min(low, rows.low(column, at));
          const most = rows.high(tops[k] ?? column, at);
          high = Math.max(high, rows.high(column, at), Number.isNaN(most) ? -Infinity : most);
          sum += mean;
          count += 1;
        }
      });
    });
    const unit = layout.units[field] ?? '';
    const reading = (name: string, value: number) => ({ name, colour, text: this._value(value, unit) });
    return [
      reading(this._trans.__('highest'), count ? high : NaN),
      reading(this._trans.__('mean'), count ? sum / count : NaN),
      reading(this._trans.__('lowest'), count ? low : NaN)
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

  private _write(where: string, readings: IReading[]): void {
    const head = document.createElement('div');
    head.className = 'jp-AmlRun-hoverTime';
    head.textContent = where;
    const lines = readings.map(({ name, colour, text }) => {
      const line = document.createElement('div');
      const key = document.createElement('span');
      key.className = 'jp-AmlRun-hoverKey';
      key.style.background = colour;
      const value = document.createElement('b');
      value.textContent = text;
      line.append(key, `${name} `, value);
      return line;
    });
    this._box.replaceChildren(head, ...lines);
    this._box.hidden = false;
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

  private _place(event: PointerEvent, area: DOMRect): void {
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
  private _last: PointerEvent | null = null;
}

/** Number of the row whose `t` is nearest; the last of several. */
function nearest(rows: IRows, t: number): number {
  const after = find(rows, t);
  const next = Math.min(after, rows.length - 1);
  return after > 0 && (after >= rows.length || t - rows.t(after - 1) < rows.t(after) - t) ? after - 1 : next;
}
