/** The Submit section: a small form that writes the line of a submit into the notebook. */

import type { Cell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { PanelWithToolbar, ToolbarButton, cleaningIcon, clearIcon, runIcon } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { keeperOf } from '../panel/sections';
import type { IPanelContext } from '../panel/tokens';
import type { IComposeReply } from '../protocol';
import { Checker } from './acts';
import { allow, button, element, say, sayLine } from './dom';
import { Values, same, sortErrors } from './fields';
import { FieldForm } from './form';
import { ISubject, Mode, selectedCount, subjectOf, writeLine } from './submit_cells';
import { folderOf, relative } from './submit_text';
import { toolbarButton } from './toolbar';

/** Milliseconds after which a change in the notebook is followed. */
const SETTLE = 120;

export class SubmitSection extends PanelWithToolbar {
  constructor(private readonly _context: IPanelContext) {
    super();
    const { trans, model, tracker } = _context;
    this._trans = trans;
    this.addClass('jp-AmlSubmit');
    this.title.label = trans.__('Submit');
    this._form = new FieldForm({ fields: [], trans, compact: true });
    this._checker = new Checker<IComposeReply>(() => this._compose());
    this._checker.answered.connect((_, reply) => this._answered(reply));
    this._checker.failed.connect((_, text) => {
      this._reply = null;
      this._say([text]);
    });
    this._form.changed.connect(() => {
      if (!this._filled) {
        this._draft = this._form.values();
      }
      this._checker.soon();
    });
    this._form.submitted.connect(() => void this._submit());

    this._write = button(trans.__('Write line'), 'reject', () => void this._finish(false));
    this._run = button(trans.__('Submit'), 'accept', () => void this._submit());
    this._makeModes();
    this._makeFile();
    this._wrong.setAttribute('role', 'alert');
    this._line.setAttribute('aria-label', trans.__('The line that will be written'));
    this._line.setAttribute('role', 'note');
    this._note.setAttribute('role', 'status');
    this._source.append(this._title, this._code);
    const what = element('div', 'jp-AmlSubmit-what', '', this._modes, this._fileField, this._source, this._note);
    const buttons = element('div', 'jp-AmlForm-buttons', '', this._write, this._run);
    const foot = element('div', 'jp-AmlSubmit-foot', '', this._wrong, this._line, this._queued, buttons);
    this.addWidget(new Widget({ node: element('div', 'jp-AmlSubmit-body', '', what, this._form.node) }));
    this.addWidget(new Widget({ node: foot }));
    this.toolbar.addItem(
      'clear',
      // JupyterLab 4.2 has no broom.
      toolbarButton(cleaningIcon ?? clearIcon, trans.__('Clear the form'), () => this._clear())
    );
    this._runButton = toolbarButton(runIcon, trans.__('Submit'), () => void this._submit());
    this.toolbar.addItem('run', this._runButton);

    tracker.activeCellChanged.connect(this._followCell, this);
    tracker.selectionChanged.connect(this._later, this);
    model.connectionChanged.connect(this._connectionChanged, this);
    model.targetsChanged.connect(this._targets, this);
    this._followCell();
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
    this._file.value = path ?? what.file;
    this._choose('file');
    if (path === null) {
      this._say([this._trans.__('%1 lies on another drive than the notebook: its kernel cannot read it.', what.file)]);
    }
  }

  dispose(): void {
    clearTimeout(this._timer);
    const { model, tracker } = this._context;
    tracker.activeCellChanged.disconnect(this._followCell, this);
    tracker.selectionChanged.disconnect(this._later, this);
    model.connectionChanged.disconnect(this._connectionChanged, this);
    model.targetsChanged.disconnect(this._targets, this);
    this._cell?.model?.contentChanged.disconnect(this._settleTyping, this);
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

  private get _ready(): boolean {
    return this._context.model.connection.state === 'ready';
  }

  // ---- following the notebook

  private _followCell(): void {
    const cell = this._context.model.notebook?.content.activeCell ?? null;
    if (cell !== this._cell) {
      this._cell?.model?.contentChanged.disconnect(this._settleTyping, this);
      this._cell = cell;
      cell?.model?.contentChanged.connect(this._settleTyping, this);
    }
    this._later();
  }

  private _settleTyping(): void {
    this._later(400);
  }

  private _later(wait?: unknown): void {
    clearTimeout(this._timer);
    // What is not seen is not followed; showing it draws it.
    if (this.isVisible) {
      this._timer = setTimeout(() => this._refresh(), typeof wait === 'number' ? wait : SETTLE);
    }
  }

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
        this._drawSubject(subjectOf(notebook, this._mode, this._file.value, this._trans));
      }
      this._enable();
    }
  }

  private _connected(): void {
    if (this._ready && this.isVisible) {
      void this._loadFields();
    }
    this._followCell();
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
      const { submit } = await this._context.model.kinds();
      const fields = submit.filter(field => field.flag !== '');
      if (!this.isDisposed && !same(fields, this._form.fields)) {
        this._form.setTargets(this._context.model.targets);
        const first = this._form.fields.length === 0;
        this._form.setFields(fields);
        if (first) {
          this._makeRoom();
        }
        this._read = '';
        this._later();
      }
    } catch (error) {
      if (!this.isDisposed) {
        this._say([error instanceof Error ? error.message : String(error)]);
      }
    }
  }

  /** Look at the notebook again: what would be submitted, and what its line says. */
  private _refresh(): void {
    const { model } = this._context;
    const subject = (this._subject = subjectOf(model.notebook, this._mode, this._file.value, this._trans));
    this._drawSubject(subject);
    if (subject.whyNot) {
      this._checker.cancel();
      this._reply = null;
      say(this._line, '');
      this._say([]);
      this._enable();
      return;
    }
    const read = `${subject.place}\n${subject.old}`;
    if (read !== this._read) {
      this._read = read;
      if (subject.old) {
        void this._fill(subject);
        return;
      }
      if (this._filled) {
        // The form said what another cell's line says; back to what a person has typed.
        this._filled = false;
        this._form.setValues(this._draft);
      }
    }
    this._enable();
    void this._checker.now();
  }

  /** Fill the form from the line that is there. */
  private async _fill(subject: ISubject): Promise<void> {
    if (!this._ready) {
      this._read = '';
      return;
    }
    const read = this._read;
    try {
      const reply = await this._context.model.request('compose', { ...this._payload(subject), values: null });
      if (!this.isDisposed && read === this._read) {
        this._filled = true;
        this._form.setValues(reply.values);
        this._answered(reply);
      }
    } catch (error) {
      if (!this.isDisposed && read === this._read) {
        this._read = '';
        this._say([error instanceof Error ? error.message : String(error)]);
      }
    }
  }

  // ---- the line

  private _payload(subject: ISubject): { old: string; cell: string | null; script: string; folder: string } {
    const { old, cell, script } = subject;
    return { old, cell, script, folder: folderOf(this._context.model.notebook?.context.path ?? '') };
  }

  private _compose(): Promise<IComposeReply> | null {
    const subject = this._subject;
    if (!subject || subject.whyNot || !this._ready) {
      return null;
    }
    const values: Values = this._form.values();
    return this._context.model.request('compose', { ...this._payload(subject), values });
  }

  private _answered(reply: IComposeReply, focus = false): void {
    this._reply = reply;
    sayLine(this._line, reply.line);
    const { of, rest } = sortErrors(this._form.fields, reply.errors);
    this._form.setErrors(Object.fromEntries(of), focus);
    this._say(rest);
    this._enable();
  }

  private async _submit(): Promise<void> {
    if (this._run.getAttribute('aria-disabled') !== 'true') {
      await this._finish(true);
    }
  }

  /** Write the line, and run its cell if wanted; the line is made anew first, from what is there now. */
  private async _finish(run: boolean): Promise<void> {
    const { app, model, tracker } = this._context;
    const { notebook } = model;
    clearTimeout(this._timer);
    this._subject = subjectOf(notebook, this._mode, this._file.value, this._trans);
    this._drawSubject(this._subject);
    const subject = this._subject;
    const reply = await this._checker.now();
    if (!reply || !notebook || notebook.isDisposed || subject !== this._subject) {
      return;
    }
    this._answered(reply, run);
    if (!reply.line || (run && Object.keys(reply.errors).length > 0)) {
      return;
    }
    if (!writeLine(notebook, subject, reply.line)) {
      this._say([this._trans.__('The cell has changed or cannot be written: nothing was sent.')]);
      return;
    }
    if (subject.mode === 'selected') {
      // The new cell is the active one and has the line: from now on it is the one that counts.
      this._setMode('cell');
    }
    this._later();
    if (run) {
      if (tracker.currentWidget !== notebook) {
        app.shell.activateById(notebook.id);
      }
      // The focus stays here.
      await app.commands.execute('notebook:run-cell', { activate: false });
    }
  }

  private _clear(): void {
    this._draft = {};
    this._form.setValues({});
    void this._checker.now();
  }

  // ---- drawing

  private _makeModes(): void {
    this._modes.setAttribute('role', 'radiogroup');
    this._modes.setAttribute('aria-label', this._trans.__('What to submit'));
    for (const mode of MODES) {
      const made = element('button');
      made.type = 'button';
      made.dataset.mode = mode;
      made.setAttribute('role', 'radio');
      made.addEventListener('click', () => this._choose(mode));
      this._modes.append(made);
      this._modeButtons.set(mode, made);
    }
    this._modes.addEventListener('keydown', event => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (by) {
        event.preventDefault();
        const next = MODES[(MODES.indexOf(this._mode) + by + MODES.length) % MODES.length];
        this._choose(next);
        this._modeButtons.get(next)?.focus();
      }
    });
  }

  private _makeFile(): void {
    const label = element('label', '', this._trans.__('File'));
    const help = element('div', 'jp-AmlForm-help', this._trans.__('Path from the folder of the notebook.'));
    label.htmlFor = this._file.id = 'jp-AmlSubmit-file';
    help.id = 'jp-AmlSubmit-fileHelp';
    this._file.type = 'text';
    this._file.spellcheck = false;
    this._file.placeholder = 'train.py';
    this._file.setAttribute('aria-describedby', help.id);
    this._file.addEventListener('input', () => this._later(400));
    this._fileField.append(
      element('div', 'jp-AmlForm-field', '', element('div', 'jp-AmlForm-head', '', label), this._file, help)
    );
    this._fileField.dataset.lmSuppressShortcuts = 'true';
  }

  private _choose(mode: Mode): void {
    this._setMode(mode);
    this._subject = subjectOf(this._context.model.notebook, this._mode, this._file.value, this._trans);
    this._drawSubject(this._subject);
    this._later(0);
  }

  private _setMode(mode: Mode): void {
    this._mode = mode;
    this._fileField.hidden = mode !== 'file';
  }

  private _drawSubject(subject: ISubject): void {
    const count = selectedCount(this._context.model.notebook);
    const labels = {
      cell: this._trans.__('Active cell'),
      selected: count > 1 ? this._trans.__('Selected (%1)', count) : this._trans.__('Selected'),
      file: this._trans.__('File')
    };
    for (const [mode, made] of this._modeButtons) {
      say(made, labels[mode]);
      made.title = labels[mode];
      made.setAttribute('aria-checked', String(mode === this._mode));
      made.tabIndex = mode === this._mode ? 0 : -1;
    }
    this._fileField.hidden = this._mode !== 'file';
    this._source.hidden = subject.title === '';
    say(this._title, subject.title);
    say(this._code, subject.preview);
    this._code.hidden = subject.preview === '';
    say(this._note, subject.whyNot || subject.note);
    this._note.hidden = (subject.whyNot || subject.note) === '';
  }

  private _say(errors: readonly string[]): void {
    say(this._wrong, errors.join('\n'));
    this._wrong.hidden = errors.length === 0;
  }

  private _enable(): void {
    const { connection } = this._context.model;
    const whyNot = !this._ready ? this._trans.__('The kernel does not answer now.') : (this._subject?.whyNot ?? '');
    const wrong = this._reply && Object.keys(this._reply.errors).length > 0;
    allow(this._write, whyNot);
    allow(this._run, whyNot);
    this._runButton.enabled = whyNot === '' && !wrong;
    this._line.hidden = !this._line.textContent;
    say(this._queued, this._trans.__('The kernel is busy: the submit is queued behind the running cell.'));
    this._queued.hidden = !(this._ready && connection.busy && whyNot === '');
  }

  private readonly _trans: TranslationBundle;
  private readonly _form: FieldForm;
  private readonly _checker: Checker<IComposeReply>;
  private readonly _write: HTMLButtonElement;
  private readonly _run: HTMLButtonElement;
  private readonly _runButton: ToolbarButton;
  private readonly _modeButtons = new Map<Mode, HTMLButtonElement>();
  private readonly _modes = element('div', 'jp-AmlSubmit-modes');
  private readonly _fileField = element('div', 'jp-AmlForm');
  private readonly _file = element('input', 'jp-AmlForm-input jp-mod-styled');
  private readonly _source = element('div', 'jp-AmlSubmit-source');
  private readonly _title = element('div', 'jp-AmlSubmit-title');
  private readonly _code = element('pre', 'jp-AmlSubmit-code');
  private readonly _note = element('div', 'jp-AmlSubmit-note');
  private readonly _line = element('code', 'jp-AmlLine jp-AmlSubmit-line');
  private readonly _wrong = element('div', 'jp-AmlSubmit-wrong');
  private readonly _queued = element('div', 'jp-AmlSubmit-note');
  private _shown = false;
  private _mode: Mode = 'cell';
  private _subject: ISubject | null = null;
  private _reply: IComposeReply | null = null;
  private _cell: Cell | null = null;
  private _state = '';
  private _notebook: NotebookPanel | null = null;
  /** Place and line that the form was filled from, or was found without one. */
  private _read = '';
  /** The form says what a line in the notebook says. */
  private _filled = false;
  /** What a person has typed for cells without a line. */
  private _draft: Values = {};
  private _timer: ReturnType<typeof setTimeout> | undefined;
}

const MODES: readonly Mode[] = ['cell', 'selected', 'file'];
