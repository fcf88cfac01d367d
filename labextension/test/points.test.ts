import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { NodeHistory } from '../src/charts/series';
import { IStored, layoutOf, MetricStore, placed, pointsOf, specOf } from '../src/widgets/frames';

/** Two nodes of one GPU each, ten ticks: the second is ten percent above the first. */
function stored(): IStored {
  const layout = layoutOf({
    nodes: [
      { node: 0, columns: ['gpu0.util', 'cpu'] },
      { node: 5, columns: ['gpu0.util', 'cpu'] }
    ]
  });
  const nodes = layout.nodes.map(({ columns }, i) => {
    const history = new NodeHistory(columns.length, 32, 8, 1);
    for (let at = 0; at < 10; at++) {
      const y = Float32Array.of(10 * i + at, 50);
      assert.ok(history.take({ node: 5 * i, first: at, count: 1, t: Float64Array.of(100 + at), y }));
    }
    return history;
  });
  return { layout, nodes, metrics: new MetricStore() };
}

test('lines are of one node, by its number', () => {
  const found = pointsOf(stored(), specOf({ kind: 'lines', node: 5, columns: [0, 1] }), [100, 110]);
  assert.deepEqual([...(found?.y[0] ?? [])].slice(0, 3), [10, 11, 12]);
  assert.deepEqual([...(found?.y[1] ?? [])].slice(0, 2), [50, 50]);
  assert.equal(found?.x[0], 100, 'unix seconds');
  assert.equal(pointsOf(stored(), specOf({ kind: 'lines', node: 3, columns: [0] }), [100, 110]), null);
});

test('a band is over all nodes that have the field', () => {
  const found = pointsOf(stored(), specOf({ kind: 'band', field: 'util' }), [100, 110]);
  assert.ok(found && found.y.length >= 2);
  assert.equal(pointsOf(stored(), specOf({ kind: 'band', field: 'power' }), [100, 110]), null);
});

test('a span needs no ticks, an unknown metric and a static mark are not drawn here', () => {
  const span = pointsOf(stored(), specOf({ kind: 'span', start: 1, end: 2 }), [0, 10]);
  assert.deepEqual([[...(span?.x ?? [])], [...(span?.y[0] ?? [])]], [[1, 2], [1, 1]]);
  assert.equal(pointsOf(stored(), specOf({ kind: 'metric', name: 'loss' }), [0, 10]) ?? null, null);
  assert.equal(pointsOf(stored(), specOf({ kind: 'static' }), [0, 10]), null);
});

test('marks are one line with gaps: by time, or by the steps that they have', () => {
  const marks = [{ time: 105, step: 7, label: 'lr /= 10' }, { time: 108, step: null, label: 'x' }, { label: 3 }];
  const drawn = (steps: boolean, byTime = false) => {
    const found = stored();
    found.metrics.byTime = byTime;
    const points = pointsOf(found, specOf({ kind: 'marks', steps, marks: marks.slice(0, 2) }), [100, 110]);
    return [[...(points?.x ?? [])], [...(points?.y[0] ?? [])]];
  };
  assert.deepEqual(drawn(false), [[105, 105, 105, 108, 108, 108], [0, 1, NaN, 0, 1, NaN]]);
  assert.deepEqual(drawn(true), [[7, 7, 7], [0, 1, NaN]]);
  assert.deepEqual(drawn(true, true)[0], drawn(false)[0]);
  const spec = specOf({ kind: 'marks', steps: true, marks });
  assert.ok(spec.kind === 'marks');
  assert.deepEqual(placed(spec, false), [[7, 'lr /= 10']]);
  assert.deepEqual(spec.marks[2], { time: 0, step: null, label: '' });
});

test('a metric is drawn along its steps, not in milliseconds', () => {
  const found = stored();
  found.metrics.take({ values: { loss: { t: [9, 9], s: [3, 8], i: [0, 1], v: [1, null] } }, all: true });
  const points = pointsOf(found, specOf({ kind: 'metric', name: 'loss' }), [3, 8]);
  assert.deepEqual([[...(points?.x ?? [])], [...(points?.y[0] ?? [])]], [[3, 8], [1, NaN]]);
});
