import * as assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { ISweepBoard } from '../src/protocol';
import { normalise } from '../src/record';
import {
  axesOf,
  continueLine,
  bestFirst,
  bestSoFar,
  Brush,
  brushOf,
  formatterOf,
  isBrushed,
  LEVELS,
  matches,
  nextOrder,
  paramText,
  paramWords,
  sorted,
  stateCounts,
  STOPPED,
  trialsOf,
  unitOf,
  unitText
} from '../src/sweep';

const BOARD = {
  metric: 'loss',
  goal: 'minimize',
  sampler: 'random',
  space: { lr: 'loguniform(-9, -2)', layers: 'choice(1, 2, 4)', optimizer: "choice('sgd', 'adam')", momentum: 'uniform(0, 1)' },
  max_trials: 40,
  number: [1, 2, 3, 4, 5],
  state: ['completed', 'canceled', 'failed', 'running', 'completed'],
  value: [0.5, 0.4, null, 0.75, 0.25],
  seconds: [3, 2, null, 1, 4],
  handle: ['local/a', 'local/b', 'local/c', 'local/d', 'local/e'],
  params: { lr: [0.1, 0.01, 0.001, 0.1, 0.0001], layers: [4, 2, 2, 1, 1], optimizer: ['sgd', 'adam', 'adam', 'sgd', 'adam'], momentum: [0.9, null, null, 0.5, null] },
  early: [1],
  reason: { '1': 'below the median', '2': 'out of memory' },
  curves: [{ trial: 0, step: [0, 1], value: [1, 0.5] }],
  best: 4,
  importance: { layers: 0.2, lr: 0.7 },
  axes: [
    { name: 'lr', title: 'lr', kind: 'log', low: -4, high: -1, ticks: [-4, -1], labels: ['1e-4', '0.1'] },
    { name: 'layers', title: 'layers', kind: 'category', low: -0.5, high: 2.5, categories: [1, 2, 4] },
    { name: 'momentum', title: 'momentum', low: 0.5, high: 0.9 },
    { title: 'loss', low: 0.25, high: 0.75 }
  ]
};

const boardOf = (changes: object = {}): ISweepBoard => normalise({ sweep: { ...BOARD, ...changes } }).sweep!;
const numbers = (trials: readonly { number: number }[]) => trials.map(({ number }) => number);

test('board of a saved record becomes whole', () => {
  assert.equal(normalise({}).sweep, null);
  assert.equal(normalise({ sweep: [] }).sweep, null);
  const board = boardOf({ value: [1, 'x'], params: { lr: [1] }, best: 9, early: 'x', curves: [{ trial: 99 }], hidden: null, importance: { lr: 'x' } });
  assert.deepEqual(board.value, [1, null, null, null, null]);
  assert.deepEqual(board.params, { lr: [1, null, null, null, null] });
  assert.deepEqual([board.best, board.early, board.curves, board.hidden, board.importance], [null, [], [], 0, { lr: 0 }]);
  assert.deepEqual(trialsOf(boardOf({ number: [] })), []);
});

test('states are counted, and those that the policy stopped apart', () => {
  assert.equal([...stateCounts(trialsOf(boardOf())).keys()].join(), `running,completed,${STOPPED},failed`);
});

test('best so far is that of completed trials', () => {
  assert.deepEqual(bestSoFar(trialsOf(boardOf()), 'minimize'), [0.5, 0.5, 0.5, 0.5, 0.25]);
  assert.deepEqual(bestSoFar(trialsOf(boardOf()), 'maximize'), [0.5, 0.5, 0.5, 0.5, 0.5]);
});

