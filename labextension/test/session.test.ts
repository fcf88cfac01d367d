import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { IProbe, NoAnswer, Refused } from '../src/kernel/client';
import { IDifference } from '../src/kernel/rows';
import { ILoadReply, ITransport, ISessionListener, ITimers } from '../src/kernel/session';
import { KernelSession } from '../src/kernel/session';
import { ISubscription, NO_SUBSCRIPTION } from '../src/kernel/events';
import type { IRunRow, PanelEvent } from '../src/protocol';

/** Timers advanced by the test. */
class Clock implements ITimers {
  set(run: () => void, ms: number): unknown {
    const timer = { run, at: this.time + ms };
    this._timers.push(timer);
    return timer;
  }

  clear(timer: unknown): void {
    this._timers = this._timers.filter(other => other !== timer);
  }

  now(): number {
    return this.time;
  }

  async pass(ms: number): Promise<void> {
    const end = this.time + ms;
    for (;;) {
      const next = this._timers.filter(timer => timer.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!next) {
        break;
      }
      this.time = Math.max(this.time, next.at);
      this.clear(next);
      next.run();
      await settle();
    }
    this.time = end;
    await settle();
  }

  get waiting(): number {
    return this._timers.length;
  }

  time = 1_000_000;
  private _timers: { run: () => void; at: number }[] = [];
}

const settle = () => new Promise<void>(resolve => setImmediate(resolve));

/** A kernel that is what the test says. */
class FakeKernel implements ITransport {
  status = 'idle';
  kind: IProbe['kind'] = 'ready';
  cellRuns = false;
  detail = '';
  loaded: ILoadReply[] = [];
  probes: number[] = [];
  requests: Record<string, unknown>[] = [];
  comms: string[] = [];
  snapshots = true;
  refusal: Error | null = null;
  /** Requests are never answered. */
  hang = false;
  seq = -1;
  /** Resolves a load that is waited for. */
  finish: (answer: ILoadReply) => void = () => undefined;

  readonly client = {
    trust: () => undefined,
    doubt: () => undefined,
    probe: async (ms: number): Promise<IProbe> => {
      this.probes.push(ms);
      return { kind: this.kind, busy: this.cellRuns, detail: this.detail };
    },
    request: async (op: string, payload: any): Promise<any> => {
      this.requests.push({ op, ...payload });
      if (this.hang) {
        return new Promise(() => undefined);
      }
      if (this.refusal) {
        throw this.refusal;
      }
      const snapshot = op === 'events' && this.snapshots && (payload.seq !== this.seq || this.seq < 0);
      if (snapshot) {
        setImmediate(() => this.snapshot());
      }
      return { version: 2, ok: true, snapshot, why: '', known: true };
    }
  } as unknown as ITransport['client'];

  listen(comm: string, got: (event: unknown, buffers: DataView[]) => void): { dispose(): void } {
    this.comms.push(comm);
    this.seq = -1;
    this._got = got;
    return { dispose: () => (this._got = () => undefined) };
  }

  load(): Promise<ILoadReply> {
    const next = this.loaded.shift();
    return next ? Promise.resolve(next) : new Promise(resolve => (this.finish = resolve));
  }

  send(event: Record<string, unknown>, seq = this.seq + 1): void {
    this.seq = seq;
    this._got({ seq, ...event }, []);
  }

  snapshot(runs: IRunRow[] = []): void {
    this.send({ type: 'snapshot', current: 'local', targets: [], workspaces: [], runs, more: 0, trouble: '', version: 2 });
  }

  get events(): Record<string, unknown>[] {
    return this.requests.filter(request => request.op === 'events');
  }

  private _got: (event: unknown, buffers: DataView[]) => void = () => undefined;
}

const PANEL: ISubscription = { shown: 'panel', gpus: '', looks: [], details: [], meter: 0 };

