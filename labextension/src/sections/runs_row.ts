/** One row of the list, used again for another run when the list is scrolled. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { number } from '../format';
import { isLive } from '../kernel/rows';
import type { IRunRow } from '../protocol';
import { element, say } from './dom';
import { attention, progressParts, sparkPoints, spoken, stateWord, when } from './runs_text';

/** Pixels; the same in runs.css. */
export const ROW_HEIGHT = 44;
const SPARK_WIDTH = 48;
const SPARK_HEIGHT = 16;
const SVG = 'http://www.w3.org/2000/svg';

/** Words that are cut where there is no room, and a number that never is. */
class Figure {
  constructor(name: string) {
    this.node = element('span', name);
    this.words = element('span', `${name}Caption jp-AmlRuns-caption`);
    this._number = element('span', 'jp-AmlRuns-number');
    this.node.append(this.words, ' ', this._number);
  }

  readonly node: HTMLElement;
  readonly words: HTMLElement;

  update(words: string, value: string): void {
    say(this.words, words);
    say(this._number, value);
  }

  private readonly _number: HTMLElement;
}

export class RowView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = element('li', 'jp-AmlRuns-row');
    this.node.setAttribute('role', 'option');
    this._dot = element('span', 'jp-AmlRuns-dot');
    this._name = element('span', 'jp-AmlRuns-name');
    this._target = element('span', 'jp-AmlRuns-target');
    this._when = element('span', 'jp-AmlRuns-when');
    this._progress = new Figure('jp-AmlRuns-progress');
    this._metric = new Figure('jp-AmlRuns-metric');
    this._spark = document.createElementNS(SVG, 'svg');
    this._spark.setAttribute('class', 'jp-AmlRuns-spark');
    this._spark.setAttribute('width', String(SPARK_WIDTH));
    this._spark.setAttribute('height', String(SPARK_HEIGHT));
    // Narrower where numbers need its room.
    this._spark.setAttribute('viewBox', `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`);
    this._spark.setAttribute('preserveAspectRatio', 'none');
    this._spark.setAttribute('aria-hidden', 'true');
    this._spark.setAttribute('hidden', '');
    this.node.append(
      this._dot,
      element('div', 'jp-AmlRuns-top', '', this._name, this._target, this._when),
      element('div', 'jp-AmlRuns-bottom', '', this._progress.node, this._metric.node, this._spark)
    );
  }

  readonly node: HTMLLIElement;

  get row(): IRunRow | null {
    return this._row;
  }

  /** Draw what differs. */
  update(row: IRunRow, index: number, count: number, now: number): void {
    this.node.style.transform = `translateY(${index * ROW_HEIGHT}px)`;
    this.node.setAttribute('aria-posinset', String(index + 1));
    this.node.setAttribute('aria-setsize', String(count));
    if (row !== this._row) {
      this._row = row;
      this.node.id = idOf(row.handle);
      this.node.dataset.handle = row.handle;
      this.node.dataset.state = row.state;
      this.node.classList.toggle('jp-mod-live', isLive(row));
      this.node.classList.toggle('jp-mod-attention', row.attention !== '');
      this._dot.title = stateWord(row, this._trans);
      say(this._name, row.name);
      say(this._target, row.target);
      this._drawSpark(row.spark);
      this._drawMetric(row);
    }
    this.tick(now);
  }

  /** Draw what time changes. */
  tick(now: number): void {
    const row = this._row;
    if (row) {
      this._progress.update(...progressParts(row, now, this._trans));
      say(this._when, isLive(row) ? '' : when(row, now, this._trans));
      const words = spoken(row, now, this._trans);
      if (this._words !== words) {
        this._words = words;
        this.node.title = `${row.handle}\n${words}`;
        this._speak(row);
      }
    }
  }

  /** A screen reader reads its row again whenever the name of it changes: numbers alone are not worth that. */
  private _speak(row: IRunRow): void {
    const news = [row.handle, stateWord(row, this._trans), row.attention].join('\n');
    if (!this._active || news !== this._news) {
      this._news = news;
      this.node.setAttribute('aria-label', this._words);
    }
  }

  mark(selected: boolean, active: boolean): void {
    this._active = active;
    this.node.setAttribute('aria-selected', String(selected));
    this.node.classList.toggle('jp-mod-selected', selected);
    this.node.classList.toggle('jp-mod-active', active);
  }

  /** What needs attention is more than a number. */
  private _drawMetric(row: IRunRow): void {
    const warning = attention(row);
    this._metric.update(warning || row.metric, row.metric && !warning ? number(row.value) : '');
    this._metric.node.classList.toggle('jp-mod-warn', row.attention !== '');
  }

  private _drawSpark(spark: readonly number[]): void {
    const key = spark.join();
    if (key === this._key) {
      return;
    }
    this._key = key;
    const lines = sparkPoints(spark, SPARK_WIDTH, SPARK_HEIGHT).map(points => {
      const line = document.createElementNS(SVG, 'polyline');
      line.setAttribute('points', points);
      return line;
    });
    this._spark.replaceChildren(...lines);
    this._spark.toggleAttribute('hidden', spark.length === 0);
  }

  private readonly _dot: HTMLElement;
  private readonly _name: HTMLElement;
  private readonly _target: HTMLElement;
  private readonly _when: HTMLElement;
  private readonly _progress: Figure;
  private readonly _metric: Figure;
  private readonly _spark: SVGSVGElement;
  private _row: IRunRow | null = null;
  private _key = '';
  private _words = '';
  private _news = '';
  private _active = false;
}

/** Id of a row's node, for `aria-activedescendant`. */
export function idOf(handle: string): string {
  return `jp-AmlRuns-${encodeURIComponent(handle)}`;
}