test('trials are sorted by any column, those without a value last', () => {
  const trials = trialsOf(boardOf());
  assert.deepEqual(numbers(sorted(trials, bestFirst('minimize'))), [5, 2, 1, 4, 3]);
  assert.deepEqual(numbers(sorted(trials, bestFirst('maximize'))), [4, 1, 2, 5, 3]);
  assert.deepEqual(numbers(sorted(trials, { key: 'param momentum', direction: 'descending' })), [1, 4, 2, 3, 5]);
  assert.deepEqual(numbers(sorted(trials, { key: 'param optimizer', direction: 'ascending' })), [2, 3, 5, 1, 4]);
  assert.deepEqual(nextOrder(bestFirst('minimize'), 'value', 'minimize').direction, 'descending');
  assert.deepEqual(nextOrder({ key: 'number', direction: 'ascending' }, 'value', 'maximize').direction, 'descending');
});

test('filters by words and state', () => {
  const trials = trialsOf(boardOf());
  const found = (words: string, state = '') => numbers(trials.filter(trial => matches(trial, words, state)));
  assert.deepEqual(found('optimizer=adam layers=2'), [2, 3]);
  assert.deepEqual(found('MEMORY'), [3]);
  assert.deepEqual(found('', STOPPED), [2]);
  assert.deepEqual(found('#4'), [4]);
  assert.deepEqual(found('  '), [1, 2, 3, 4, 5]);
});

test('values have places on the axes of the board', () => {
  const [lr, layers, momentum, metric] = axesOf(boardOf());
  assert.deepEqual([unitText(lr, -2), unitOf(lr, 0), unitOf(lr, 0.01), lr.kind], ['0.01', null, -2, 'log']);
  assert.deepEqual([unitOf(layers, 4), unitOf(layers, 3), unitText(layers, 2)], [2, null, '4']);
  assert.deepEqual([unitOf(momentum, undefined), momentum.kind, metric.name], [null, 'linear', '']);
  assert.deepEqual(axesOf(normalise({ sweep: { number: [1] } }).sweep!), [], 'of an earlier version');
});

test('null is a value, and a parameter that a trial does not have is absent', () => {
  const trials = trialsOf(boardOf({ nulls: { momentum: [1] } }));
  assert.deepEqual(trials.map(({ params }) => params.momentum), [0.9, null, undefined, 0.5, undefined]);
  assert.deepEqual(trials.map(({ params }) => paramText(params.momentum)), ['0.9', 'null', '', '0.5', '']);
  assert.deepEqual(trials.map(({ params }) => 'momentum' in params), [true, true, false, true, false]);
  const [axis] = axesOf(boardOf({ axes: [{ name: 'momentum', kind: 'category', categories: [0.9, 0.5, null] }] }));
  assert.deepEqual([unitOf(axis, null) !== null, unitOf(axis, undefined)], [true, null]);
});

test('brushes of several axes combine, and absent values are in none', () => {
  const board = boardOf();
  const trials = trialsOf(board);
  const axes = axesOf(board);
  const [lr, layers, momentum, metric] = axes;
  const found = (...brushes: [string, Brush | null][]) =>
    numbers(trials.filter(trial => isBrushed(trial, axes, new Map(brushes.filter((each): each is [string, Brush] => each[1] !== null)))));
  assert.deepEqual(found(), [1, 2, 3, 4, 5]);
  assert.deepEqual(found(['lr', brushOf(lr, -2.5, -0.5)]), [1, 2, 4]);
  assert.deepEqual(found(['lr', brushOf(lr, -2.5, -0.5)], ['layers', brushOf(layers, 1.1, 2.2)]), [1, 2]);
  assert.deepEqual(found(['', brushOf(metric, 0, 0.45)]), [2, 5]);
  assert.deepEqual(found(['momentum', brushOf(momentum, 0, 0.8)]), [4]);
  assert.equal(brushOf(lr, -9, 9), null);
  assert.deepEqual(brushOf(layers, 0.9, 1.1), [0.5, 1.5], 'at least one category');
});

