import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { sparkPoints } from '../src/charts/sparkline';
import { gpuFrame, meanUtil } from '../src/kernel/model';
import { Rows, TransitionWatcher } from '../src/kernel/rows';
import { connectionMessage, lastSeenText, connectionWord } from '../src/panel/connectionMessages';
import type { ConnectionState, IConnection } from '../src/panel/tokens';
import type { IRunRow, ITargetRow } from '../src/protocol';
import {
  elapsed,
  differing, filterRuns,
  progress,
  secondsOf,
  select,
  spoken,
  windowOf
} from '../src/sections/runText';

const fill = (text: string, args: unknown[]) => text.replace(/%(\d+)/g, (_, k) => String(args[Number(k) - 1]));
const trans = {
  __: (text: string, ...args: unknown[]) => fill(text, args),
  _n: (one: string, many: string, n: number, ...args: unknown[]) => fill(n === 1 ? one : many, [n, ...args])
} as any;

function row(handle: string, more: Partial<IRunRow> = {}): IRunRow {
  return {
    handle: `local/${handle}`,
    name: handle,
    target: 'local',
    experiment: '',
    state: 'running',
    detail: '',
    reason: '',
    exit_code: null,
    error: '',
    created: 100,
    started: 110,
    ended: null,
    phase: 'running',
    phase_start: 110,
    cancel_requested: false,
    reachable: true,
    gpus: 0,
    metric: '',
    value: null,
    metrics: {},
    spark: [],
    verdict: '',
    attention: '',
    log_bytes: 0,
    known: true,
    again: false,
    tracking: '',
    params: {},
    links: [],
    children: [],
    children_hidden: 0,
    parent: '',
    attempt: 1,
    ...more
  };
}

const snapshot = (runs: IRunRow[], targets: ITargetRow[] = []) => ({
  type: 'snapshot' as const,
  seq: 0,
  current: 'local',
  targets,
  workspaces: [],
  runs,
  more: 0,
  trouble: '',
  version: 2
});
const changes = (runs: IRunRow[], gone: string[] = []) => ({
  type: 'changes' as const,
  seq: 1,
  runs,
  gone,
  targets: null,
  workspaces: null,
  current: null,
  trouble: null,
  renew: false
});

test('rows are frozen, newest first, and the same objects while nothing changes', () => {
  const rows = new Rows();
  rows.snapshot(snapshot([row('a', { created: 1 }), row('b', { created: 2 })]));
  const [b, a] = rows.runs;
  assert.deepEqual([b.name, a.name], ['b', 'a']);
  assert.ok(Object.isFrozen(a));
  rows.snapshot(snapshot([row('a', { created: 1 }), row('b', { created: 2, metric: 'loss', value: 1 })]));
  assert.equal(rows.run('local/a'), a);
  assert.notEqual(rows.run('local/b'), b);
  const change = rows.changes(changes([row('a', { created: 1 }), row('c', { created: 3 })], ['local/b', 'local/x']));
  assert.deepEqual(change.runs, ['local/c', 'local/b']);
  assert.deepEqual(
    rows.runs.map(run => run.name),
    ['c', 'a']
  );
  assert.equal(rows.changes(changes([row('a', { created: 1 })])).runs, null);
});

test('what is the matter with the targets is kept until it is over', () => {
  const rows = new Rows();
  rows.snapshot(snapshot([]));
  rows.changes({ ...changes([]), current: 'local', trouble: 'targets.json cannot be read.' });
  rows.changes(changes([]));
  assert.equal(rows.trouble, 'targets.json cannot be read.');
  rows.changes({ ...changes([]), current: 'local', trouble: '' });
  assert.equal(rows.trouble, '');
});

