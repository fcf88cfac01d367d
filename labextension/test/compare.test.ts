import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { normalise } from '../src/record';
import { compareRows, gpuSummary, overlays, seconds } from '../src/tabs/compareRows';

const trans: any = {
  __: (text: string, ...values: unknown[]) => values.reduce((t: string, v, i) => t.replace(`%${i + 1}`, String(v)), text)
};

const run = (more: Record<string, unknown>) =>
  normalise({ handle: 'a/1', name: 'x', target: 'a', state: 'completed', ...more });

const row = (rows: ReturnType<typeof compareRows>, name: string) => rows.find(found => found.name === name);

test('rows tell what differs, and leave out what neither has', () => {
  const a = run({ params: { lr: 0.1, n: 3, same: 'x' }, outputs: { ok: true } });
  const b = run({ handle: 'b/2', target: 'b', params: { lr: 0.2, same: 'x', late: '' }, state: 'failed', exit_code: 3 });
  const rows = compareRows([a, b], trans);
  assert.deepEqual([row(rows, 'lr')?.values[0], row(rows, 'lr')?.values[1], row(rows, 'lr')?.differs], ['0.1', '0.2', true]);
  assert.deepEqual([row(rows, 'n')?.values[1], row(rows, 'n')?.differs], ['', true]);
  assert.equal(row(rows, 'same')?.differs, false);
  assert.deepEqual([row(rows, 'late')?.values[1], row(rows, 'late')?.differs], ["''", true]);
  assert.equal(row(rows, 'state')?.values[1], 'failed (exit code 3)');
  assert.equal(row(rows, 'target')?.differs, true);
  assert.equal(row(rows, 'error'), undefined);
  assert.equal(row(rows, 'ok')?.values[0], 'true');
});

test('long values that begin alike are not the same', () => {
  const long = 'x'.repeat(500);
  const rows = compareRows([run({ params: { p: `${long}a` } }), run({ params: { p: `${long}b` } })], trans);
  assert.equal(row(rows, 'p')?.values[0], row(rows, 'p')?.values[1]);
  assert.equal(row(rows, 'p')?.differs, true);
});

test('metrics have last, lowest and highest', () => {
  const a = run({ metrics: { loss: { step: [0, 1, 2], value: [3, null, 1], last: 1 } } });
  const rows = compareRows([a, run({})], trans);
  assert.deepEqual(
    ['last', 'lowest', 'highest'].map(what => row(rows, `loss, ${what}`)?.values[0]),
    ['1', '1', '3']
  );
  assert.equal(row(rows, 'loss, last')?.differs, true);
});

test('two metrics lie on one axis of steps', () => {
  const a = run({ metrics: { m: { step: [0, 10], value: [0, 10] }, own: { step: [0], value: [1] } } });
  const b = run({ metrics: { m: { step: [5, 20], value: [1, 2] } } });
  assert.deepEqual(overlays([a, b]), [
    { name: 'm', x: [0, 5, 10, 20], rows: [[0, 5, 10, null], [null, 1, 1 + 1 / 3, 2]] }
  ]);
  const flat = run({ metrics: { m: { step: [0, 0, 0], value: [1, 2, 3] } } });
  assert.deepEqual(overlays([flat, flat])[0].x, [0, 1, 2]);
});

test('duration and GPUs of a run', () => {
  assert.equal(seconds(run({ phases: [{ name: 'running', start: 5, end: 9, seconds: null }] })), 4);
  assert.equal(seconds(run({})), null);
  const summary = { gpus: [{ util_mean: 10, memory_peak: 1024 }, { util_mean: 30, energy_wh: 2 }] };
  assert.deepEqual(gpuSummary(run({ summary })), { gpus: 2, util: 20, memory: 2 ** 30, energy: 2 });
});

test('any number of runs is compared, also those without a metric', () => {
  const series = (...value: number[]) => ({ step: value.map((_, i) => i), value, seconds: [], last: value[value.length - 1], n: value.length, rank: 0 });
  const three = [run({ metrics: { m: series(1, 2) } }), run({ metrics: {} }), run({ metrics: { m: series(3) } })];
  assert.deepEqual(row(compareRows(three, trans), 'm, last')?.values, ['2', '', '3']);
  assert.deepEqual(overlays(three).map(({ rows }) => rows), [[[1, 2], null, [3, null]]]);
  assert.deepEqual(overlays(three.slice(0, 2)), [], 'one curve is no comparison');
});

test('lines are compared by their text', () => {
  const lines = (shares: Record<string, number>) => {
    const entries = Object.entries(shares);
    const marks = entries.map(([, share], row) => ({ line: row + 2, share, total: share, work: 1, row }));
    return { table: { key: 'lines', rows: entries.map(([code]) => ['2', code]) }, marks };
  };
  const a = run({ lines: lines({ 'for x in loader:': 0.61, 'step(x)': 0.3 }) });
  const rows = compareRows([a, run({ lines: lines({ 'import y': 0.02, 'for x in loader:': 0.1, 'step(x)': 0.31 }) }), run({})], trans);
  assert.deepEqual(row(rows, 'for x in loader:')?.values, ['61 %', '10 %', '']);
  assert.equal(row(rows, 'for x in loader:')?.differs, true);
  assert.equal(row(rows, 'import y')?.differs, false);
});
