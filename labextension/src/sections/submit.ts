/** The Submit section: a form that writes the line of a submit into the notebook, and its commands. */

import type { Cell } from '@jupyterlab/cells';
import type { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { cleaningIcon, clearIcon, PanelWithToolbar, runIcon, ToolbarButton } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { sectionLayoutOf } from '../panel/accordionLayout';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import type { IComposeReply } from '../protocol';
import { keepTyped, same, sortErrors, Values } from './fields';
import { FieldForm } from './form';
import { runActive } from './notebookEdits';
import { ISubject, Mode, selectedCount, subjectOf, writeLine } from './submitCells';
import { folderOf, relative } from './submitText';
import { SubmitView } from './submitView';
import { Checker } from './targetActions';
import { toolbarButton } from './toolbar';

export class SubmitSection extends PanelWithToolbar {
  constructor(private readonly _context: IPanelContext) {
    super();
    const { trans, model } = _context;
    this._trans = trans;
    this.addClass('jp-AmlSubmit');
    this.title.label = trans.__('Submit');
    this._form = new SubmitForm(_context);
    this._checker = new Checker<IComposeReply>(() => this._compose());
    this._checker.answered.connect((_, reply) => this._answered(reply));
    this._checker.failed.connect((_, text) => {
      this._reply = null;
      this._view.sayWrong([text]);
      this._view.sayNotes([]);
    });
    this._form.changed.connect(() => this._checker.soon());
    this._form.submitted.connect(() => void this._submit());

    this._view = new SubmitView(trans, this._form.node, {
      choose: mode => this._choose(mode),
      fileTyped: () => this._follower.later(TYPING_DELAY_MS),
      write: () => void this._finish(false),
      submit: () => void this._submit()
    });
    this.addWidget(new Widget({ node: this._view.body }));
    this.addWidget(new Widget({ node: this._view.foot }));
    this.toolbar.addItem(
      'clear',
      // JupyterLab 4.2 has no broom.
      toolbarButton(cleaningIcon ?? clearIcon, trans.__('Clear the form'), () => this._clear())
    );
    this._runButton = toolbarButton(runIcon, trans.__('Submit'), () => void this._submit());
    this.toolbar.addItem('run', this._runButton);

    // What is not seen is not followed; showing it draws it.
    this._follower = new CellFollower(_context, () => this.isVisible, () => this._refresh());
    model.connectionChanged.connect(this._connectionChanged, this);
    model.targetsChanged.connect(this._targets, this);
    this._follower.follow();
  }

  /** Show the form for the active cell, the selected cells, or a file (its path from the server's root). */
  prefill(what: 'cell' | 'selected' | { file: string }): void {
    this._makeRoom();
    if (typeof what === 'string') {
      this._choose(what);
      return;
    }
    const { notebook } = this._context.model;
    const path = notebook ? relative(notebook.context.path, what.file) : what.file;
    this._view.file = path ?? what.file;
    this._choose('file');
    if (path === null) {
      const wrong = this._trans.__('%1 is on another drive than the notebook, so its kernel cannot read it.', what.file);
      this._view.sayWrong([wrong]);
    }
  }

  dispose(): void {
    const { model } = this._context;
    this._follower.dispose();
    model.connectionChanged.disconnect(this._connectionChanged, this);
    model.targetsChanged.disconnect(this._targets, this);
    this._checker.dispose();
    this._form.dispose();
    super.dispose();
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._connected();
    if (!this._shown) {
      // The panel begins with this section closed: it has no height of its own yet.
      this._shown = true;
      this._makeRoom();
    }
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._connected();
  }

  /** Scroll the whole form into view if it fits, after the requested fields are drawn. */
  private _makeRoom(): void {
    requestAnimationFrame(() => void (this.isDisposed || sectionLayoutOf(this.parent)?.requestSpace(this, 0.65)));
  }

  private _choose(mode: Mode): void {
    this._view.mode = mode;
    this._subject = this._look();
    this._follower.later(0);
  }

  private get _ready(): boolean {
    return this._context.model.connection.state === 'ready';
  }

  // ---- following the notebook

  /** Each request makes the kernel busy for a moment: that alone must not trigger another request. */
  private _connectionChanged(): void {
    const { connection, notebook } = this._context.model;
    if (connection.state !== this._state || notebook !== this._notebook) {
      this._state = connection.state;
      this._notebook = notebook;
      this._connected();
    } else {
      if (this._subject && this.isVisible) {
        // A cell that ran has another number.
        this._look();
      }
      this._enable();
    }
  }

  private _connected(): void {
    if (this._ready && this.isVisible) {
      void this._loadFields();
    }
    this._follower.follow();
    this._enable();
  }

  private _targets(): void {
    this._form.setTargets(this._context.model.targets);
    if (this._reply) {
      this._answered(this._reply);
    }
  }

  /** The fields are requested once for each connection; the model caches them. */
  private async _loadFields(): Promise<void> {
    try {
      const first = this._form.empty;
      if (await this._form.load()) {
        if (first) {
          this._makeRoom();
        }
        this._follower.later();
      }
    } catch (error) {
      if (!this.isDisposed) {
        this._view.sayWrong([error instanceof Error ? error.message : String(error)]);
      }
    }
  }

  /** What would be submitted now; drawn. */
  private _look(): ISubject {
    const { notebook } = this._context.model;
    const subject = subjectOf(notebook, this._view.mode, this._view.file, this._trans);
    this._view.draw(subject, selectedCount(notebook));
    return subject;
  }

  /** Look at the notebook again: what would be submitted, and what its line says. */
  private _refresh(): void {
    const subject = (this._subject = this._look());
    if (subject.disabledReason) {
      this._checker.cancel();
      this._reply = null;
      this._view.sayLine('');
      this._view.sayWrong([]);
      this._view.sayNotes([]);
      this._enable();
      return;
    }
    if (this._form.turnTo(subject)) {
      void this._fill(subject);
      return;
    }
    this._enable();
    void this._checker.now();
  }

  /** Fill the form from the line that is there. */
  private async _fill(subject: ISubject): Promise<void> {
    if (!this._ready) {
      this._form.forget();
      return;
    }
    try {
      const reply = await this._context.model.request('compose', { ...this._payload(subject), values: null });
      const more = this.isDisposed ? null : this._form.fill(subject, reply.values);
      if (more !== null) {
        this._answered(reply);
      }
      if (more) {
        this._checker.soon();
      }
    } catch (error) {
      if (!this.isDisposed && this._form.isOf(subject)) {
        this._form.forget();
        this._view.sayWrong([error instanceof Error ? error.message : String(error)]);
      }
    }
  }

  // ---- the line

  private _enable(): void {
    const { connection } = this._context.model;
    const disabledReason = !this._ready ? this._trans.__('The kernel is not responding.') : (this._subject?.disabledReason ?? '');
    const wrong = this._reply && Object.keys(this._reply.errors).length > 0;
    this._runButton.enabled = disabledReason === '' && !wrong;
    this._view.enable(disabledReason, this._ready && connection.busy && disabledReason === '');
  }

  private _payload(subject: ISubject): { old: string; cell: string | null; script: string; folder: string } {
    const { old, cell, script } = subject;
    return { old, cell, script, folder: folderOf(this._context.model.notebook?.context.path ?? '') };
  }

  private _compose(): Promise<IComposeReply> | null {
    const subject = this._subject;
    if (!subject || subject.disabledReason || !this._ready) {
      return null;
    }
    return this._context.model.request('compose', { ...this._payload(subject), values: this._form.values() });
  }

  private _answered(reply: IComposeReply, focus = false): void {
    this._reply = reply;
    this._view.sayLine(reply.line);
    const { of, rest } = sortErrors(this._form.fields, reply.errors);
    this._form.setErrors(Object.fromEntries(of), focus);
    this._view.sayWrong(rest);
    // A kernel with an older package has none.
    this._view.sayNotes(reply.notes ?? []);
    this._enable();
  }

  private async _submit(): Promise<void> {
    if (this._view.open) {
      await this._finish(true);
    }
  }

  /** Write the line, rebuilt from the current values, and optionally run its cell. */
  private async _finish(run: boolean): Promise<void> {
    const { notebook } = this._context.model;
    this._follower.cancel();
    const subject = (this._subject = this._look());
    const reply = await this._checker.now();
    if (!reply || !notebook || notebook.isDisposed || subject !== this._subject) {
      return;
    }
    this._answered(reply, run);
    if (!reply.line || (run && Object.keys(reply.errors).length > 0)) {
      return;
    }
    if (!writeLine(notebook, subject, reply.line)) {
      this._view.sayWrong([this._trans.__('Nothing was submitted: the cell has changed or is read-only.')]);
      return;
    }
    if (subject.mode === 'selected') {
      // The new cell is the active one and has the line: from now on it is the one that counts.
      this._view.mode = 'cell';
    }
    this._follower.later();
    if (run) {
      await runActive(this._context, notebook);
    }
  }

  private _clear(): void {
    this._form.clear();
    void this._checker.now();
  }

  private readonly _trans: TranslationBundle;
  private readonly _form: SubmitForm;
  private readonly _checker: Checker<IComposeReply>;
  private readonly _view: SubmitView;
  private readonly _follower: CellFollower;
  private readonly _runButton: ToolbarButton;
  private _shown = false;
  private _subject: ISubject | null = null;
  private _reply: IComposeReply | null = null;
  private _state = '';
  private _notebook: NotebookPanel | null = null;
}

class SubmitForm extends FieldForm {
  constructor(private readonly _context: IPanelContext) {
    super({ fields: [], trans: _context.trans, compact: true });
    this.changed.connect(() => {
      if (!this._filled && !this._valuesBefore) {
        this._draft = this.values();
      }
    });
  }

  /** The fields have not been requested yet. */
  get empty(): boolean {
    return this.fields.length === 0;
  }

  /** Ask the kernel for the fields; whether others than before are shown now. */
  async load(): Promise<boolean> {
    const { submit } = await this._context.model.kinds();
    const fields = submit.filter(field => field.flag !== '');
    if (this.isDisposed || same(fields, this.fields)) {
      return false;
    }
    this.setTargets(this._context.model.targets);
    this.setFields(fields);
    this.forget();
    return true;
  }

  /** Another cell, or another line in it, may be meant now; `true`: the form is to be filled from its line. */
  turnTo(subject: ISubject): boolean {
    if (this.isOf(subject)) {
      return false;
    }
    this._read = read(subject);
    this._valuesBefore = subject.old ? this.values() : null;
    if (this._valuesBefore) {
      return true;
    }
    if (this._filled) {
      // The form said what another cell's line says; back to what a person has typed.
      this._filled = false;
      this.setValues(this._draft);
    }
    return false;
  }

  /**
   * Say what the line of a cell says, and keep what was typed while the kernel was asked for it.
   *
   * `null`: another line is meant by now; else whether the form says more than the line.
   */
  fill(subject: ISubject, values: Values): boolean | null {
    if (!this.isOf(subject)) {
      return null;
    }
    const kept = this._valuesBefore ? keepTyped(this._valuesBefore, this.values(), values) : values;
    this._filled = true;
    this._valuesBefore = null;
    this.setValues(kept);
    return !same(kept, values);
  }

  /** Whether the form is about this cell and its line. */
  isOf(subject: ISubject): boolean {
    return this._read === read(subject);
  }

  /** What was read is to be read again. */
  forget(): void {
    this._read = '';
    this._valuesBefore = null;
  }

  /** Empty it, for good. */
  clear(): void {
    this._draft = {};
    this.setValues({});
  }

  /** Place and line that the form was filled from, or was found without one. */
  private _read = '';
  /** The form says what a line in the notebook says. */
  private _filled = false;
  /** What a person has typed for cells without a line. */
  private _draft: Values = {};
  /** Form values when the request to parse a line was sent; `null`: it has replied. */
  private _valuesBefore: Values | null = null;
}

function read(subject: ISubject): string {
  return `${subject.place}\n${subject.old}`;
}

/** Milliseconds after which a change in the notebook is followed. */
const CHANGE_DELAY_MS = 120;

/** The same for what a person types. */
const TYPING_DELAY_MS = 400;

class CellFollower {
  /** Calls `settled` a while after the last change, as long as it is `seen`. */
  constructor(
    private readonly _context: IPanelContext,
    private readonly _seen: () => boolean,
    private readonly _settled: () => void
  ) {
    const { tracker } = _context;
    tracker.activeCellChanged.connect(this.follow, this);
    tracker.selectionChanged.connect(this._changed, this);
  }

  /** Follow the cell that is the active one now. */
  follow(): void {
    const cell = this._context.model.notebook?.content.activeCell ?? null;
    if (cell !== this._cell) {
      this._cell?.model?.contentChanged.disconnect(this._typed, this);
      this._cell = cell;
      cell?.model?.contentChanged.connect(this._typed, this);
    }
    this.later();
  }

  /** Look again after `wait` milliseconds, if nothing else comes until then. */
  later(wait = CHANGE_DELAY_MS): void {
    this.cancel();
    if (this._seen()) {
      this._timer = setTimeout(this._settled, wait);
    }
  }

  /** Who looks now need not do so again later. */
  cancel(): void {
    clearTimeout(this._timer);
  }

  dispose(): void {
    this.cancel();
    const { tracker } = this._context;
    tracker.activeCellChanged.disconnect(this.follow, this);
    tracker.selectionChanged.disconnect(this._changed, this);
    this._cell?.model?.contentChanged.disconnect(this._typed, this);
    this._cell = null;
  }

  private _changed(): void {
    this.later();
  }

  private _typed(): void {
    this.later(TYPING_DELAY_MS);
  }

  private _cell: Cell | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}

/** The only selected `.py` file; empty when it is not one. */
function selectedScript(files: IFileBrowserFactory | null): string {
  const browser = files?.tracker.currentWidget;
  const items = browser ? Array.from(browser.selectedItems()) : [];
  return items.length === 1 && items[0].type !== 'directory' && /\.py$/i.test(items[0].path) ? items[0].path : '';
}

/** Commands of the Submit section; the ids go into the palette. */
export function addSubmitCommands(
  context: IPanelContext,
  show: () => SubmitSection,
  files: IFileBrowserFactory | null
): string[] {
  const { app, model, trans } = context;
  const { commands } = app;
  const hasNotebook = () => model.notebook !== null;

  commands.addCommand(CommandIDs.submitCell, {
    label: trans.__('Submit cell as training run…'),
    caption: trans.__('Open the form that writes the submit line into the active cell'),
    icon: args => (args['toolbar'] ? runIcon : undefined),
    isEnabled: hasNotebook,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => show().prefill('cell')
  });
  commands.addCommand(CommandIDs.submitSelected, {
    label: trans.__('Submit selected cells as training run…'),
    caption: trans.__('Open the form that joins the selected cells into a new one with a submit line'),
    isEnabled: hasNotebook,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => show().prefill('selected')
  });
  commands.addCommand(CommandIDs.submitFile, {
    label: trans.__('Submit as training run…'),
    caption: trans.__('Open the form that writes the submit line of this .py file into the notebook'),
    isEnabled: args => hasNotebook() && (typeof args['file'] === 'string' || selectedScript(files) !== ''),
    isVisible: args => typeof args['file'] === 'string' || selectedScript(files) !== '',
    describedBy: {
      args: {
        type: 'object',
        properties: {
          file: { type: 'string', description: 'Path of a .py file from the root of the server; the selected one by default' }
        }
      }
    },
    execute: args => {
      const file = typeof args['file'] === 'string' ? args['file'] : selectedScript(files);
      if (file) {
        show().prefill({ file });
      }
    }
  });

  // The other two lie in the settings' schema, where a person can move them.
  app.contextMenu.addItem({ command: CommandIDs.submitSelected, selector: '.jp-Notebook .jp-CodeCell', rank: 11.6 });
  return [CommandIDs.submitCell, CommandIDs.submitSelected, CommandIDs.submitFile];
}