test('an end is reported once, and not for runs that had ended before', () => {
  const watch = new TransitionWatcher();
  const reported = (...rows: IRunRow[]) => watch.update(rows).map(({ row, what }) => `${row.name} ${what}`);
  assert.deepEqual(reported(row('a'), row('old', { state: 'failed', attention: 'It failed.' })), []);
  assert.deepEqual(reported(row('a', { state: 'completed' })), ['a ended']);
  assert.deepEqual(reported(row('a', { state: 'completed' })), []);
  const latest = row('a').created;
  assert.deepEqual(reported(row('quick', { created: latest + 1, state: 'failed' })), ['quick ended'], 'it ended at once');
  assert.deepEqual(reported(row('quick', { created: latest + 1, state: 'failed' })), []);
  // The same handle in another state root is another run.
  assert.deepEqual(reported(row('a', { created: 5, state: 'completed' })), []);
});

test('attention is reported when new, once for each sentence', () => {
  const watch = new TransitionWatcher();
  const reported = (more: Partial<IRunRow>) => watch.update([row('a', more)]).map(({ what }) => what);
  assert.deepEqual(reported({}), []);
  assert.deepEqual(reported({ attention: 'Idle GPUs.' }), ['attention']);
  assert.deepEqual(reported({}), []);
  assert.deepEqual(reported({ attention: 'Idle GPUs.' }), []);
  assert.deepEqual(reported({ attention: 'No answer.' }), ['attention']);
});

test('the filter finds words in names, targets, states and parameters', () => {
  const rows = [
    row('bert', { params: { lr: '0.1' }, state: 'failed' }),
    row('gpt', { target: 'cluster', params: { lr: '0.01' } }),
    row('resnet', { state: 'completed', experiment: 'Vision' })
  ];
  const names = (words: string, state: 'all' | 'live' | 'failed' = 'all') =>
    filterRuns(rows, words, state).map(run => run.name);
  assert.deepEqual(names(''), ['bert', 'gpt', 'resnet']);
  assert.equal(filterRuns(rows, ' ', 'all'), rows);
  assert.deepEqual(names('CLUSTER'), ['gpt']);
  assert.deepEqual(names('lr=0.1'), ['bert']);
  assert.deepEqual(names('vision resnet'), ['resnet']);
  assert.deepEqual(names('', 'live'), ['gpt']);
  assert.deepEqual(names('', 'failed'), ['bert']);
  assert.deepEqual(names('gpt', 'failed'), []);
});

test('only the rows around the window are drawn', () => {
  assert.deepEqual(windowOf(0, 200, 40, 500, 2), [0, 7]);
  assert.deepEqual(windowOf(4000, 200, 40, 500, 2), [98, 107]);
  assert.deepEqual(windowOf(20000, 200, 40, 500, 2), [498, 500]);
  assert.deepEqual(windowOf(20000, 200, 40, 3, 2), [3, 3]);
  assert.deepEqual(windowOf(0, 0, 40, 0), [0, 0]);
});

test('clicks choose one, a range, or another one', () => {
  const all = ['a', 'b', 'c', 'd'];
  assert.deepEqual(select(all, ['a'], 'a', 'c', 'one'), ['c']);
  assert.deepEqual(select(all, ['b'], 'b', 'd', 'range'), ['b', 'c', 'd']);
  assert.deepEqual(select(all, ['c'], 'c', 'a', 'range'), ['c', 'b', 'a']);
  assert.deepEqual(select(all, ['a'], 'gone', 'c', 'range'), ['c']);
  assert.deepEqual(select(all, ['a'], 'a', 'c', 'toggle'), ['a', 'c']);
  assert.deepEqual(select(all, ['a', 'c'], 'c', 'a', 'toggle'), ['c']);
});

test('time goes on for live runs only', () => {
  assert.equal(secondsOf(row('a'), 130), 20);
  assert.equal(secondsOf(row('a', { state: 'completed', ended: 115 }), 130), 5);
  assert.equal(secondsOf(row('a', { state: 'queued', started: null }), 130), 30);
  assert.equal(secondsOf(row('a', { state: 'failed', started: null, ended: 120 }), 130), null);
  assert.equal(elapsed(59.2), '59 s');
  assert.equal(elapsed(60), '1 min 00 s');
  assert.equal(progress(row('a', { phase: 'warm-up' }), 130, trans), 'running · warm-up 20 s');
  assert.equal(progress(row('a', { cancel_requested: true }), 130, trans), 'canceling 20 s');
  assert.equal(
    spoken(row('a', { metric: 'loss', value: 0.25, attention: 'Idle.' }), 130, trans),
    'a, running 20 s, on local, loss 0.25, Idle.'
  );
});

