/** Submit section: a form that writes the line of a submit into the notebook, and its commands. */

import type { Cell } from '@jupyterlab/cells';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import { FileDialog, IFileBrowserFactory } from '@jupyterlab/filebrowser';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { cleaningIcon, clearIcon, PanelWithToolbar, runIcon, ToolbarButton } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { connectionMessage } from '../panel/connectionMessages';
import { sectionLayoutOf } from '../panel/accordionLayout';
import { runsIcon } from '../panel/icons';
import { CommandIDs, IPanelContext } from '../panel/tokens';
import type { IComposeReply } from '../protocol';
import { sortErrors } from './fields';
import { runActive } from './notebookEdits';
import { ISubject, Mode, selectedCount, subjectOf, writeLine } from './submitCells';
import { SubmitForm } from './submitForm';
import { editOptions } from './submitOptions';
import { folderOf, relative } from './submitText';
import { SubmitView } from './submitView';
import { Checker } from './targetActions';
import { toolbarButton } from './toolbar';

export class SubmitSection extends PanelWithToolbar {
  constructor(
    private readonly _context: IPanelContext,
    documents: IDocumentManager | null
  ) {
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
    this._form.changed.connect(() => {
      this._touched = true;
      this._checker.soon();
    });
    this._form.submitted.connect(() => void this._submit());

    this._view = new SubmitView(trans, this._form.node, {
      choose: mode => this._choose(mode),
      fileTyped: () => this._follower.later(TYPING_DELAY_MS),
      browse: documents ? () => void this._browse(documents) : null,
      options: () => void this._editOptions(),
      write: () => void this._finish(false),
      submit: () => void this._submit()
    });
    this.addWidget(new Widget({ node: this._view.body }));
    this.addWidget(new Widget({ node: this._view.foot }));
    this.toolbar.addItem(
      'clear',
      // JupyterLab 4.2 has no cleaning icon.
      toolbarButton(cleaningIcon ?? clearIcon, trans.__('Clear the form'), () => this._clear())
    );
    this._runButton = toolbarButton(runIcon, trans.__('Submit'), () => void this._submit());
    this.toolbar.addItem('run', this._runButton);

    // A hidden section does not follow the notebook; it is redrawn when shown.
    this._follower = new CellFollower(_context, () => this.isVisible, () => this._refresh());
    model.connectionChanged.connect(this._connectionChanged, this);
    model.targetsChanged.connect(this._targets, this);
    this._follower.follow();
  }

