import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { normalise, shownSpans, spans, summary } from '../src/record';

test('anything becomes a record', () => {
  for (const raw of [undefined, null, 3, [], {}, { metrics: 3, phases: 'x', log: null, telemetry: [] }]) {
    const record = normalise(raw);
    assert.equal(record.state, 'preparing');
    assert.deepEqual(record.phases, []);
    assert.equal(record.log.tail, '');
  }
  const record = normalise({ handle: 'local/digits-1', state: 'exploded', metrics: { loss: { value: [1, 'x'] } } });
  assert.equal(record.target, 'local');
  assert.equal(record.name, 'digits-1');
  assert.equal(record.state, 'preparing');
  const loss = { step: [], value: [1, null], seconds: [], last: null, n: 0, rank: 0, source: '' };
  assert.deepEqual(record.metrics.loss, loss);
});

test('lengths of phases come from the target clock alone', () => {
  const record = normalise({
    handle: 'local/a',
    state: 'running',
    seen_at: 1010,
    phases: [
      { name: 'queued', start: 1000, end: 1002, seconds: 2.5 },
      { name: 'running', start: 1002, end: null, seconds: null }
    ]
  });
  assert.deepEqual(spans(record, 3), [
    { name: 'queued', seconds: 2.5, open: false },
    { name: 'running', seconds: 11, open: true }
  ]);
});

test('the value of a metric that is not finite is a text', () => {
  const last = (x: unknown) => normalise({ metrics: { loss: { step: [0], value: [null], last: x } } }).metrics.loss.last;
  assert.deepEqual(['nan', 'inf', '-inf', {}, null].map(last), ['nan', 'inf', '-inf', null, null]);
});

test('the terminal state is not a phase that lasts', () => {
  const record = normalise({
    state: 'completed',
    seen_at: 50,
    phases: [
      { name: 'running', start: 0, end: 9, seconds: 9 },
      { name: 'completed', start: 9, end: null }
    ]
  });
  assert.deepEqual(spans(record, 100), [{ name: 'running', seconds: 9, open: false }]);
});

test('summary is one line', () => {
  const record = normalise({
    handle: 'local/a',
    state: 'failed',
    error: 'boom',
    metrics: { loss: { step: [0], value: [0.5], last: 0.5, n: 1 } }
  });
  assert.equal(summary(record), 'local/a: failed, boom, loss 0.5');
});

test('a queue shorter than a second is not shown', () => {
  const span = (name: string, seconds: number, open = false) => ({ name, seconds, open });
  const running = span('running', 4);
  assert.deepEqual(shownSpans([span('queued', 0.01), running]), [running]);
  assert.equal(shownSpans([span('queued', 1.2), running]).length, 2);
  assert.equal(shownSpans([span('queued', 0.2, true)]).length, 1);
});
