import * as assert from 'node:assert/strict';
import { test } from 'node:test';
import { Rows } from '../src/kernel/rows';
import type { IPanelContext } from '../src/panel/tokens';
import type { IChanges, IStateSnapshot, IWorkspaceRow } from '../src/protocol';
import { connectFromCell } from '../src/sections/notebookEdits';
import { workspaceFacts, workspaceTitle } from '../src/sections/targetText';
import { trans } from './english';

const row = (more: Partial<IWorkspaceRow> = {}): IWorkspaceRow => ({
  name: 'lab',
  current: true,
  workspace: 'ml-dev',
  resource_group: 'ml',
  subscription: 's',
  location: 'eastus',
  user: 'ada@example.org',
  targets: ['gpus'],
  studio_url: '',
  ...more
});

const changes = (more: Partial<IChanges>): IChanges => ({
  type: 'changes',
  seq: 1,
  runs: [],
  gone: [],
  targets: null,
  workspaces: null,
  current: null,
  trouble: null,
  renew: false,
  ...more
});

test('workspaces come with a snapshot and change with the changes', () => {
  const rows = new Rows();
  const first: IStateSnapshot = {
    type: 'snapshot',
    seq: 0,
    current: 'local',
    targets: [],
    runs: [],
    more: 0,
    workspaces: [row()],
    trouble: '',
    version: 2
  };
  assert.deepEqual(rows.snapshot(first), { runs: [], targets: true, workspaces: true });
  const [lab] = rows.workspaces;
  assert.equal(lab.user, 'ada@example.org');
  assert.deepEqual(rows.changes(changes({ current: 'local' })), { runs: null, targets: true, workspaces: false });
  const both = changes({ workspaces: [row(), row({ name: 'second', current: false })] });
  assert.deepEqual(rows.changes(both), { runs: null, targets: false, workspaces: true });
  assert.equal(rows.workspaces[0], lab, 'what has not changed is the same object');
  rows.changes(changes({ workspaces: [] }));
  assert.deepEqual(rows.workspaces, []);
});

test('a workspace says who is signed in, what is there and where it is', () => {
  assert.deepEqual(workspaceFacts(row(), trans), ['ada@example.org', '1 target', 'eastus']);
  assert.deepEqual(workspaceFacts(row({ user: '', targets: [], location: '' }), trans), ['0 targets']);
  assert.match(workspaceTitle(row(), trans), /^Workspace: ml-dev\nResource group: ml\nSubscription: s\nLocation: eastus\n/);
  assert.doesNotMatch(workspaceTitle(row({ user: '' }), trans), /Signed in/);
});

/** A page with a notebook of two cells; what was written and run. */
function page(answer: { line: string; errors: Record<string, string> }, readOnly = false) {
  const cells = ['a', 'b'];
  const ran: string[] = [];
  const content = {
    activeCellIndex: 0,
    deselectAll: () => undefined,
    scrollToItem: async () => undefined,
    model: {
      readOnly,
      sharedModel: {
        transact: (run: () => void) => run(),
        insertCell: (at: number, cell: { source: string }) => void cells.splice(at, 0, cell.source)
      }
    }
  };
  const notebook = { id: 'nb', isDisposed: false, content };
  const model = {
    notebook: notebook as unknown,
    requests: [] as unknown[],
    request: async (op: string, payload: unknown) => {
      model.requests.push([op, payload]);
      return answer;
    }
  };
  const commands = { execute: async (id: string) => void ran.push(`${id} ${cells[content.activeCellIndex]}`) };
  const shell = { activateById: (id: string) => void ran.push(`activate ${id}`) };
  const tracker = { currentWidget: notebook };
  const context = { app: { commands, shell }, model, tracker, trans } as unknown as IPanelContext;
  return { cells, ran, model, context, tracker };
}

test('the line goes into a new cell below the active one and is run', async () => {
  const { cells, ran, model, context } = page({ line: '%aml_compute connect', errors: {} });
  assert.deepEqual(await connectFromCell(context, { name: 'lab' }), {});
  assert.deepEqual(cells, ['a', '%aml_compute connect', 'b']);
  assert.deepEqual(ran, ['notebook:run-cell %aml_compute connect']);
  assert.deepEqual(model.requests, [['connect', { values: { name: 'lab' } }]]);
});

test('a notebook behind another document comes to the front', async () => {
  const { ran, context, tracker } = page({ line: '%aml_compute connect', errors: {} });
  (tracker as { currentWidget: unknown }).currentWidget = null;
  await connectFromCell(context, {});
  assert.deepEqual(ran, ['activate nb', 'notebook:run-cell %aml_compute connect']);
});

test('invalid input is reported and nothing is written', async () => {
  const wrong = page({ line: '%aml_compute connect', errors: { config: 'No config.json.' } });
  assert.deepEqual(await connectFromCell(wrong.context, {}), { config: 'No config.json.' });
  assert.deepEqual([wrong.cells.length, wrong.ran.length], [2, 0]);
  const shut = page({ line: '%aml_compute connect', errors: {} }, true);
  assert.match((await connectFromCell(shut.context, {}))[''], /read-only/);
  const gone = page({ line: '%aml_compute connect', errors: {} });
  gone.model.notebook = null;
  assert.match((await connectFromCell(gone.context, {}))[''], /another notebook/);
  assert.deepEqual([gone.cells.length, gone.ran.length], [2, 0]);
});
