/** Trials of a sweep from its board: order, filters, axes of the parameters, texts. Pure functions. */

import { extent } from './charts/scale';
import { json, number } from './format';
import type { ISweepBoard, ITrialAxis } from './protocol';
import { TERMINAL } from './record';

/** State of a trial that the policy stopped; the others have the state of their run. */
export const STOPPED = 'stopped early';

export interface ITrial {
  /** Position in the columns of the board. */
  at: number;
  number: number;
  /** State of the run, or `STOPPED`. */
  state: string;
  value: number | null;
  seconds: number | null;
  handle: string;
  /** Without the parameters that the trial does not have. */
  params: Record<string, unknown>;
  reason: string;
  best: boolean;
}

export function trialsOf(board: ISweepBoard): ITrial[] {
  const early = new Set(board.early);
  const columns = Object.entries(board.params).map(([name, values]) => ({ name, values, nulls: new Set(board.nulls[name]) }));
  return board.number.map((trialNumber, at) => ({
    at,
    number: trialNumber,
    state: early.has(at) ? STOPPED : board.state[at],
    value: board.value[at],
    seconds: board.seconds[at],
    handle: board.handle[at],
    params: Object.fromEntries(
      columns.filter(({ values, nulls }) => values[at] !== null || nulls.has(at)).map(({ name, values }) => [name, values[at]])
    ),
    reason: board.reason[String(at)] ?? '',
    best: at === board.best
  }));
}

export const isLive = ({ state }: { state: string }): boolean => state !== STOPPED && !TERMINAL.has(state as never);
export const hasFailed = ({ state }: { state: string }): boolean => state === 'failed' || state === 'lost';

/** Number of trials in each state, in the order of a trial's life. */
export function stateCounts(trials: readonly ITrial[]): Map<string, number> {
  const order = ['queued', 'preparing', 'running', 'finalizing', 'completed', STOPPED, 'failed', 'lost', 'canceled'];
  const counts = new Map<string, number>(order.map(state => [state, 0]));
  trials.forEach(({ state }) => counts.set(state, (counts.get(state) ?? 0) + 1));
  return new Map([...counts].filter(([, n]) => n > 0));
}

// -- values

/** A parameter's value in a few characters; empty for one that a trial does not have. */
export const paramText = (value: unknown): string => (value === undefined ? '' : json(value, 40));

/** Powers of ten of the largest by the smallest value from which an axis is logarithmic. */
const LOG_SPAN = 2.5;

/** Whether values spread over so many powers of ten that a linear axis would hide most of them. */
export function spreads(values: readonly (number | null)[]): boolean {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  if (known.length < 3 || Math.min(...known) <= 0) {
    return false;
  }
  return Math.log10(Math.max(...known) / Math.min(...known)) > LOG_SPAN;
}

/** Formatter of one column of numbers: the same number of decimals for all, and enough to tell them apart. */
export function formatterOf(values: readonly (number | null)[]): (value: number | null) => string {
  const range = extent(values);
  if (range === null || range[1] <= range[0]) {
    return value => (value === null ? '' : number(value));
  }
  const [low, high] = range;
  const size = Math.max(Math.abs(low), Math.abs(high));
  const decimals = Math.max(0, Math.ceil(-Math.log10((high - low) / 400)));
  const whole = values.every(value => value === null || Number.isInteger(value));
  if (whole || size >= 1e6 || decimals > 7 || spreads(values)) {
    return value => (value === null ? '' : number(value));
  }
  return value => (value === null ? '' : value.toFixed(decimals));
}

/** Parameters as words of a magic line: `--param lr=0.0123 --param layers=2`. */
export function paramWords(params: Record<string, unknown>): string {
  return Object.entries(params)
    .map(([name, value]) => `--param ${quoted(`${name}=${literal(value)}`)}`)
    .join(' ');
}

/** JSON, and the text itself where nobody could take it for another value. */
function literal(value: unknown): string {
  const isPlain = typeof value === 'string' && /^[A-Za-z_][\w./:-]*$/.test(value) && !/^(true|false|null|none|nan|inf(inity)?)$/i.test(value);
  return isPlain ? value : JSON.stringify(value);
}

