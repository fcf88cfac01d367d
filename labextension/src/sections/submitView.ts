/** View of the Submit section: the code, the form, the resulting line, and the buttons. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { allow, button, element, say, sayLine } from './dom';
import type { ISubject, Mode } from './submitCells';

const MODES: readonly Mode[] = ['cell', 'selected', 'file'];

/** User actions of the view. */
export interface ISubmitHost {
  choose(mode: Mode): void;
  fileTyped(): void;
  /** Choose the file in a dialog; `null` if there is none. */
  readonly browse: (() => void) | null;
  /** Edit all options. */
  options(): void;
  write(): void;
  submit(): void;
}

export class SubmitView {
  constructor(
    private readonly _trans: TranslationBundle,
    form: HTMLElement,
    private readonly _host: ISubmitHost
  ) {
    this._write = button(_trans.__('Write line'), 'reject', () => _host.write());
    this._run = button(_trans.__('Submit'), 'accept', () => undefined);
    // With wrong values it looks disabled, and a press shows what is wrong.
    this._run.addEventListener('click', () => this.open && _host.submit());
    this._more = button(_trans.__('All options…'), 'reject', () => _host.options());
    this._makeModes();
    this._makeFile();
    this._wrong.setAttribute('role', 'alert');
    this._remarks.setAttribute('role', 'status');
    this._line.setAttribute('aria-label', _trans.__('The line that will be written'));
    this._line.setAttribute('role', 'note');
    this._note.setAttribute('role', 'status');
    this._remarks.hidden = true;
    this._source.append(this._title, this._code);
    const what = element('div', 'jp-AmlSubmit-what', '', this._modes, this._fileField, this._source, this._note);
    const buttons = element('div', 'jp-AmlForm-buttons', '', this._write, this._run);
    this._more.classList.add('jp-AmlSubmit-more');
    this.body = element('div', 'jp-AmlSubmit-body', '', what, form, this._more);
    this.foot = element('div', 'jp-AmlSubmit-foot', '', this._wrong, this._remarks, this._line, this._queued, buttons);
  }

  /** Scrollable part of the view. */
  readonly body: HTMLElement;
  /** Fixed part of the view, below the scrollable one. */
  readonly foot: HTMLElement;

  get mode(): Mode {
    return this._mode;
  }
  set mode(mode: Mode) {
    this._mode = mode;
    this._fileField.hidden = mode !== 'file';
  }

  /** Path that the user has typed. */
  get file(): string {
    return this._file.value;
  }
  set file(path: string) {
    this._file.value = path;
  }

  /** Whether there is something to submit, with right or wrong values. */
  get open(): boolean {
    return this._open;
  }

  /** Focus the submit button. */
  focus(): void {
    this._run.focus({ preventScroll: true });
  }

  /** Draw the subject of the submit; `count` is the number of selected cells. */
  draw(subject: ISubject, count: number): void {
    const labels = {
      cell: this._trans.__('Active cell'),
      selected: count > 1 ? this._trans.__('Selected (%1)', count) : this._trans.__('Selected'),
      file: this._trans.__('File')
    };
    for (const [mode, created] of this._modeButtons) {
      say(created, labels[mode]);
      created.title = labels[mode];
      created.setAttribute('aria-checked', String(mode === this._mode));
      created.tabIndex = mode === this._mode ? 0 : -1;
    }
    this._fileField.hidden = this._mode !== 'file';
    this._source.hidden = subject.title === '';
    say(this._title, subject.title);
    say(this._code, subject.preview);
    this._code.hidden = subject.preview === '';
    say(this._note, subject.disabledReason || subject.note);
    this._note.hidden = (subject.disabledReason || subject.note) === '';
  }

  /** Show the line that will be written. */
  sayLine(line: string): void {
    sayLine(this._line, line);
  }

  /** Show the errors that belong to no field; `quiet`: as a note, because the user has not done anything yet. */
  sayWrong(errors: readonly string[], quiet = false): void {
    this._wrong.classList.toggle('jp-mod-quiet', quiet);
    this._wrong.setAttribute('role', quiet ? 'status' : 'alert');
    // Its text may be longer than its height.
    this._wrong.tabIndex = errors.length ? 0 : -1;
    say(this._wrong, errors.join('\n'));
    this._wrong.hidden = errors.length === 0;
  }

  /** Show notes that do not prevent the submit. */
  sayNotes(notes: readonly string[]): void {
    say(this._remarks, notes.join('\n'));
    this._remarks.hidden = notes.length === 0;
  }

  /** Show how many options are set that the form does not show. */
  countOthers(count: number): void {
    say(this._more, count ? this._trans.__('All options (%1 more set)…', count) : this._trans.__('All options…'));
  }

  /** Enable the buttons, or disable them and show the reason; `wrong`: the first wrong value. */
  enable(disabledReason: string, wrong: string, queued: boolean): void {
    this._open = disabledReason === '';
    allow(this._write, disabledReason);
    allow(this._more, disabledReason);
    allow(this._run, disabledReason || wrong);
    this._line.hidden = !this._line.textContent;
    say(this._queued, this._trans.__('The kernel is busy: the submit is queued behind the running cell.'));
    this._queued.hidden = !queued;
  }

  private _makeModes(): void {
    this._modes.setAttribute('role', 'radiogroup');
    this._modes.setAttribute('aria-label', this._trans.__('What to submit'));
    for (const mode of MODES) {
      const created = element('button');
      created.type = 'button';
      created.dataset.mode = mode;
      created.setAttribute('role', 'radio');
      created.addEventListener('click', () => this._host.choose(mode));
      this._modes.append(created);
      this._modeButtons.set(mode, created);
    }
    this._modes.addEventListener('keydown', event => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (by) {
        event.preventDefault();
        const next = MODES[(MODES.indexOf(this._mode) + by + MODES.length) % MODES.length];
        this._host.choose(next);
        this._modeButtons.get(next)?.focus();
      }
    });
  }

  private _makeFile(): void {
    const label = element('label', '', this._trans.__('File'));
    const help = element('div', 'jp-AmlForm-help', this._trans.__('Path relative to the notebook.'));
    label.htmlFor = this._file.id = 'jp-AmlSubmit-file';
    help.id = 'jp-AmlSubmit-fileHelp';
    this._file.type = 'text';
    this._file.spellcheck = false;
    this._file.placeholder = 'train.py';
    this._file.setAttribute('aria-describedby', help.id);
    this._file.addEventListener('input', () => this._host.fileTyped());
    const { browse } = this._host;
    const chosen = element('div', 'jp-AmlForm-chosen', '', this._file);
    if (browse) {
      chosen.append(button(this._trans.__('Browse…'), 'reject', browse));
    }
    this._fileField.append(
      element('div', 'jp-AmlForm-field', '', element('div', 'jp-AmlForm-head', '', label), chosen, help)
    );
    this._fileField.dataset.lmSuppressShortcuts = 'true';
  }

  private _open = false;
  private readonly _more: HTMLButtonElement;
  private readonly _write: HTMLButtonElement;
  private readonly _run: HTMLButtonElement;
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
  private readonly _remarks = element('div', 'jp-AmlSubmit-remarks');
  private readonly _queued = element('div', 'jp-AmlSubmit-note');
  private _mode: Mode = 'cell';
}