function made() {
  const kernel = new FakeKernel();
  const clock = new Clock();
  const states: string[] = [];
  const differences: IDifference[] = [];
  const events: PanelEvent[] = [];
  let ids = 0;
  const listener: ISessionListener = {
    stateChanged: () => {
      if (states[states.length - 1] !== session.state) {
        states.push(session.state);
      }
    },
    rowsChanged: difference => void differences.push(difference),
    event: event => void events.push(event),
    gpuReasonChanged: () => undefined
  };
  const session: KernelSession = new KernelSession(kernel, listener, () => `comm-${ids++}`, clock);
  session.subscribe(PANEL);
  return { kernel, clock, session, states, differences, events };
}

async function ready() {
  const all = made();
  all.session.begin();
  await settle();
  await settle();
  assert.equal(all.session.state, 'ready');
  return all;
}

const beat = { type: 'beat', renew: false };

test('a kernel with the extension is probed once, sends a snapshot and is ready', async () => {
  const { kernel, session, clock } = await ready();
  assert.deepEqual(kernel.probes, [8000]);
  assert.equal(kernel.events.length, 1);
  assert.equal(kernel.events[0].seq, -1);
  assert.equal(session.rows.known, true);
  assert.equal(clock.waiting, 0);
});

test('a kernel without the extension offers Connect and is probed after each cell', async () => {
  const { kernel, session } = made();
  kernel.kind = 'not-loaded';
  session.begin();
  await settle();
  assert.equal(session.state, 'not-loaded');
  session.cellRuns(true);
  await settle();
  assert.equal(kernel.probes.length, 1);
  kernel.kind = 'ready';
  session.cellRuns(false);
  await settle();
  await settle();
  assert.equal(session.state, 'ready');
});

test('a cell that ends while we ask may have loaded us', async () => {
  const { kernel, session } = made();
  kernel.kind = 'not-loaded';
  session.begin();
  session.cellRuns(false);
  kernel.kind = 'ready';
  for (let k = 0; k < 4; k++) {
    await settle();
  }
  assert.equal(session.state, 'ready');
  assert.equal(kernel.probes.length, 2);
});

test('another version is reported with its message', async () => {
  const { kernel, session } = made();
  kernel.kind = 'other-version';
  kernel.detail = 'The kernel speaks version 1.';
  session.begin();
  await settle();
  assert.deepEqual([session.state, session.detail], ['other-version', 'The kernel speaks version 1.']);
});

test('connect loads the extension; a failed cell before it does not count as a failure', async () => {
  const { kernel, session, states } = made();
  kernel.kind = 'not-loaded';
  session.begin();
  await settle();
  kernel.loaded = [{ status: 'aborted', ename: '', evalue: '' }];
  const done = session.load();
  await settle();
  assert.equal(session.state, 'loading');
  kernel.kind = 'ready';
  kernel.finish({ status: 'ok', ename: '', evalue: '' });
  await done;
  await settle();
  assert.deepEqual(states, ['not-loaded', 'loading', 'ready']);
});

test('a missing package is distinguished from one that fails to load', async () => {
  const { kernel, session } = made();
  kernel.kind = 'not-loaded';
  session.begin();
  await settle();
  kernel.loaded = [{ status: 'error', ename: 'ModuleNotFoundError', evalue: "No module named 'jupyter_amltrain'" }];
  await session.load();
  assert.equal(session.state, 'missing');
  // A cell that ends (pip, say) leaves the advice on the screen.
  session.cellRuns(false);
  await settle();
  assert.equal(session.state, 'missing');
  kernel.loaded = [{ status: 'error', ename: 'ImportError', evalue: 'too old' }];
  await session.load();
  assert.deepEqual([session.state, session.detail], ['not-loaded', 'ImportError: too old']);
});

test('heartbeats keep a busy kernel alive; silence is probed, reported, then ends the session', async () => {
  const { kernel, session, clock, states } = await ready();
  session.cellRuns(true);
  for (let k = 0; k < 10; k++) {
    await clock.pass(2000);
    kernel.send(beat);
  }
  assert.equal(kernel.probes.length, 1);
  const lastSeen = session.lastSeen;
  kernel.kind = 'not-responding';
  await clock.pass(4900);
  assert.equal(session.state, 'ready');
  await clock.pass(200);
  assert.equal(session.state, 'not-responding');
  assert.equal(session.lastSeen, lastSeen);
  await clock.pass(9500);
  assert.equal(kernel.probes.length, 5);
  kernel.kind = 'ready';
  kernel.cellRuns = true;
  await clock.pass(3000);
  assert.deepEqual(states, ['ready', 'not-responding', 'ready']);
  assert.equal(session.busy, true);
});

