import * as assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { Follower } from '../src/output/follower';
import { MetricStore, SampleAge } from '../src/widgets/frames';
import { IFeed } from '../src/widgets/feeds';
import { DrawGate, ITimers } from '../src/charts/drawGate';
import { secondsOf, ShownSpan, ShownSteps, untold, YRanges } from '../src/widgets/axes';
import { metricAxis, tickLabels } from '../src/charts/scale';
import { within, zoomed } from '../src/widgets/zoom';

/** Timers that the test moves. */
class Clock implements ITimers {
  time = 0;
  private _jobs: { at: number; run: () => void }[] = [];
  now = () => this.time;
  set(run: () => void, ms: number): unknown {
    const job = { at: this.time + ms, run };
    this._jobs.push(job);
    return job;
  }
  clear(job: unknown): void {
    this._jobs = this._jobs.filter(other => other !== job);
  }
  pass(ms: number): void {
    const end = this.time + ms;
    for (;;) {
      const next = this._jobs.filter(job => job.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!next) {
        break;
      }
      this.clear(next);
      this.time = next.at;
      next.run();
    }
    this.time = end;
  }
}

function gate(rate = 4) {
  const clock = new Clock();
  const state = { draws: 0, seen: true };
  const found = new DrawGate(
    () => void (state.draws += 1),
    () => state.seen,
    () => rate,
    clock
  );
  return { clock, state, found };
}

test('at most so many draws a second, and the last change is drawn', () => {
  const { clock, state, found } = gate();
  for (let i = 0; i < 100; i++) {
    found.dirty();
    clock.pass(10);
  }
  assert.ok(state.draws >= 4 && state.draws <= 5, `${state.draws}`);
  const before = state.draws;
  found.dirty();
  clock.pass(300);
  assert.equal(state.draws, before + 1);
  clock.pass(10000);
  assert.equal(state.draws, before + 1, 'nothing new, nothing drawn');
});

test('what nobody sees is not drawn, and drawn once it is seen', () => {
  const { clock, state, found } = gate();
  state.seen = false;
  for (let i = 0; i < 60; i++) {
    found.dirty();
    clock.pass(1000);
  }
  assert.equal(state.draws, 0);
  state.seen = true;
  found.look();
  clock.pass(1);
  assert.equal(state.draws, 1);
  state.seen = false;
  found.force();
  assert.equal(state.draws, 2, 'a snapshot is drawn whoever looks');
});

test('what may wait is drawn with what may not', () => {
  const { clock, state, found } = gate();
  found.force();
  clock.pass(1000);
  found.dirty(1000);
  clock.pass(400);
  assert.equal(state.draws, 1);
  found.dirty();
  clock.pass(1);
  assert.equal(state.draws, 2);
  clock.pass(5000);
  assert.equal(state.draws, 2);
  found.dispose();
  found.dirty();
  clock.pass(5000);
  assert.equal(state.draws, 2);
});

test('the shown span follows the newest tick until the person zooms', () => {
  const span = new ShownSpan();
  span.window = 60;
  assert.deepEqual(span.at(1000, 1005), [1000, 1005], 'nothing beyond the data');
  assert.deepEqual(span.at(1000, 1000), [1000, 1001]);
  assert.deepEqual(span.at(1000, 1030), [1000, 1030]);
  assert.deepEqual(span.at(1000, 5000), [4940, 5000]);
  span.choose([2000, 2100]);
  assert.deepEqual(span.at(1000, 6000), [2000, 2100]);
  span.resize(30, 1000, 6000);
  assert.deepEqual(span.at(1000, 6000), [2070, 2100]);
  span.resize(0, 1000, 6000);
  assert.deepEqual(span.at(1000, 6000), [1000, 6000]);
});

test('lengths in the labels of the window control', () => {
  assert.deepEqual(['30 s', '2 min', '1 h', '1.5 h', 'all', ''].map(secondsOf), [30, 120, 3600, 5400, 0, 0]);
});

