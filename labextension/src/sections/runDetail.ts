/** Details of the selected run, and the commands on it. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { copyIcon, fileIcon, LabIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';
import { ChildrenTable } from '../children';
import { FilesList } from '../files';
import { LinesPanel } from '../inside/linesPanel';
import { drawLinks } from '../links';
import { DisplayList } from '../output/displayList';
import { readForms } from '../output/forms';
import { SlotLayout } from '../output/slotLayout';
import { PicturesRow, readPicture } from '../pictures';
import { bytes, number } from '../format';
import { isLive } from '../kernel/rows';
import { againIcon, cancelIcon, cellIcon, compareIcon, deleteIcon, gpuIcon, linesIcon, linkIcon, logIcon, runsIcon, whereIcon } from '../panel/icons';
import { selection } from '../panel/selection';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import type { IRunRow } from '../protocol';
import { displays, pictures } from '../record';
import { element, say } from './dom';
import { progress, stateWord } from './runText';

/** Names of the buttons that are no commands: they open the files and the lines in the details. */
const FILES = 'files';
const LINES = 'lines';

/** Command with its icon and its word; each command determines its own visibility. */
interface IAction {
  readonly id: string;
  readonly icon: LabIcon;
  readonly word: string;
}

function actions(trans: TranslationBundle): readonly IAction[] {
  return [
    { id: CommandIDs.runCancel, icon: cancelIcon, word: trans.__('Cancel…') },
    { id: CommandIDs.runLogs, icon: logIcon, word: trans.__('Log') },
    { id: FILES, icon: fileIcon, word: trans.__('Files') },
    { id: LINES, icon: linesIcon, word: trans.__('Lines') },
    { id: CommandIDs.runTab, icon: runsIcon, word: trans.__('Dashboard') },
    { id: CommandIDs.runOpen, icon: cellIcon, word: trans.__('Go to cell') },
    { id: CommandIDs.runMlflow, icon: linkIcon, word: trans.__('MLflow') },
    { id: CommandIDs.runGpus, icon: gpuIcon, word: trans.__('GPUs') },
    { id: CommandIDs.runStack, icon: whereIcon, word: trans.__('Where is it now?') },
    { id: CommandIDs.runCompare, icon: compareIcon, word: trans.__('Compare') },
    { id: CommandIDs.runAgain, icon: againIcon, word: trans.__('Run again') },
    { id: CommandIDs.runDelete, icon: deleteIcon, word: trans.__('Delete…') }
  ];
}

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
    const nodes = new WeakMap<Widget, HTMLElement>();
    const slots = (this.layout = new SlotLayout(widget => nodes.get(widget) as HTMLElement));
    this._displays = new DisplayList(_context.trans, {
      rendermime: _context.rendermime,
      whole: number => {
        const handle = selection.runs[0];
        return readForms(offset => _context.model.request('display', { handle, number, offset }));
      },
      attach: (widget, node) => {
        nodes.set(widget, node);
        slots.addWidget(widget);
      }
    });
    this._files = new FilesList(_context.trans, {
      list: () => _context.model.request('files', { handle: selection.runs[0] }),
      read: async (path, offset) => (await _context.model.request('file', { handle: selection.runs[0], path, offset })).data,
      register: async (name, path) => (await _context.model.request('register', { handle: selection.runs[0], name, path })).text
    });
    this._lines = new LinesPanel(_context.trans, () => _context.model.request('lines', { handle: selection.runs[0], start: 0, end: 0 }));
    this._commands = actions(_context.trans);
    this._actions.setAttribute('role', 'group');
    this._actions.setAttribute('aria-label', _context.trans.__('Actions on the selected run'));
    const head = element('div', 'jp-AmlRuns-detailHead', '', this._title);
    this.node.append(head, this._actions, this._files.node, this._lines.node, this._doors, this._children.node, this._facts, this._displays.node, this._pictures.node);
    selection.changed.connect(this.refresh, this);
    _context.app.commands.commandChanged.connect(this._onCommands, this);
    this.refresh();
  }

  dispose(): void {
    selection.changed.disconnect(this.refresh, this);
    this._displays.dispose();
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
      drawLinks(this._doors, one?.links, trans);
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
      this._files.hide();
      this._lines.hide();
      this._pictures.update([]);
      this._displays.update([]);
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
          // A kernel with an older package does not send this field.
          this._displays.update(displays(reply.displays));
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
    const matter = row.attention;
    const { error } = row;
    add(trans.__('Attention'), matter === error ? '' : matter, 'jp-mod-warn');
    add(trans.__('Error'), error, 'jp-mod-error');
    add(trans.__('Target'), row.gpus ? trans._n('%2, %1 GPU', '%2, %1 GPUs', row.gpus, row.target) : row.target);
    for (const [name, value] of metricsOf(row)) {
      add(name, value, 'jp-mod-metric');
    }
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
    if (!change.id || this._commands.some(({ id }) => id === change.id)) {
      this._drawActions();
    }
  }

  private _drawActions(): void {
    const { commands } = this._context.app;
    const row = selection.runs.length === 1 ? this._context.model.run(selection.runs[0]) : undefined;
    const hasFiles = row !== undefined && row.state !== 'preparing' && row.state !== 'queued';
    const shown = this._commands.filter(({ id }) =>
      id === FILES || id === LINES ? hasFiles : commands.hasCommand(id) && commands.isVisible(id) && commands.isEnabled(id)
    );
    const key = [row?.gpus, ...shown.map(({ id }) => id)].join();
    if (key === this._shown) {
      return;
    }
    this._shown = key;
    const focused = [...this._actions.children].find(node => node === document.activeElement) as HTMLElement | undefined;
    this._actions.replaceChildren(
      ...shown.map(({ id, icon, word }) => {
        const created = element('button', 'jp-AmlRuns-wordAction');
        created.type = 'button';
        const own = this._own[id];
        created.title = own ? own.title : commands.caption(id);
        created.dataset.command = id;
        icon.element({ container: created, width: '14px', height: '14px' });
        created.append(element('span', '', id === CommandIDs.runGpus && !row?.gpus ? this._context.trans.__('Resources') : word));
        created.addEventListener('click', () => void (own ? own.toggle() : commands.execute(id)));
        return created;
      })
    );
    if (focused) {
      const same = this._actions.querySelector<HTMLElement>(`[data-command='${focused.dataset.command}']`);
      (same ?? (this._actions.firstElementChild as HTMLElement | null))?.focus();
    }
  }

  private readonly _commands: readonly IAction[];
  private readonly _title: HTMLElement;
  private readonly _facts: HTMLElement;
  private readonly _actions: HTMLElement;
  private readonly _doors: HTMLElement;
  private readonly _children: ChildrenTable;
  private readonly _pictures: PicturesRow;
  private readonly _displays: DisplayList;
  private readonly _files: FilesList;
  private readonly _lines: LinesPanel;
  /** Buttons that are no commands. */
  private readonly _own: Readonly<Record<string, { title: string; toggle: () => Promise<void> }>> = {
    [FILES]: { title: this._context.trans.__('List the files that the run has written'), toggle: () => this._files.toggle() },
    [LINES]: { title: this._context.trans.__('Show in which lines the time of the run goes'), toggle: () => this._lines.toggle() }
  };
  private _pictured = '';
  private _due = 0;
  private _values: readonly HTMLElement[] = [];
  private _shape = '';
  private _key = '';
  private _shown = '-';
}

/** Metrics of a run with their last values; a kernel with an older package sends only the last one. */
function metricsOf(row: IRunRow): [string, string][] {
  const all = Object.entries(row.metrics ?? {}).map(([name, value]): [string, string] => [name, number(value)]);
  return all.length > 0 || !row.metric ? all : [[row.metric, number(row.value)]];
}

function iconButton(icon: LabIcon, label: string): HTMLButtonElement {
  const created = element('button', 'jp-AmlRuns-action');
  created.type = 'button';
  created.title = label;
  created.setAttribute('aria-label', label);
  icon.element({ container: created, width: '16px', height: '16px' });
  return created;
}