test('a cell that takes the kernel before it says that it runs', async () => {
  const { kernel, session, clock, states } = await ready();
  await clock.pass(60000);
  session.cellSent();
  // The control channel may overtake the cell: the kernel knows of none yet.
  session.refresh();
  session.cellSent();
  await settle();
  await settle();
  assert.equal(session.busy, true);
  kernel.kind = 'not-responding';
  await clock.pass(4900);
  assert.equal(session.state, 'ready');
  await clock.pass(200);
  assert.equal(session.state, 'not-responding');
  kernel.kind = 'ready';
  session.cellRuns(false);
  await clock.pass(3000);
  assert.equal(session.busy, false);
  assert.deepEqual(states, ['ready', 'not-responding', 'ready']);
  const probes = kernel.probes.length;
  await clock.pass(60000);
  assert.equal(kernel.probes.length, probes);
});

test('an event ends the silence at once', async () => {
  const { kernel, session, clock } = await ready();
  session.cellRuns(true);
  kernel.kind = 'not-responding';
  await clock.pass(6000);
  assert.equal(session.state, 'not-responding');
  kernel.send(beat);
  assert.equal(session.state, 'ready');
});

test('an idle kernel, or one that nobody looks at, may be silent', async () => {
  const { kernel, session, clock } = await ready();
  await clock.pass(60000);
  session.subscribe({ ...PANEL, shown: 'status' });
  session.cellRuns(true);
  await clock.pass(60000);
  assert.equal(kernel.probes.length, 1);
  assert.equal(session.state, 'ready');
});

test('a request without an answer asks whether the kernel is there', async () => {
  const { kernel, session } = await ready();
  kernel.kind = 'not-responding';
  kernel.refusal = new NoAnswer('no answer in 4 s');
  await assert.rejects(session.request('cancel', { handle: 'local/a' }), NoAnswer);
  await settle();
  assert.equal(session.state, 'not-responding');
});

test('a request that fails after its kernel is gone asks nothing more', async () => {
  const { kernel, session, clock } = await ready();
  kernel.kind = 'not-responding';
  kernel.refusal = new NoAnswer('no answer in 4 s');
  const reply = session.request('cancel', { handle: 'local/a' });
  session.dispose();
  await assert.rejects(reply, NoAnswer);
  await clock.pass(60000);
  assert.equal(kernel.probes.length, 1);
});

test('a refusal is an answer', async () => {
  const { kernel, session } = await ready();
  kernel.refusal = new Refused('No run local/a.');
  await assert.rejects(session.request('cancel', { handle: 'local/a' }), Refused);
  await settle();
  assert.equal(session.state, 'ready');
});

test('a gap requests one snapshot, and later events wait for it', async () => {
  const { kernel, events } = await ready();
  kernel.snapshots = false;
  kernel.send(beat, 5);
  kernel.send(beat, 6);
  await settle();
  assert.equal(kernel.events.length, 2);
  assert.equal(kernel.events[1].seq, 0);
  assert.equal(events.length, 0);
  kernel.snapshot();
  kernel.send(beat);
  assert.equal(events.length, 1);
});

test('the page replies to a probe of the kernel', async () => {
  const { kernel } = await ready();
  kernel.send({ type: 'beat', renew: true });
  await settle();
  assert.equal(kernel.events.length, 2);
  assert.equal(kernel.events[1].seq, 1);
});

test('wishes go out once, the last of them counts', async () => {
  const { kernel, session } = await ready();
  session.subscribe({ ...PANEL, gpus: 'local/a' });
  session.subscribe({ ...PANEL, gpus: 'local/b' });
  session.subscribe({ ...PANEL, gpus: 'local/c' });
  await settle();
  assert.deepEqual(
    kernel.events.map(request => request.gpus),
    ['', 'local/a', 'local/c']
  );
  session.subscribe({ ...PANEL, gpus: 'local/c' });
  await settle();
  assert.equal(kernel.events.length, 3);
});

