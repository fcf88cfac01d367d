/** A value without neighbours: a line through it has no length, so nobody would see it. */

import { IPoints } from './reduce';

/** Part of the shown time that such a value takes. */
const WIDTH = 0.008;

const known = (value: number | undefined): boolean => value !== undefined && Number.isFinite(value);

/** Values of a line that have neither a neighbour before nor one behind. */
function lone(row: Float32Array, i: number): boolean {
  return known(row[i]) && !known(row[i - 1]) && !known(row[i + 1]);
}

/** Whether there is a value without neighbours. */
export function hasLone({ x, y }: IPoints): boolean {
  return y.some(row => x.some((_, i) => lone(row, i)));
}

/**
 * The points, each lone value stretched to a dash.
 *
 * @param span milliseconds that are shown
 */
export function dashed({ x, y }: IPoints, span: number): IPoints {
  const at = Array.from(x.keys()).filter(i => y.some(row => lone(row, i)));
  if (!at.length) {
    return { x, y };
  }
  const wanted = new Set(at);
  const order = Array.from(x.keys()).flatMap(i => (wanted.has(i) ? [i, -1 - i] : [i]));
  const end = (i: number) => x[i] + Math.min(WIDTH * span, i + 1 < x.length ? (x[i + 1] - x[i]) / 2 : Infinity);
  return {
    x: Float64Array.from(order, i => (i < 0 ? end(-1 - i) : x[i])),
    y: y.map(row => Float32Array.from(order, i => row[i < 0 ? -1 - i : i]))
  };
}