const quoted = (word: string): string => (/^[\w=.,:/@%+-]+$/.test(word) ? word : `'${word.replace(/'/g, `'"'"'`)}'`);

// -- best so far

const isBetter = (value: number, than: number, goal: string): boolean => (goal === 'minimize' ? value < than : value > than);

/** Best value of the completed trials up to each trial; null before the first. */
export function bestSoFar(trials: readonly ITrial[], goal: string): (number | null)[] {
  let best: number | null = null;
  return trials.map(({ state, value }) => {
    if (state === 'completed' && value !== null && (best === null || isBetter(value, best, goal))) {
      best = value;
    }
    return best;
  });
}

// -- order and filters

export type Direction = 'ascending' | 'descending';

/** Key of a column: one of these, or `param NAME`. */
export type SortKey = 'number' | 'state' | 'value' | 'seconds' | 'reason' | `param ${string}`;

export interface IOrder {
  key: SortKey;
  direction: Direction;
}

/** The order of a new board: best first. */
export const bestFirst = (goal: string): IOrder => ({ key: 'value', direction: goal === 'minimize' ? 'ascending' : 'descending' });

/** What a click on a heading makes of the order. */
export function nextOrder(old: IOrder, key: SortKey, goal: string): IOrder {
  if (old.key === key) {
    return { key, direction: old.direction === 'ascending' ? 'descending' : 'ascending' };
  }
  return key === 'value' ? bestFirst(goal) : { key, direction: 'ascending' };
}

function cellOf(trial: ITrial, key: SortKey): unknown {
  return key.startsWith('param ') ? trial.params[key.slice(6)] : trial[key as 'number' | 'state' | 'value' | 'seconds' | 'reason'];
}

/** Trials in order; those without a value come last in both directions, trials that are equal by their numbers. */
export function sorted(trials: readonly ITrial[], { key, direction }: IOrder): ITrial[] {
  const sign = direction === 'ascending' ? 1 : -1;
  const isEmpty = (x: unknown) => x === null || x === undefined || x === '';
  return [...trials].sort((a, b) => {
    const [x, y] = [cellOf(a, key), cellOf(b, key)];
    if (isEmpty(x) || isEmpty(y)) {
      return Number(isEmpty(x)) - Number(isEmpty(y)) || a.number - b.number;
    }
    const by =
      typeof x === 'number' && typeof y === 'number'
        ? x - y
        : typeof x !== typeof y
          ? Number(typeof x !== 'number') - Number(typeof y !== 'number')
          : paramText(x).localeCompare(paramText(y), undefined, { numeric: true });
    return sign * by || a.number - b.number;
  });
}

/** Whether a trial has each of the words, in any column, and this state (any where it is empty). */
export function matches(trial: ITrial, words: string, state: string): boolean {
  if (state && trial.state !== state) {
    return false;
  }
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) {
    return true;
  }
  const params = Object.entries(trial.params).map(([name, value]) => `${name}=${paramText(value)}`);
  const content = [`#${trial.number}`, trial.state, trial.value === null ? '' : number(trial.value), ...params, trial.reason].join(' ').toLowerCase();
  return wanted.every(word => content.includes(word));
}

// -- axes of the parallel coordinates

/** An axis, with the position of each category by its JSON. */
export interface IPlacedAxis extends ITrialAxis {
  places: ReadonlyMap<string, number>;
}

const keyOf = (value: unknown): string => JSON.stringify(value);

/** The axes of a board. */
export const axesOf = ({ axes }: ISweepBoard): IPlacedAxis[] =>
  axes.map(axis => ({ ...axis, places: new Map(axis.categories.map((value, at) => [keyOf(value), at])) }));

/** Selected part of an axis, in its units. */
export type Brush = readonly [low: number, high: number];