test('a restart discards the comm and connects again', async () => {
  const { kernel, session, states } = await ready();
  session.statusChanged('restarting');
  assert.equal(session.state, 'starting');
  session.connectionChanged(false);
  assert.equal(session.state, 'starting');
  kernel.kind = 'not-loaded';
  session.connectionChanged(true);
  await settle();
  assert.equal(session.state, 'not-loaded');
  kernel.kind = 'ready';
  session.cellRuns(false);
  await settle();
  await settle();
  assert.deepEqual(kernel.comms, ['comm-0', 'comm-1']);
  assert.equal(states[states.length - 1], 'ready');
});

test('a lost server keeps the rows and is found again with the same comm', async () => {
  const { kernel, session, states } = await ready();
  session.connectionChanged(false);
  assert.equal(session.state, 'reconnecting');
  session.connectionChanged(true);
  await settle();
  await settle();
  assert.deepEqual(states, ['ready', 'reconnecting', 'ready']);
  assert.deepEqual(kernel.comms, ['comm-0']);
  assert.equal(kernel.events[1].seq, 0);
});

test('a dead kernel is dead until it is restarted', async () => {
  const { session, clock } = await ready();
  session.statusChanged('dead');
  session.connectionChanged(false);
  assert.equal(session.state, 'dead');
  assert.equal(clock.waiting, 0);
  session.statusChanged('restarting');
  assert.equal(session.state, 'starting');
});

test('nothing is left when it is disposed of', async () => {
  const { kernel, session, clock } = await ready();
  session.cellRuns(true);
  session.dispose();
  assert.equal(clock.waiting, 0);
  kernel.snapshot();
  await clock.pass(60000);
  assert.equal(kernel.probes.length, 1);
});

test('a page without a panel in view hears of the end', async () => {
  const { kernel, session } = await ready();
  session.subscribe({ shown: '', gpus: '', looks: [], details: [], meter: 0 });
  await settle();
  assert.equal(kernel.events[1].shown, '');
});

test('a kernel asks twice before our answer is through, and is answered once', async () => {
  const { kernel } = await ready();
  kernel.send({ type: 'beat', renew: true });
  kernel.send({ type: 'beat', renew: true });
  await settle();
  await settle();
  assert.equal(kernel.events.length, 2);
});

test('a request from before a restart does not block later ones', async () => {
  const { kernel, session } = await ready();
  kernel.hang = true;
  session.subscribe({ ...PANEL, gpus: 'local/a' });
  session.statusChanged('restarting');
  kernel.hang = false;
  session.statusChanged('idle');
  await settle();
  await settle();
  assert.equal(session.state, 'ready');
  assert.deepEqual(
    kernel.events.map(request => request.comm),
    ['comm-0', 'comm-0', 'comm-1']
  );
});

test('a restart while we ask: the answer of the old kernel says nothing of the new one', async () => {
  const { kernel, session } = made();
  kernel.kind = 'not-loaded';
  session.begin();
  session.statusChanged('restarting');
  await settle();
  assert.equal(session.state, 'starting');
});

test('subscriptions changed during an outage are sent when the kernel is back', async () => {
  const { kernel, session, clock } = await ready();
  session.cellRuns(true);
  kernel.kind = 'not-responding';
  await clock.pass(6000);
  session.subscribe({ ...PANEL, gpus: 'local/a' });
  assert.equal(kernel.events.length, 1);
  kernel.send(beat);
  await settle();
  assert.equal(kernel.events[1].gpus, 'local/a');
});