test('parameters as words of a magic line', () => {
  assert.equal(paramWords({ lr: 0.0123, layers: 2, momentum: null }), '--param lr=0.0123 --param layers=2 --param momentum=null');
  assert.equal(paramWords({ optimizer: 'adam', flag: true }), '--param optimizer=adam --param flag=true');
  assert.equal(paramWords({ name: "it's", kind: '1', sizes: [64, 32] }), `--param 'name="it'"'"'s"' --param 'kind="1"' --param 'sizes=[64,32]'`);
});

test('line that goes on has further trials, in the brushed part of the space', () => {
  const space = {
    lr: 'loguniform(0.0001,0.1)',
    layers: 'choice(1,2,4)',
    name: 'choice("a b",sgd)',
    units: 'quniform(0,64,8)',
    seed: 'randint(9)',
    noise: 'normal(0,1)'
  };
  const category = (name: string, categories: unknown[]) => ({ name, kind: 'category', categories });
  const kinds = [{ name: 'lr', kind: 'log' }, category('layers', [1, 2, 4]), category('name', ['a b', 'sgd'])];
  const axes = axesOf(boardOf({ axes: [...kinds, { name: 'units' }, { name: 'seed' }, { name: 'noise' }, {}] }));
  assert.equal(continueLine('local/a-1', space, axes, new Map()), '%aml_sweep --continue local/a-1 --max-trials 10');
  const brushes = new Map<string, [number, number]>([
    ['lr', [-3, -2]],
    ['layers', [0.5, 2.5]],
    ['name', [-0.5, 0.5]],
    ['units', [7.9, 80]],
    ['seed', [1.2, 3]],
    ['noise', [0, 1]],
    ['', [0, 1]]
  ]);
  const words = continueLine('local/a-1', space, axes, brushes).split(' --param ').slice(1);
  assert.deepEqual(words, [
    "'lr=loguniform(0.001,0.01)'",
    "'layers=choice(2,4)'",
    `'name=choice("a b")'`,
    "'units=quniform(7.9,64,8)'",
    "'seed=choice(2,3)'"
  ]);
});

test('numbers of a column have one number of decimals', () => {
  assert.deepEqual([0.9531, 0.91, null].map(formatterOf([0.9531, 0.91, null])), ['0.9531', '0.9100', '']);
  assert.deepEqual([12, 3].map(formatterOf([12, 3])), ['12', '3']);
  assert.deepEqual([1e-7, 2300].map(formatterOf([1e-7, 2300, 1])), ['1.00e-7', '2300']);
});

test('a thousand trials are prepared in time', context => {
  const n = 1000;
  const all = Array.from({ length: n }, (_, i) => i);
  const raw = {
    ...BOARD,
    number: all,
    state: all.map(() => 'completed'),
    value: all.map(i => (i * 7919) % 1000),
    params: { lr: all.map(i => 1 / (i + 1)), layers: all.map(i => i % 4), name: all.map(i => `run ${i}`) },
    early: [],
    reason: {}
  };
  const start = performance.now();
  const board = normalise({ sweep: raw }).sweep!;
  const trials = trialsOf(board);
  const axes = axesOf(board);
  trials.forEach(trial => axes.forEach(axis => unitOf(axis, trial.params[axis.name])));
  const order = sorted(trials.filter(trial => matches(trial, 'layers=1', '')), bestFirst('maximize'));
  context.diagnostic(`${n} trials prepared in ${(performance.now() - start).toFixed(0)} ms`);
  assert.equal(order.length, n / 4);
});

test('colors of trials are those of Python', () => {
  const css = readFileSync('labextension/style/sweep.css', 'utf8');
  const [light, dark] = css.split("[data-jp-theme-light='false']");
  const colors = (part: string) => [...part.matchAll(/--jp-amlsweep-s\d: (#[0-9a-f]{6});/g)].map(match => match[1]);
  const python = /^TRIALS = \(([^)]*)\)/m.exec(readFileSync('jupyter_amltrain/output/palette.py', 'utf8'));
  assert.deepEqual(colors(light), python?.[1].match(/#[0-9a-f]{6}/g));
  assert.equal(colors(dark).length, LEVELS);
});
