/** The part of a record that tells of GPUs, with every field. Pure functions. */

import { count, list, object, text } from './loose';
import { IGpuBand, IGpuHeat, IGpuProcess, IGpuSeries, IGpuTelemetry, IGpuTruth } from './protocol';

/** As long as the common times: what is missing is a hole. */
function series(x: unknown, n: number): (number | null)[] {
  const values = list(x).slice(0, n).map(count);
  return values.length ? [...values, ...new Array<null>(n - values.length).fill(null)] : [];
}

function gpu(x: unknown, i: number, n: number): IGpuSeries {
  const g = object(x);
  return {
    node: count(g.node) ?? 0,
    index: count(g.index) ?? i,
    label: text(g.label),
    name: text(g.name),
    uuid: text(g.uuid),
    memory_total: count(g.memory_total),
    power_limit: count(g.power_limit),
    util: series(g.util, n),
    peak: series(g.peak, n),
    memory: series(g.memory, n),
    power: series(g.power, n),
    lost: g.lost === true,
    sm_activity: series(g.sm_activity, n)
  };
}

function band(x: unknown, n: number): IGpuBand | null {
  const b = object(x);
  const mean = series(b.mean, n);
  return mean.length ? { mean, low: series(b.low, n), high: series(b.high, n) } : null;
}

function heat(x: unknown): IGpuHeat | null {
  const h = object(x);
  const labels = list(h.labels).map(label => text(label, '?'));
  const columns = count(h.columns) ?? 0;
  const cells = text(h.cells);
  const whole = labels.length > 0 && columns > 0 && cells.length >= 2 * labels.length * columns;
  return whole ? { labels, columns, cells } : null;
}

function process(x: unknown): IGpuProcess {
  const p = object(x);
  return {
    node: count(p.node) ?? 0,
    index: count(p.index) ?? 0,
    pid: count(p.pid) ?? 0,
    owner: text(p.owner, 'unknown'),
    memory: count(p.memory),
    name: text(p.name),
    label: text(p.label),
    user: text(p.user),
    sm: count(p.sm)
  };
}

export function gpuTelemetry(raw: unknown): IGpuTelemetry | null {
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw)) {
    return null;
  }
  const g = object(raw);
  const t = list(g.t).map(x => count(x) ?? 0);
  return {
    t,
    gpus: list(g.gpus).map((x, i) => gpu(x, i, t.length)),
    util: band(g.util, t.length),
    memory: band(g.memory, t.length),
    power: band(g.power, t.length),
    heat: heat(g.heat),
    nodes: list(g.nodes).map(name => text(name)),
    processes: list(g.processes).map(process),
    source: text(g.source),
    age: count(g.age),
    note: text(g.note),
    now: list(g.now).map(object)
  };
}

export function gpuTruth(raw: unknown): IGpuTruth | null {
  const t = object(raw);
  const verdict = text(t.verdict);
  return verdict ? { verdict, detail: text(t.detail), cause: text(t.cause) } : null;
}

/** Percent of each cell, row after row; NaN for a hole. */
export function heatCells(map: IGpuHeat): Float32Array {
  return Float32Array.from({ length: map.labels.length * map.columns }, (_, i) => {
    const value = parseInt(map.cells.slice(2 * i, 2 * i + 2), 16);
    return value <= 100 ? value : NaN;
  });
}

/** `0:3` -> node 0, index 3. */
export function heatRow(label: string): { node: number; index: number } {
  const [node, index] = label.split(':').map(Number);
  return { node: node || 0, index: index || 0 };
}