test('nobody looks: a kernel that does not answer is left alone until somebody does', async () => {
  const { kernel, session, clock } = await ready();
  session.cellRuns(true);
  kernel.kind = 'not-responding';
  await clock.pass(6000);
  session.subscribe({ ...PANEL, shown: '' });
  await clock.pass(60000);
  const probes = kernel.probes.length;
  await clock.pass(60000);
  assert.equal(kernel.probes.length, probes);
  assert.equal(clock.waiting, 0);
  kernel.kind = 'ready';
  session.subscribe(PANEL);
  await settle();
  await settle();
  assert.equal(session.state, 'ready');
});

test('left while it did not answer, a kernel hears that nobody listens when it is back', async () => {
  const { kernel, session, clock } = await ready();
  session.cellRuns(true);
  kernel.kind = 'not-responding';
  await clock.pass(6000);
  session.subscribe({ ...PANEL, shown: '' });
  kernel.send({ type: 'changes', runs: [], gone: [], targets: null, workspaces: null, current: null, trouble: null, renew: false });
  await settle();
  assert.equal(kernel.events[kernel.events.length - 1].shown, '');
});

test('a kernel that sleeps for an hour is not probed a thousand times', async () => {
  const { kernel, session, clock } = await ready();
  session.cellRuns(true);
  kernel.kind = 'not-responding';
  await clock.pass(3_600_000);
  assert.ok(kernel.probes.length < 150, `${kernel.probes.length}`);
});

test('refreshed, the rows stay in view and the old comm is ended', async () => {
  const { kernel, session, states } = await ready();
  session.refresh();
  await settle();
  await settle();
  assert.deepEqual(states, ['ready']);
  assert.deepEqual(
    kernel.events.map(request => [request.comm, request.shown]),
    [
      ['comm-0', 'panel'],
      ['comm-0', ''],
      ['comm-1', 'panel']
    ]
  );
});

test('a page that goes away says so, whatever is on its way', async () => {
  const { kernel, session } = await ready();
  kernel.hang = true;
  session.subscribe({ ...PANEL, gpus: 'local/a' });
  session.unsubscribe();
  assert.equal(kernel.events[2].shown, '');
});

test('Connect pressed while we ask does not keep us from asking later', async () => {
  const { kernel, session } = made();
  kernel.kind = 'not-loaded';
  session.begin();
  await settle();
  session.cellRuns(false);
  kernel.loaded = [{ status: 'error', ename: 'ImportError', evalue: 'too old' }];
  await session.load();
  assert.equal(session.state, 'not-loaded');
  kernel.kind = 'ready';
  session.cellRuns(false);
  await settle();
  await settle();
  assert.equal(session.state, 'ready');
});

test('kind of a kernel that nobody follows is known from the first probe', async () => {
  const { kernel, session } = made();
  session.subscribe(NO_SUBSCRIPTION);
  session.begin();
  assert.equal(await session.kind(), 'ready');
  assert.equal(await session.kind(), 'ready');
  assert.equal(kernel.probes.length, 1);
});

test('kind of a silent kernel that nobody follows is probed again, every few seconds at most', async () => {
  const { kernel, session, clock } = made();
  session.subscribe(NO_SUBSCRIPTION);
  kernel.kind = 'not-responding';
  session.begin();
  assert.equal(await session.kind(), 'not-responding');
  await clock.pass(10_000);
  const probes = kernel.probes.length;
  kernel.kind = 'ready';
  assert.equal(await session.kind(), 'ready');
  assert.equal(await session.kind(), 'ready');
  assert.equal(kernel.probes.length, probes + 1);
});

test('kind after a request without an answer is not the one of before', async () => {
  const { kernel, session } = await ready();
  kernel.kind = 'not-loaded';
  kernel.refusal = new NoAnswer('no answer in 4 s');
  await assert.rejects(session.request('cancel', { handle: 'local/a' }), NoAnswer);
  assert.equal(await session.kind(), 'not-loaded');
});

test('kind after a cell has loaded the extension waits for the probe that is on its way', async () => {
  const { kernel, session } = made();
  kernel.kind = 'not-loaded';
  session.begin();
  assert.equal(await session.kind(), 'not-loaded');
  await settle();
  kernel.kind = 'ready';
  session.cellRuns(false);
  assert.equal(await session.kind(), 'ready');
});
