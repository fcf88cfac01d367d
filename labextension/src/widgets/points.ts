/** Points of a mark, from what a feed has stored. */

import type { NodeHistory } from './history';
import { columnsOf, ILayout, MarkSpec } from './layout';
import type { MetricStore } from './metrics';
import { band, IPoints, lines } from './reduce';
import type { Span } from './span';

/** Points of a line in one drawing. */
const POINTS = 300;

/** What a feed has stored. */
export interface IStored {
  readonly layout: ILayout;
  /** In the order of the layout's nodes. */
  readonly nodes: readonly NodeHistory[];
  readonly metrics: MetricStore;
}

/** Points of one mark in the shown time (a metric's: in the shown steps); null for a mark that the kernel alone draws. */
export function pointsOf({ layout, nodes, metrics }: IStored, spec: MarkSpec, [t0, t1]: Span): IPoints | null {
  if (spec.kind === 'lines') {
    const i = layout.nodes.findIndex(node => node.node === spec.node);
    return i < 0 ? null : lines({ rows: nodes[i].rows(t0), columns: spec.columns }, t0, t1, POINTS);
  }
  if (spec.kind === 'band') {
    const parts = nodes
      .map((node, i) => ({
        rows: node.rows(t0),
        columns: columnsOf(layout.nodes[i], spec.field),
        tops: columnsOf(layout.nodes[i], spec.high)
      }))
      .filter(part => part.columns.length);
    return parts.length ? band(parts, t0, t1, POINTS) : null;
  }
  if (spec.kind === 'span') {
    const x = Float64Array.of(spec.start * 1000, spec.end * 1000);
    return { x, y: [Float32Array.of(1, 1)] };
  }
  if (spec.kind === 'metric') {
    const rows = metrics.rows(spec.name);
    return rows && lines({ rows, columns: [0] }, t0, t1, POINTS, 1);
  }
  return null;
}
