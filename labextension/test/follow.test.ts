import * as assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { Signal } from '@lumino/signaling';
import { NotebookFollower } from '../src/kernel/follow';
import { PageSubscription } from '../src/kernel/events';

/** A notebook and its session context, as far as they are looked at. */
class Notebook {
  isDisposed = false;
  disposed = new Signal<this, void>(this);
  context = { pathChanged: new Signal<this, void>(this) };
  sessionContext = {
    session: null as { kernel: object } | null,
    kernelDisplayStatus: 'initializing',
    hasNoKernel: true,
    ready: new Promise<void>(() => undefined),
    kernelChanged: new Signal<this, void>(this),
    sessionChanged: new Signal<this, void>(this),
    statusChanged: new Signal<this, void>(this),
    connectionStatusChanged: new Signal<this, void>(this)
  };

  dispose(): void {
    this.isDisposed = true;
    this.disposed.emit();
  }
}

class Tracker {
  currentWidget: Notebook | null = null;
  open: Notebook[] = [];
  currentChanged = new Signal<this, Notebook | null>(this);
  widgetAdded = new Signal<this, Notebook>(this);

  forEach(run: (notebook: Notebook) => void): void {
    this.open.forEach(run);
  }

  find(test: (notebook: Notebook) => boolean): Notebook | undefined {
    return this.open.find(test);
  }

  add(notebook: Notebook): void {
    this.open.push(notebook);
    this.widgetAdded.emit(notebook);
  }

  activate(notebook: Notebook | null): void {
    this.currentWidget = notebook;
    this.currentChanged.emit(notebook);
  }
}

function made() {
  const tracker = new Tracker();
  const follower = new NotebookFollower(tracker as any);
  let notifications = 0;
  follower.changed.connect(() => void notifications++);
  return { tracker, follower, notifications: () => notifications };
}

test('the active notebook is followed, and another when it is closed', () => {
  const { tracker, follower } = made();
  const [a, b] = [new Notebook(), new Notebook()];
  assert.equal(follower.notebook, null);
  tracker.add(a);
  tracker.activate(a);
  tracker.add(b);
  tracker.activate(b);
  assert.equal(follower.notebook, b);
  tracker.currentWidget = null;
  b.dispose();
  assert.equal(follower.notebook, a);
  tracker.activate(null);
  assert.equal(follower.notebook, a);
  a.dispose();
  assert.equal(follower.notebook, null);
});

test('what Jupyter says of a notebook that was left is not heard', () => {
  const { tracker, notifications } = made();
  const [a, b] = [new Notebook(), new Notebook()];
  tracker.add(a);
  tracker.activate(a);
  tracker.add(b);
  for (let k = 0; k < 5; k++) {
    tracker.activate(a);
    tracker.activate(b);
  }
  const before = notifications();
  a.sessionContext.statusChanged.emit();
  a.sessionContext.kernelChanged.emit();
  assert.equal(notifications(), before);
  b.sessionContext.statusChanged.emit();
  assert.equal(notifications(), before + 1);
});

test('a kernel is on its way for a moment; then there is none', () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  try {
    const { tracker, follower, notifications } = made();
    const notebook = new Notebook();
    tracker.add(notebook);
    tracker.activate(notebook);
    assert.equal(follower.kernelComes, true);
    const before = notifications();
    mock.timers.tick(2100);
    assert.equal(notifications(), before + 1);
    assert.equal(follower.kernelComes, false);
    const { sessionContext } = notebook;
    sessionContext.hasNoKernel = false; // one was chosen
    assert.equal(follower.kernelComes, true);
    sessionContext.kernelDisplayStatus = 'unknown';
    sessionContext.hasNoKernel = true; // and shut down
    assert.equal(follower.kernelComes, false);
  } finally {
    mock.timers.reset();
  }
});

test('wishes are gathered; a page that is not seen wants the status alone', () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  try {
    let visible = true;
    let notifications = 0;
    const wants = new PageSubscription(
      () => visible,
      () => 30
    );
    wants.changed.connect(() => void notifications++);
    wants.shown = true;
    wants.gpus = 'local/a';
    const look = wants.view('local/a');
    wants.view('local/a');
    mock.timers.tick(100);
    assert.equal(notifications, 1);
    assert.deepEqual(wants.now, { shown: 'panel', gpus: 'local/a', looks: ['local/a'], details: [], meter: 0 });
    look.dispose();
    look.dispose();
    assert.deepEqual(wants.now.looks, ['local/a']);
    visible = false;
    assert.deepEqual(wants.now, { shown: 'status', gpus: '', looks: [], details: [], meter: 30 });
  } finally {
    mock.timers.reset();
  }
});

test('details of runs that flew by, or of another kernel, are not asked for', () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  try {
    const wants = new PageSubscription(
      () => true,
      () => 0
    );
    wants.shown = true;
    wants.details(['a']);
    mock.timers.tick(100);
    wants.details(['b']);
    mock.timers.tick(300);
    assert.deepEqual(wants.now.details, ['b']);
    wants.details(['c']);
    wants.forget();
    mock.timers.tick(300);
    assert.deepEqual(wants.now.details, []);
  } finally {
    mock.timers.reset();
  }
});
