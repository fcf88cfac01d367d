import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { DoubleClicks } from '../src/panel/clickGuard';

/** A page whose rows and buttons are their names. */
class Page {
  readonly opened: string[] = [];
  readonly reached: string[] = [];
  private readonly _listeners = new Map<string, Set<any>>();

  readonly doubles = new DoubleClicks(
    (node: any) => (node.startsWith('row') ? node : null),
    key => this.opened.push(key),
    {
      addEventListener: (type: string, listener: any) => {
        this._listeners.set(type, (this._listeners.get(type) ?? new Set()).add(listener));
      },
      removeEventListener: (type: string, listener: any) => void this._listeners.get(type)?.delete(listener)
    } as any
  );

  /** Press once where `target` is; `detail` counts as the browser does. */
  press(target: string, detail: number): void {
    for (const type of ['mousedown', 'mouseup', 'click', ...(detail === 2 ? ['dblclick'] : [])]) {
      let stopped = false;
      const event = { type, detail, target, preventDefault: () => {}, stopPropagation: () => (stopped = true) };
      this._listeners.get(type)?.forEach(listener => listener(event));
      if (!stopped && type === 'click') {
        this.reached.push(target);
      }
    }
  }
}

test('a double click is about the row that its first click was on, and presses nothing that came there', () => {
  const page = new Page();
  page.press('row 1', 1);
  page.press('delete', 2);
  assert.deepEqual([page.opened, page.reached], [['row 1'], ['row 1']]);
  page.press('row 1', 1);
  page.press('row 2', 2);
  assert.deepEqual(page.opened, ['row 1', 'row 1']);
  page.press('row 2', 1);
  page.press('row 2', 2);
  assert.deepEqual([page.opened.at(-1), page.reached.at(-1)], ['row 2', 'row 2']);
});

test('what begins elsewhere is left alone, and everything after the end', () => {
  const page = new Page();
  page.press('row 1', 1);
  page.press('delete', 1);
  page.press('row 1', 2);
  assert.deepEqual([page.opened, page.reached], [[], ['row 1', 'delete', 'row 1']]);
  page.doubles.end();
  page.press('row 1', 1);
  page.press('row 1', 2);
  assert.deepEqual(page.opened, []);
});
