/** The Submit section: a small form that writes the line of a submit into the notebook. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { PanelWithToolbar, ToolbarButton, cleaningIcon, clearIcon, runIcon } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { keeperOf } from '../panel/sections';
import type { IPanelContext } from '../panel/tokens';
import type { IComposeReply } from '../protocol';
import { Checker } from './acts';
import { sortErrors } from './fields';
import { ISubject, Mode, selectedCount, subjectOf, writeLine } from './submit_cells';
import { CellFollower, TYPING } from './submit_follow';
import { SubmitForm } from './submit_form';
import { folderOf, relative } from './submit_text';
import { SubmitView } from './submit_view';
import { toolbarButton } from './toolbar';
import { runActive } from './written';

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
      fileTyped: () => this._follower.later(TYPING),
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
      const wrong = this._trans.__('%1 lies on another drive than the notebook: its kernel cannot read it.', what.file);
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

  /** See the whole form where that can be; once what was asked for is drawn. */
  private _makeRoom(): void {
    requestAnimationFrame(() => void (this.isDisposed || keeperOf(this.parent)?.grant(this, 0.65)));
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

  /** The kernel is busy for a moment with each of our questions: that alone asks nothing anew. */
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

  /** The fields are asked for once for each connection; the model remembers them. */
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
    if (subject.whyNot) {
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
    const whyNot = !this._ready ? this._trans.__('The kernel does not answer now.') : (this._subject?.whyNot ?? '');
    const wrong = this._reply && Object.keys(this._reply.errors).length > 0;
    this._runButton.enabled = whyNot === '' && !wrong;
    this._view.enable(whyNot, this._ready && connection.busy && whyNot === '');
  }

  private _payload(subject: ISubject): { old: string; cell: string | null; script: string; folder: string } {
    const { old, cell, script } = subject;
    return { old, cell, script, folder: folderOf(this._context.model.notebook?.context.path ?? '') };
  }

  private _compose(): Promise<IComposeReply> | null {
    const subject = this._subject;
    if (!subject || subject.whyNot || !this._ready) {
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

  /** Write the line, and run its cell if wanted; the line is made anew first, from what is there now. */
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
      this._view.sayWrong([this._trans.__('The cell has changed or cannot be written: nothing was sent.')]);
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
