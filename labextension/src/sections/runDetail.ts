/** Details of the selected run, and the commands on it. */

import { copyIcon, LabIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';
import { ChildrenTable } from '../children';
import { drawLinks } from '../links';
import { PicturesRow, readPicture } from '../pictures';
import { bytes } from '../format';
import { isLive } from '../kernel/rows';
import { compareIcon, gpuIcon, linkIcon, runsIcon } from '../panel/icons';
import { selection } from '../panel/selection';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import type { IRunRow } from '../protocol';
import { pictures } from '../record';
import { element, say } from './dom';
import { attention, bare, metric, progress, stateWord } from './runText';

/** Commands that are not in the toolbar of the section; each command determines its own visibility. */
const ACTIONS: readonly [string, LabIcon][] = [
  [CommandIDs.runTab, runsIcon],
  [CommandIDs.runGpus, gpuIcon],
  [CommandIDs.runMlflow, linkIcon],
  [CommandIDs.runCompare, compareIcon]
];

/** Milliseconds between two requests for the pictures of a run. */
const PICTURES_INTERVAL_MS = 3000;

interface IFact {
  readonly name: string;
  readonly value: string;
  readonly look: string;
}

export class RunDetail extends Widget {
  constructor(private readonly _context: IPanelContext) {
    super();
    this.addClass('jp-AmlRuns-detail');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', _context.trans.__('Selected run'));
    this._title = element('div', 'jp-AmlRuns-detailTitle');
    this._facts = element('dl', 'jp-AmlRuns-facts');
    this._actions = element('div', 'jp-AmlRuns-actions');
    this._doors = element('div', 'jp-AmlRuns-doors');
    this._children = new ChildrenTable(_context.trans, child => {
      const handle = selection.runs[0];
      void _context.app.commands.execute(CommandIDs.runLogs, { handle, child: child.id, name: child.name });
    });
    this._pictures = new PicturesRow(_context.trans, path => {
      const handle = selection.runs[0];
      return readPicture(offset => _context.model.request('picture', { handle, path, offset }));
    });
    const head = element('div', 'jp-AmlRuns-detailHead', '', this._title, this._actions);
    this.node.append(head, this._doors, this._children.node, this._facts, this._pictures.node);
    selection.changed.connect(this.refresh, this);
    _context.app.commands.commandChanged.connect(this._onCommands, this);
    this.refresh();
  }

  dispose(): void {
    selection.changed.disconnect(this.refresh, this);
    this._context.app.commands.commandChanged.disconnect(this._onCommands, this);
    super.dispose();
  }

  /** Redraw after a change of the rows or the selection. */
  refresh(): void {
    const { model, trans } = this._context;
    const rows = selection.runs.map(handle => model.run(handle)).filter((row): row is IRunRow => row !== undefined);
    this.setHidden(rows.length === 0);
    if (rows.length === 0) {
      this._key = '';
      return;
    }
    const key = rows.map(row => JSON.stringify(row)).join();
    if (key !== this._key) {
      this._key = key;
      const one = rows.length === 1 ? rows[0] : null;
      say(this._title, one ? one.name : trans._n('%1 run', '%1 runs', rows.length));
      this._title.title = one ? one.handle : rows.map(row => row.handle).join('\n');
      drawLinks(this._doors, one?.doors, trans);
      // A kernel with an older package does not send this field.
      this._children.update(one?.children, one?.children_hidden ?? 0);
      this._drawFacts(one);
      this._requestPictures(one);
    }
    this._drawActions();
  }

  /** Update the elapsed times. */
  tick(): void {
    const row = selection.runs.length === 1 ? this._context.model.run(selection.runs[0]) : undefined;
    if (row && isLive(row) && this._values.length) {
      say(this._values[0], this._sentence(row));
      this._children.tick();
    }
  }

  /** Pictures are not in the rows: request them for the selected run, while it is live not at every change. */
  private _requestPictures(row: IRunRow | null): void {
    if (!row || row.handle !== this._pictured) {
      this._pictures.update([]);
      this._due = 0;
    }
    this._pictured = row?.handle ?? '';
    if (!row || (isLive(row) && Date.now() < this._due)) {
      return;
    }
    this._due = Date.now() + PICTURES_INTERVAL_MS;
    this._context.model
      .request('pictures', { handle: row.handle })
      .then(reply => {
        if (this._pictured === row.handle && !this.isDisposed) {
          this._pictures.update(pictures(reply.pictures), reply.hidden);
        }
      })
      .catch(() => {
        // A kernel that does not respond, or with an older package: the details are shown without pictures.
      });
  }

  private _sentence(row: IRunRow): string {
    const { trans } = this._context;
    const parts = [progress(row, Date.now() / 1000, trans)];
    if (!isLive(row)) {
      const code = row.exit_code === null ? '' : trans.__('exit code %1', row.exit_code);
      // Omit a reason that repeats the state or the exit code.
      const reason = row.reason === 'exit' || row.reason === row.state ? '' : row.reason;
      parts.push(reason || row.detail, row.state === 'completed' ? '' : code);
    } else {
      parts.push(row.reachable ? row.detail : trans.__('its target is not responding'));
    }
    return parts.filter(Boolean).join(' · ');
  }

  /** Draw the facts; keep the elements while only values change, so that selection and focus are kept. */
  private _drawFacts(row: IRunRow | null): void {
    const { trans } = this._context;
    const facts = row ? this._factsOf(row) : [];
    const shape = JSON.stringify([row?.handle, facts.map(({ name, look }) => [name, look])]);
    if (shape === this._shape) {
      facts.forEach(({ value }, at) => say(this._values[at], value));
    } else {
      this._shape = shape;
      this._values = facts.map(({ value }) => element('span', '', value));
      this._facts.replaceChildren(
        ...facts.flatMap(({ name, look }, at) => [
          element('dt', '', name),
          element('dd', look, '', this._values[at])
        ])
      );
      if (row) {
        const copy = iconButton(copyIcon, trans.__('Copy handle %1', row.handle));
        const { commands } = this._context.app;
        copy.addEventListener('click', () => void commands.execute(CommandIDs.runCopy, { handle: row.handle }));
        // The handle is the last fact.
        this._facts.lastElementChild?.append(' ', copy);
      }
    }
    if (row) {
      this.node.dataset.state = row.state;
      this.node.setAttribute('aria-label', trans.__('Run %1, %2', row.name, stateWord(row, trans)));
    }
  }

  /** Facts of a run: the state first, the handle last. */
  private _factsOf(row: IRunRow): IFact[] {
    const { trans } = this._context;
    const facts: IFact[] = [];
    const add = (name: string, value: string, look = '') => {
      if (value) {
        facts.push({ name, value, look });
      }
    };
    add(trans.__('State'), this._sentence(row));
    const matter = attention(row);
    const error = bare(row, row.error);
    add(trans.__('Attention'), matter === error ? '' : matter, 'jp-mod-warn');
    add(trans.__('Error'), error, 'jp-mod-error');
    add(trans.__('Target'), row.gpus ? trans._n('%2, %1 GPU', '%2, %1 GPUs', row.gpus, row.target) : row.target);
    add(trans.__('Metric'), metric(row));
    add(trans.__('GPU use'), matter ? '' : row.verdict);
    const params = Object.entries(row.params).map(([name, value]) => `${name}=${value}`);
    add(trans.__('Parameters'), params.join('  '), 'jp-mod-code');
    add(trans.__('Experiment'), row.experiment);
    add(trans.__('Log'), row.known || row.log_bytes ? bytes(row.log_bytes) : '');
    const began = new Date(row.created * 1000);
    add(trans.__('Submitted'), row.created ? began.toLocaleString() : '');
    add(trans.__('Handle'), row.handle, 'jp-mod-code');
    return facts;
  }

  private _onCommands(_: unknown, change: { id?: string }): void {
    if (!change.id || ACTIONS.some(([id]) => id === change.id)) {
      this._drawActions();
    }
  }

  private _drawActions(): void {
    const { commands } = this._context.app;
    const shown = ACTIONS.filter(
      ([id]) => commands.hasCommand(id) && commands.isVisible(id) && commands.isEnabled(id)
    );
    const key = shown.map(([id]) => id).join();
    if (key === this._shown) {
      return;
    }
    this._shown = key;
    this._actions.replaceChildren(
      ...shown.map(([id, icon]) => {
        const created = iconButton(icon, commands.label(id, { short: true }));
        created.dataset.command = id;
        created.addEventListener('click', () => void commands.execute(id));
        return created;
      })
    );
  }

  private readonly _title: HTMLElement;
  private readonly _facts: HTMLElement;
  private readonly _actions: HTMLElement;
  private readonly _doors: HTMLElement;
  private readonly _children: ChildrenTable;
  private readonly _pictures: PicturesRow;
  private _pictured = '';
  private _due = 0;
  private _values: readonly HTMLElement[] = [];
  private _shape = '';
  private _key = '';
  private _shown = '-';
}

function iconButton(icon: LabIcon, label: string): HTMLButtonElement {
  const created = element('button', 'jp-AmlRuns-action');
  created.type = 'button';
  created.title = label;
  created.setAttribute('aria-label', label);
  icon.element({ container: created, width: '16px', height: '16px' });
  return created;
}