test('labels of ticks have the digits that make them true', () => {
  assert.deepEqual(tickLabels([0, 0.25, 0.5, 0.75]), ['0', '0.25', '0.5', '0.75']);
  assert.deepEqual(tickLabels([1000, 1000.05, 1000.1]), ['1000', '1000.05', '1000.1']);
  assert.deepEqual(tickLabels([-2e-7, 0, 2e-7]), ['-2e-7', '0', '2e-7']);
  assert.deepEqual(tickLabels([1e6, 1.5e6]), ['1e6', '1.5e6']);
  assert.deepEqual(tickLabels([5]), ['5']);
  assert.deepEqual(tickLabels([0]), ['0']);
});

test('the axis of a metric is its data, and its ticks lie inside', () => {
  for (const [from, to] of [[0, 1], [0.86, 1], [0.5, 0.5], [0, 0], [-3, 7e8], [1e-9, 2e-9], [9.99999, 10]]) {
    const { min, max, ticks, labels } = metricAxis(from, to);
    assert.ok(min < from && max > to, `${from} to ${to}`);
    assert.ok(from === to || (max - min) / (to - from) < 1.11, `${from} to ${to} is shown from ${min} to ${max}`);
    assert.ok(ticks.length && ticks.every(tick => tick >= min && tick <= max));
    assert.equal(new Set(labels).size, labels.length);
  }
});

test('zooming and panning never leave the data', () => {
  assert.deepEqual(zoomed([0, 100], [0, 100], 0.5, 300, 2), [0, 100]);
  const [from, to] = zoomed([0, 100], [0, 100], 0.25, -1000 * Math.log(2), 2);
  assert.deepEqual([Math.round(from * 10) / 10, Math.round(to * 10) / 10], [12.5, 62.5]);
  assert.deepEqual(zoomed([10, 12], [0, 100], 0.5, -1e6, 2), [10, 12]);
  assert.deepEqual(within([-20, 30], [0, 100]), [0, 50]);
  assert.deepEqual(within([80, 130], [0, 100]), [50, 100]);
});

test('chosen steps are kept until everything is shown again', () => {
  const store = new MetricStore();
  const take = (...s: number[]) =>
    store.take({ values: { loss: { t: s, s, i: s.map((_, i) => i), v: s } }, all: false });
  const steps = new ShownSteps(() => store);
  assert.equal(steps.shown('loss'), null);
  take(0, 10, 20);
  steps.choose('loss', [5, 10]);
  take(30);
  assert.deepEqual([steps.shown('loss'), steps.all('loss')], [[5, 10], [0, 30]]);
  steps.choose('loss', [0, 30]);
  take(40);
  assert.deepEqual(steps.shown('loss'), [0, 40]);
  steps.choose('loss', [1, 2]);
  steps.reset();
  assert.deepEqual(steps.shown('loss'), [0, 40]);
});

test('limits that the kernel set hold as long as the values fit', () => {
  const scale = (state: Record<string, any>) => ({ state, get: (k: string) => state[k], set_state: (s: any) => void Object.assign(state, s) });
  const [fixed, free] = [scale({ min: 0, max: 100 }), scale({ min: 0, max: null })];
  const ranges = new YRanges();
  for (const top of [50, 80]) {
    ranges.add(fixed, [Float32Array.of(3, 7)], { fixed: { min: 0, max: 100, ticks: [0, 100], labels: ['0', '100'] } });
    ranges.add(free, [Float32Array.of(NaN, top)]);
    ranges.apply();
  }
  assert.deepEqual([fixed.state.min, fixed.state.max], [0, 100]);
  assert.deepEqual([free.state.min, free.state.max], [0, 90]);
  ranges.add(fixed, [Float32Array.of(120)], { fixed: { min: 0, max: 100, ticks: [0, 100], labels: ['0', '100'] } });
  ranges.apply();
  assert.equal(fixed.state.max, 120);
});

