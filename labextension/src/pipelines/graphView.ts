/** The steps of a pipeline and what they take of each other, as the kernel has laid them out. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { IRecordPart } from '../output/parts';
import type { IGraphNode, IRunGraph, IRunRecord } from '../protocol';
import { element, say } from '../sections/dom';

const SVG = 'http://www.w3.org/2000/svg';
/** Places of the two lines of text in a box, in CSS pixels. */
const LEFT = 10;
const TITLE_BASE = 18;
const TEXT_BASE = 35;

export class GraphView implements IRecordPart {
  constructor(trans: TranslationBundle) {
    this._drawing.tabIndex = 0; // it scrolls, so the keyboard must reach it
    this._drawing.setAttribute('role', 'group');
    this._drawing.setAttribute('aria-label', trans.__('Steps of the pipeline'));
    this.node.append(this._sentence, this._message, this._drawing, this._lines);
    this.node.hidden = true;
  }

  readonly node = element('div', 'jp-AmlRun-graph');

  update({ graph, view }: IRunRecord): void {
    this.node.hidden = graph === null || view === 'dashboard';
    const key = JSON.stringify(graph);
    if (!graph || key === this._key) {
      return;
    }
    this._key = key;
    say(this._sentence, graph.sentence);
    say(this._message, graph.message);
    this._drawing.hidden = !graph.nodes.length;
    this._drawing.replaceChildren(...(graph.nodes.length ? [drawn(graph)] : []));
    say(this._lines, graph.nodes.length ? '' : graph.lines.join('\n'));
  }

  dispose(): void {
    this._drawing.replaceChildren();
  }

  private readonly _sentence = element('div', 'jp-AmlRun-graphSentence');
  private readonly _message = element('div', 'jp-AmlRun-graphMessage');
  private readonly _drawing = element('div', 'jp-AmlRun-graphDrawing');
  private readonly _lines = element('pre', 'jp-AmlRun-graphLines');
  private _key = '';
}

function drawn(graph: IRunGraph): SVGElement {
  const root = make('svg', { width: graph.width, height: graph.height, viewBox: `0 0 ${graph.width} ${graph.height}`, role: 'img' });
  root.setAttribute('aria-label', [graph.sentence, ...graph.lines].join(' '));
  for (const { path, hint, critical } of graph.edges) {
    const line = make('path', { d: path, class: critical ? 'jp-AmlRun-graphEdge jp-mod-critical' : 'jp-AmlRun-graphEdge' });
    line.append(titled(hint));
    root.append(line);
  }
  root.append(...graph.nodes.map(node => boxed(node, graph)));
  return root;
}

function boxed(node: IGraphNode, { box_width, box_height }: IRunGraph): SVGElement {
  const names = ['jp-AmlRun-graphBox', node.reused ? 'jp-mod-reused' : `jp-mod-${node.state}`, ...(node.critical ? ['jp-mod-critical'] : [])];
  const group = make('g', { class: names.join(' '), transform: `translate(${node.x} ${node.y})` });
  const title = make('text', { x: LEFT, y: TITLE_BASE, class: 'jp-AmlRun-graphTitle' });
  title.textContent = node.title;
  const text = make('text', { x: LEFT, y: TEXT_BASE, class: 'jp-AmlRun-graphText' });
  text.textContent = node.text;
  group.append(titled(node.hint), make('rect', { width: box_width, height: box_height, rx: 6 }), title, text);
  return group;
}

function titled(text: string): SVGElement {
  const title = make('title', {});
  title.textContent = text;
  return title;
}

function make(tag: string, attributes: Readonly<Record<string, string | number>>): SVGElement {
  const node = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, String(value)));
  return node;
}
