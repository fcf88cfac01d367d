/** Frame of a live figure: the caption, keyboard and names that the page's own charts have. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { extent } from '../charts/scale';
import { joined } from '../charts/values';
import { amount } from '../format';
import type { StreamFeedModel } from './feed';
import { columnsOf, specOf } from './frames';

let ids = 0;

/** Caption and keyboard of one bqplot figure, put into its node; the drawing keeps its size. */
export class FigureFrame {
  /**
   * @param _node the figure's node
   * @param kind `metric`, or empty
   * @param move moves the reading by so many points, or to an edge (-1, 1); returns the text to announce
   */
  constructor(
    _node: HTMLElement,
    kind: string,
    trans: TranslationBundle,
    private readonly _move: (step: number, edge: -1 | 0 | 1) => string
  ) {
    _node.classList.add('jp-AmlRun-figure');
    _node.dataset.kind = kind;
    // Buttons of bqplot's own, which would send limits to the kernel.
    _node.querySelectorAll('.toolbar_div, .bqplot-toolbar').forEach(bar => bar.remove());
    this._caption.className = 'jp-AmlRun-figureCaption';
    this._title.className = 'jp-AmlRun-chartTitle';
    this._title.id = `jp-AmlRun-figure-${ids++}`;
    this._value.className = 'jp-AmlRun-chartValue';
    this._caption.append(this._title, this._value);
    this._spoken.className = 'jp-AmlRun-chartSpoken';
    this._spoken.setAttribute('aria-live', 'polite');
    _node.append(this._caption, this._spoken);
    _node.tabIndex = 0;
    _node.setAttribute('role', 'application');
    _node.setAttribute('aria-roledescription', trans.__('chart'));
    _node.setAttribute('aria-labelledby', this._title.id);
    _node.addEventListener('keydown', event => this._key(event));
    _node.addEventListener('blur', () => void (this._spoken.textContent = ''));
  }

  /** Show title and value. */
  update(title: string, value: string): void {
    for (const [node, text] of [[this._title, title], [this._value, value]] as const) {
      if (node.textContent !== text) {
        node.textContent = text;
        node.title = text;
      }
    }
  }

  private _key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const step = event.shiftKey ? 10 : 1;
    const moves: Record<string, [number, -1 | 0 | 1]> = {
      ArrowLeft: [-step, 0],
      ArrowRight: [step, 0],
      Home: [0, -1],
      End: [0, 1]
    };
    const found = moves[event.key];
    if (found) {
      event.preventDefault();
      event.stopPropagation();
      this._spoken.textContent = this._move(...found);
    }
  }

  private readonly _caption = document.createElement('div');
  private readonly _title = document.createElement('span');
  private readonly _value = document.createElement('span');
  private readonly _spoken = document.createElement('div');
}

/** Columns of the lines of a figure, by position of the node; a band stands for the columns of all GPUs. */
function columnsIn(feed: StreamFeedModel, figure: number): [node: number, column: number][] {
  const own = new Set<unknown>(feed.get('figures')[figure]?.get('marks') ?? []);
  const specs = (feed.get('specs') as unknown[]).map(specOf);
  const { nodes } = feed.layout;
  return (feed.get('marks') as unknown[]).flatMap((mark, k): [number, number][] => {
    const spec = own.has(mark) ? specs[k] : null;
    if (spec?.kind === 'lines') {
      const i = nodes.findIndex(({ node }) => node === spec.node);
      return i < 0 ? [] : spec.columns.map((column): [number, number] => [i, column]);
    }
    return spec?.kind === 'band' ? nodes.flatMap((node, i) => columnsOf(node, spec.field).map((column): [number, number] => [i, column])) : [];
  });
}

/**
 * Value beside the title of a figure over time: the newest ones of its lines; of an ended run the mean, and of
 * memory the peak.
 */
export function figureValue(feed: StreamFeedModel, figure: number, trans: TranslationBundle): string {
  const { layout, nodes } = feed;
  const { unit, whole } = feed.chartOf(figure);
  const all = columnsIn(feed, figure).filter(([node, column]) => !/\.(peak|sm_activity)$/.test(layout.nodes[node].columns[column] ?? ''));
  if (!all.length) {
    return '';
  }
  const isMemory = unit === 'MiB' || unit === 'bytes';
  const valuesOf = ([node, column]: [number, number]): number[] => {
    const rows = nodes[node].rows(feed.ended ? feed.start : feed.newest - 3 * layout.period);
    const values: number[] = [];
    // A live figure needs the newest value, of the last three samples.
    const first = feed.ended ? 0 : Math.max(0, rows.length - 3);
    for (let i = rows.length - 1; i >= first && (feed.ended || !values.length); i--) {
      const value = feed.ended && isMemory ? rows.high(column, i) : rows.mean(column, i);
      if (Number.isFinite(value)) {
        values.push(value);
      }
    }
    return values;
  };
  const known = all.flatMap(valuesOf);
  const range = extent(known);
  if (!range) {
    return trans.__('n/a');
  }
  const [low, high] = range.map(value => amount(value, unit));
  if (!feed.ended) {
    return joined([low, high], whole, trans);
  }
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const text = joined([isMemory ? high : amount(mean, unit)], whole, trans);
  return isMemory ? trans.__('peak %1', text) : trans.__('mean %1', text);
}