  /** Show the form for the active cell, the selected cells, or a file (path relative to the server root). */
  prefill(what: 'cell' | 'selected' | { file: string }): void {
    this._makeRoom();
    // From the keyboard the next key submits.
    requestAnimationFrame(() => this.isVisible && this._view.focus());
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

  /** Let the user choose the file. */
  private async _browse(manager: IDocumentManager): Promise<void> {
    const { value } = await FileDialog.getOpenFiles({
      manager,
      title: this._trans.__('Choose a Python file'),
      filter: file => (file.type === 'directory' || /\.py$/i.test(file.path) ? {} : null)
    });
    if (value?.length && !this.isDisposed) {
      this.prefill({ file: value[0].path });
    }
  }

  /** Edit all options in a dialog. */
  private async _editOptions(): Promise<void> {
    const subject = this._subject;
    const values = await editOptions(this._context, this._form, values =>
      subject && this._ready && !subject.disabledReason
        ? this._context.model.request('compose', { ...this._payload(subject), values })
        : null
    );
    // The subject is looked at again and again; only another cell or line matters.
    if (values && subject && !this.isDisposed && this._form.isOf(subject)) {
      this._touched = true;
      this._form.enter(values);
      void this._checker.now();
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
      // The panel begins with this section closed, without a height of its own.
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
    return this._context.model.connection.ready;
  }

  // ---- notebook

  /** Update after a change of state; a request makes the kernel busy, which must not trigger another request. */
  private _connectionChanged(): void {
    const { connection, notebook } = this._context.model;
    const state = `${connection.state} ${connection.ready}`;
    if (state !== this._state || notebook !== this._notebook) {
      this._state = state;
      this._notebook = notebook;
      this._connected();
    } else {
      if (this._subject && this.isVisible) {
        // The execution count of the cell may have changed.
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
    this._form.targetsChanged();
    if (this._reply) {
      this._answered(this._reply);
    }
  }

  /** Request the fields once for each connection; the model caches them. */
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

  /** Draw and return the code that would be submitted now. */
  private _look(): ISubject {
    const { notebook } = this._context.model;
    const subject = subjectOf(notebook, this._view.mode, this._view.file, this._trans);
    this._view.draw(subject, selectedCount(notebook));
    return subject;
  }

  /** Update the subject of the submit and the form after a change in the notebook. */
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
    if (!this._form.isOf(subject)) {
      this._touched = false;
    }
    if (this._form.turnTo(subject)) {
      void this._fill(subject);
      return;
    }
    this._enable();
    void this._checker.now();
  }

  /** Fill the form from the existing line. */
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

  // ---- line

  private _enable(): void {
    const { connection } = this._context.model;
    const disabledReason = !this._ready ? this._trans.__('The kernel is not responding.') : (this._subject?.disabledReason ?? '');
    const wrong = Object.values(this._reply?.errors ?? {})[0] ?? '';
    this._runButton.enabled = disabledReason === '' && !wrong;
    this._view.enable(disabledReason, wrong, this._ready && connection.busy && disabledReason === '');
    this._view.countOthers(this._form.othersCount);
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
    this._view.sayWrong(rest, !this._touched);
    // A kernel with an older package does not send this field.
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
    this._touched = true;
    const subject = (this._subject = this._look());
    const reply = await this._checker.now();
    if (!reply || !notebook || notebook.isDisposed || subject !== this._subject) {
      return;
    }
    this._answered(reply, run);
    if (!reply.line || (run && Object.keys(reply.errors).length > 0)) {
      return;
    }
    if (run && !(await this._connectNotebook())) {
      return;
    }
    if (!writeLine(notebook, subject, reply.line)) {
      this._view.sayWrong([this._trans.__('Nothing was submitted: the cell has changed or is read-only.')]);
      return;
    }
    if (subject.mode === 'selected') {
      // The new cell is the active one and contains the line, so it becomes the subject.
      this._view.mode = 'cell';
    }
    if (run && subject.mode === 'file') {
      this._form.submittedFile();
    }
    this._follower.later();
    if (run) {
      await runActive(this._context, notebook);
    }
  }

  /** Load the extension in the notebook's kernel, which runs the line; `false`, with a message: it cannot be loaded. */
  private async _connectNotebook(): Promise<boolean> {
    const { model, trans } = this._context;
    if (model.connection.state === 'not-loaded') {
      await model.connect();
    }
    const { connection } = model;
    const reason = connection.ready && connection.own ? connectionMessage(connection, trans) : null;
    if (reason) {
      this._view.sayWrong([trans.__('Nothing was submitted: %1. %2', reason.title, reason.text)]);
    }
    return reason === null;
  }

  private _clear(): void {
    this._touched = false;
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
  /** Whether the user has changed a value or pressed a button since the form belongs to this cell. */
  private _touched = false;
  private _subject: ISubject | null = null;
  private _reply: IComposeReply | null = null;
  private _state = '';
  private _notebook: NotebookPanel | null = null;
}

/** Delay in milliseconds after a change in the notebook. */
const CHANGE_DELAY_MS = 120;

/** Delay in milliseconds after typing. */
const TYPING_DELAY_MS = 400;

class CellFollower {
  /** Create a follower that calls `settled` after a delay since the last change, while `seen` is true. */
  constructor(
    private readonly _context: IPanelContext,
    private readonly _seen: () => boolean,
    private readonly _settled: () => void
  ) {
    const { tracker } = _context;
    tracker.activeCellChanged.connect(this.follow, this);
    tracker.selectionChanged.connect(this._changed, this);
  }

  /** Follow the currently active cell. */
  follow(): void {
    const cell = this._context.model.notebook?.content.activeCell ?? null;
    if (cell !== this._cell) {
      this._cell?.model?.contentChanged.disconnect(this._typed, this);
      this._cell = cell;
      cell?.model?.contentChanged.connect(this._typed, this);
    }
    this.later();
  }

  /** Schedule an update in `wait` milliseconds, which a later change postpones. */
  later(wait = CHANGE_DELAY_MS): void {
    this.cancel();
    if (this._seen()) {
      this._timer = setTimeout(this._settled, wait);
    }
  }

  /** Cancel the scheduled update. */
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

/** Path of the selected `.py` file; empty unless exactly one is selected. */
function selectedScript(files: IFileBrowserFactory | null): string {
  const browser = files?.tracker.currentWidget;
  const items = browser ? Array.from(browser.selectedItems()) : [];
  return items.length === 1 && items[0].type !== 'directory' && /\.py$/i.test(items[0].path) ? items[0].path : '';
}

/** Add the commands of the Submit section and return the ids for the command palette. */
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
    caption: args =>
      args['toolbar']
        ? trans.__('Run as training run…')
        : trans.__('Open the form that writes the submit line into the active cell'),
    icon: args => (args['toolbar'] ? runsIcon : undefined),
    isEnabled: hasNotebook,
    // In the toolbar of a cell there is no place for what does not apply.
    isVisible: args => !args['toolbar'] || model.notebook?.content.activeCell?.model.type === 'code',
    describedBy: {
      args: { type: 'object', properties: { toolbar: { type: 'boolean', description: 'Whether it is a button of a toolbar' } } }
    },
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

  // The other two items are in the schema of the settings, where the user can move them.
  app.contextMenu.addItem({ command: CommandIDs.submitSelected, selector: '.jp-Notebook .jp-CodeCell', rank: 11.6 });
  return [CommandIDs.submitCell, CommandIDs.submitSelected, CommandIDs.submitFile];
}