const CHOICE_EXPRESSION = /^\s*choice\s*\(/i;

/** A value in the units of an axis; null where the axis has no place for it. */
export function unitOf(axis: IPlacedAxis, value: unknown): number | null {
  if (value === undefined) {
    return null;
  }
  if (axis.kind === 'category') {
    return axis.places.get(keyOf(value)) ?? null;
  }
  if (typeof value !== 'number' || !Number.isFinite(value) || (axis.kind === 'log' && value <= 0)) {
    return null;
  }
  return axis.kind === 'log' ? Math.log10(value) : value;
}

/** The text of a place of an axis. */
export function unitText(axis: IPlacedAxis, unit: number): string {
  if (axis.kind === 'category') {
    const at = Math.max(0, Math.min(axis.categories.length - 1, Math.round(unit)));
    return paramText(axis.categories[at]);
  }
  const value = axis.kind === 'log' ? 10 ** unit : unit;
  return number(Number(value.toPrecision(3)));
}

export const valueOf = (trial: ITrial, axis: IPlacedAxis): unknown => (axis.name ? trial.params[axis.name] : trial.value);

/** Whether a trial lies in all brushes (by the name of their axis). */
export function isBrushed(trial: ITrial, axes: readonly IPlacedAxis[], brushes: ReadonlyMap<string, Brush>): boolean {
  return axes.every(axis => {
    const brush = brushes.get(axis.name);
    const unit = brush && unitOf(axis, valueOf(trial, axis));
    return !brush || (unit !== null && unit !== undefined && unit >= brush[0] - 1e-12 && unit <= brush[1] + 1e-12);
  });
}

/** A brush within its axis and at least as wide as one category; null for the whole axis. */
export function brushOf(axis: IPlacedAxis, from: number, to: number): Brush | null {
  let [low, high] = from <= to ? [from, to] : [to, from];
  if (axis.kind === 'category') {
    // Whole categories: from the middle between two to the middle between two.
    [low, high] = [Math.ceil(low - 0.5 + 1e-9) - 0.5, Math.floor(high + 0.5 - 1e-9) + 0.5];
    [low, high] = high > low ? [low, high] : [Math.round(from) - 0.5, Math.round(from) + 0.5];
  }
  [low, high] = [Math.max(axis.low, low), Math.min(axis.high, high)];
  return low <= axis.low && high >= axis.high ? null : [low, high];
}

const UNIFORM_EXPRESSION = /^\s*(q?(?:log)?uniform)\s*\(([^()]*)\)\s*$/i;
const RANDINT_EXPRESSION = /^\s*randint\s*\([^()]*\)\s*$/i;

/** Further trials of the line that goes on with a sweep; a person edits it. */
const MORE_TRIALS = 10;

/** Whole numbers of a brush that become the options of a choice. */
const MAX_OPTIONS = 20;

/** The part of an expression that a brush selects; null where it cannot be written as an expression. */
export function narrowed(axis: IPlacedAxis, expression: string, [low, high]: Brush): string | null {
  if (axis.kind === 'category') {
    const options = axis.categories.filter((_, at) => at >= low && at <= high);
    const plain = CHOICE_EXPRESSION.test(expression) && options.every(option => option === null || typeof option !== 'object');
    return plain && options.length ? `choice(${options.map(literal).join(',')})` : null;
  }
  const [from, to] = [low, high].map(unit => (axis.kind === 'log' ? 10 ** unit : unit));
  if (RANDINT_EXPRESSION.test(expression)) {
    const first = Math.max(0, Math.ceil(from));
    const count = Math.floor(to) - first + 1;
    return count > 0 && count <= MAX_OPTIONS ? `choice(${Array.from({ length: count }, (_, i) => first + i).join(',')})` : null;
  }
  const found = UNIFORM_EXPRESSION.exec(expression);
  const [lower, upper, ...rest] = (found?.[2] ?? '').split(',').map(Number);
  const bounds = [Math.max(lower, from), Math.min(upper, to)].map(value => Number(value.toPrecision(4)));
  if (!found || !(bounds[0] < bounds[1])) {
    return null;
  }
  return `${found[1]}(${[...bounds, ...rest].join(',')})`;
}

/** Line that goes on with a sweep: with further trials, in the part of the space that the brushes select. */
export function continueLine(handle: string, space: Record<string, string>, axes: readonly IPlacedAxis[], brushes: ReadonlyMap<string, Brush>): string {
  const params = axes.flatMap(axis => {
    const brush = axis.name ? brushes.get(axis.name) : undefined;
    const text = brush && axis.name in space ? narrowed(axis, space[axis.name], brush) : null;
    return text === null ? [] : [`--param ${quoted(`${axis.name}=${text}`)}`];
  });
  return ['%aml_sweep', '--continue', handle, '--max-trials', MORE_TRIALS, ...params].join(' ');
}

/** Colors of the palette from the worst to the best value. */
export const LEVELS = 9;