test('the age of a sample does not depend on the clocks agreeing', () => {
  for (const skew of [0, 3600, -3600]) {
    const age = new SampleAge();
    for (let i = 0; i < 10; i++) {
      age.arrived(1000 + i, 1000 + i + 0.2 + skew);
    }
    const found = age.at(1012.2 + skew);
    assert.ok(Math.abs(found - 3) < 0.3, `${skew}: ${found}`);
  }
  assert.ok(Number.isNaN(new SampleAge().at(5)));
});

function follower() {
  const sent: any[] = [];
  let lost = () => undefined as void;
  const feed = { feedId: 'f', ended: false, seen: [7, 9], onGap: null, onLost: (c: () => void) => void (lost = c) } as unknown as IFeed;
  const state = { known: true };
  const client = { request: (_: 'follow', payload: any) => (sent.push(payload), Promise.resolve({ known: state.known } as any)) };
  return { sent, feed, state, found: new Follower(feed, client), lost: () => lost() };
}

test('a glance at another tab is not told, a longer one is, and so is the return', () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const { sent, found, lost } = follower();
    const who = { lost: () => undefined };
    found.join(who);
    found.tell(who, false);
    mock.timers.tick(1000);
    found.tell(who, true);
    mock.timers.tick(60000);
    assert.deepEqual(sent, []);
    found.tell(who, false);
    mock.timers.tick(60000);
    found.tell(who, true);
    assert.deepEqual(sent, [
      { feed: 'f', shown: false, seen: [], view: '' },
      { feed: 'f', shown: true, seen: [7, 9], view: '' }
    ]);
    lost();
    found.tell(who, false);
    mock.timers.tick(60000);
    assert.equal(sent.length, 2, 'a feed that is gone is not talked about');
  } finally {
    mock.timers.reset();
  }
});

test('one of two outputs that is seen is enough; a gap asks once in a while', () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'], now: 1e6 });
  try {
    const { sent, found, feed } = follower();
    const [one, two] = [{ lost: () => undefined }, { lost: () => undefined }];
    found.join(one);
    found.join(two);
    found.tell(one, false);
    mock.timers.tick(60000);
    assert.equal(sent.length, 0);
    feed.onGap?.();
    feed.onGap?.();
    assert.deepEqual(sent, [{ feed: 'f', shown: true, seen: [7, 9], view: '' }]);
    found.leave(two);
    mock.timers.tick(60000);
    assert.equal(sent[1].shown, false);
  } finally {
    mock.timers.reset();
  }
});

test('a view that is chosen is asked for, and so is what was before', () => {
  const { sent, found, feed } = follower();
  found.join({ lost: () => undefined });
  feed.onGap?.();
  feed.onView?.('clocks');
  feed.onGap?.();
  assert.deepEqual(
    sent.map(({ shown, view }) => [shown, view]),
    [
      [true, ''],
      [true, 'clocks'],
      [true, 'clocks']
    ]
  );
});

test('a follower is notified when the kernel closes its feed', async () => {
  const { found, state, feed } = follower();
  state.known = false;
  let gone = 0;
  found.join({ lost: () => void (gone += 1) });
  feed.onGap?.();
  await new Promise(resolve => setImmediate(resolve));
  assert.equal(gone, 1);
});

/** A widget model: state and nothing else. */
function model(state: Record<string, unknown>) {
  return { state, get: (name: string) => state[name], set_state: (news: object) => void Object.assign(state, news) };
}

test('a line is untold while it has times but no value', () => {
  const points = (...y: number[]) => ({ x: Float64Array.from(y.keys()), y: [Float32Array.from(y)] });
  assert.equal(untold(points()), false, 'before the first sample nothing is known, not even that');
  assert.equal(untold(points(NaN, NaN)), true);
  assert.equal(untold(points(NaN, 3)), false);
});

test('an axis has limits before there is a value', () => {
  const scale = model({ min: 0, max: null });
  const ranges = new YRanges();
  ranges.add(scale, [Float32Array.of(NaN)]);
  ranges.apply();
  assert.deepEqual([scale.state.min, scale.state.max], [0, 1]);
  ranges.add(scale, [Float32Array.of(0, 29)]);
  ranges.apply();
  assert.deepEqual([scale.state.min, scale.state.max], [0, 30]);
});