test('a sparkline has a stretch for each side of a hole', () => {
  assert.deepEqual(sparkPoints([0, 100, -1, 50], 30, 12), ['0.0,11.0 10.0,1.0', '30.0,6.0']);
  assert.deepEqual(sparkPoints([], 30, 12), []);
});

test('ticks of GPUs come out of unaligned buffers, and broken ones are dropped', () => {
  const bytes = new Uint8Array(3 + 8 + 16 + 16 + 8);
  const view = new DataView(bytes.buffer, 3);
  view.setUint16(2, 2, true);
  [7, 8].forEach((t, i) => view.setFloat64(8 + 8 * i, t, true));
  [100, 200, 1e9, NaN].forEach((value, i) => view.setFloat32(24 + 4 * i, value, true));
  bytes.set([10, 30, 20, 255, 1, 2, 3, 4], 3 + 40); // two GPUs
  const head = { type: 'gpus', seq: 1, source: 'x' } as any;
  const { ticks } = gpuFrame(head, [view])!;
  assert.deepEqual([...ticks!.t], [7, 8]);
  assert.deepEqual([...ticks!.y], [100, 200, 1e9, NaN, 10, 30, 20, NaN, 1, 2, 3, 4]);
  assert.equal(meanUtil({ head, ticks }), 30);
  assert.equal(gpuFrame(head, [new DataView(bytes.buffer, 3, 20)]), null);
  assert.equal(meanUtil(gpuFrame(head, [])!), null);
});

test('every state but ready says something; what can be done has a button', () => {
  const states: Record<Exclude<ConnectionState, 'ready'>, string | null> = {
    'no-notebook': 'new-notebook',
    'no-kernel': 'choose-kernel',
    'other-language': 'choose-kernel',
    starting: null,
    connecting: null,
    'not-loaded': 'connect',
    loading: null,
    missing: 'connect',
    'other-version': 'retry',
    'not-responding': null,
    reconnecting: 'retry',
    dead: 'restart'
  };
  const connection = (state: ConnectionState): IConnection => ({
    state,
    ready: state === 'ready',
    own: false,
    detail: '',
    lastSeen: 88000,
    busy: true,
    kernelName: 'Python 3',
    notebook: 'a.ipynb'
  });
  for (const [state, remedy] of Object.entries(states)) {
    const found = connectionMessage(connection(state as ConnectionState), trans);
    assert.ok(found && found.title, state);
    assert.equal(found.remedy, remedy, state);
    assert.equal(found.label !== '', remedy !== null, state);
    assert.ok(connectionWord(connection(state as ConnectionState), trans));
  }
  assert.equal(connectionMessage(connection('ready'), trans), null);
  assert.match(connectionMessage(connection('missing'), trans)!.text, /Python 3/);
  assert.equal(connectionMessage(connection('missing'), trans)!.copy, '%pip install jupyter-amltrain');
  assert.match(connectionMessage(connection('loading'), trans)!.text, /running cell/);
  assert.equal(lastSeenText(connection('not-responding'), 100000, trans), 'last seen 12 s ago');
});

test('parameters differ where a value differs or only some runs have them', () => {
  const rows = [row('a', { params: { lr: '0.1', epochs: '3' } }), row('b', { params: { lr: '0.01', epochs: '3' } })];
  assert.deepEqual([...differing(rows)], ['lr']);
  assert.deepEqual([...differing([...rows, row('c')])].sort(), ['epochs', 'lr']);
  assert.deepEqual([...differing([rows[0]])], []);
  assert.deepEqual([...differing([])], []);
});
