/** What a feed's columns and marks mean, as the kernel describes them. Tolerant of what is missing. */

export interface INode {
  node: number;
  host: string;
  columns: string[];
}

export interface IGpu {
  node: number;
  index: number;
  name: string;
  label: string;
}

export interface ILayout {
  nodes: INode[];
  gpus: IGpu[];
  period: number;
  capacity: number;
  buckets: number;
  units: Record<string, string>;
  /** unix seconds, or 0 when unknown */
  start: number;
  /** seconds of each choice of the window control, where the kernel gives them */
  windows: number[] | null;
  /** names of the GPU charts that can be chosen, in the order of the view control */
  views: string[];
}

export type MarkSpec =
  | { kind: 'lines'; node: number; columns: number[] }
  | { kind: 'band'; field: string; high: string }
  | { kind: 'span'; start: number; end: number }
  | { kind: 'metric'; name: string }
  | { kind: 'static' };

type Loose = Record<string, any>;

const list = (x: unknown): any[] => (Array.isArray(x) ? x : []);
const number = (x: unknown, fallback: number): number =>
  typeof x === 'number' && Number.isFinite(x) ? x : fallback;
const text = (x: unknown): string => (typeof x === 'string' ? x : '');

export function layoutOf(raw: unknown): ILayout {
  const l = (raw ?? {}) as Loose;
  const buckets = Math.max(2, number(l.buckets, 1024));
  return {
    nodes: list(l.nodes).map((n: Loose, i) => ({
      node: number(n?.node, i),
      host: text(n?.host),
      columns: list(n?.columns).map(String)
    })),
    gpus: list(l.gpus).map((g: Loose) => {
      const index = number(g?.index, 0);
      return { node: number(g?.node, 0), index, name: text(g?.name), label: text(g?.label) || `GPU ${index}` };
    }),
    period: number(l.period, 1) || 1,
    capacity: Math.max(1, number(l.capacity, 3600)),
    buckets: buckets + (buckets % 2),
    units: (l.units ?? {}) as Record<string, string>,
    start: number(l.start, 0),
    windows: Array.isArray(l.windows) ? l.windows.map(w => number(w, 0)) : null,
    views: list(l.views).map(text)
  };
}

export function specOf(raw: unknown): MarkSpec {
  const s = (raw ?? {}) as Loose;
  if (s.kind === 'lines') {
    return { kind: 'lines', node: number(s.node, 0), columns: list(s.columns).map(c => number(c, 0)) };
  }
  if (s.kind === 'band') {
    return { kind: 'band', field: text(s.field), high: text(s.high) || text(s.field) };
  }
  if (s.kind === 'span') {
    return { kind: 'span', start: number(s.start, 0), end: number(s.end, 0) };
  }
  return s.kind === 'metric' ? { kind: 'metric', name: text(s.name) } : { kind: 'static' };
}

/** Column numbers of one field of every GPU of a node: `util` -> those of `gpu0.util`, `gpu1.util`, ... */
export function columnsOf(node: INode, field: string): number[] {
  return node.columns.flatMap((name, c) => (/^gpu\d+\./.test(name) && name.endsWith(`.${field}`) ? [c] : []));
}

/** Unit of a column: a GPU's by its field, a host's by its own name. */
export function unitOf(layout: ILayout, column: string): string {
  const [first, field] = column.split('.');
  if (field === undefined && first.endsWith('memory')) {
    // The host's comes in bytes, also where the GPUs' field of the same name is in MiB.
    return 'bytes';
  }
  return layout.units[column] ?? layout.units[field ?? first] ?? '';
}
