/** Where the time of a run goes: a sentence and a table in its output, bars beside the lines of its cell. */

import type { CodeEditor } from '@jupyterlab/codeeditor';
import { TranslationBundle } from '@jupyterlab/translation';
import { messageOf } from '../kernel/client';
import type { IPartHost, IRecordPart } from '../output/parts';
import type { ILinesReply, IRunLines, IRunRecord } from '../protocol';
import { element, say } from '../sections/dom';
import { barSetting } from './barSetting';
import { showInCell } from './cellGutter';
import { drawStacks } from './stackBoxes';
import { placeMarks } from './lineMarks';
import { drawTable } from './linesTable';

/** Milliseconds between two readings of the stacks of a run that goes on, while they are shown. */
const STACKS_INTERVAL_MS = 10000;

export class LinesView implements IRecordPart {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _host: IPartHost
  ) {
    this._toggle.type = this._whole.type = 'button';
    this._toggle.addEventListener('click', () => (barSetting.on = !barSetting.on));
    this._whole.textContent = _trans.__('Show all of the run');
    this._whole.addEventListener('click', () => this._forget());
    this._whole.hidden = true;
    // It scrolls, so the keyboard must reach it.
    this._body.tabIndex = 0;
    this._body.setAttribute('role', 'group');
    this._body.setAttribute('aria-label', _trans.__('Time by line'));
    this._fold.append(this._title, this._body);
    this._fold.addEventListener('toggle', () => {
      if (this._fold.open && this._part === null && !this._isReading) {
        void this._read(0, 0);
      }
    });
    this.node.append(this._fold, element('div', 'jp-AmlRun-linesButtons', '', this._whole, this._toggle));
    this.node.hidden = true;
    barSetting.changed.connect(this._drawBars, this);
  }

  readonly node = element('div', 'jp-AmlRun-lines');

  /** Show the lines of a range of time in place of those of the run; undefined where it has none. */
  select: ((from: number, to: number) => void) | undefined = undefined;

  update({ lines, created, view, handle }: IRunRecord): void {
    if (handle !== this._handle) {
      this._handle = handle;
      this._part = null;
    }
    this._record = lines;
    this._created = created;
    this.node.hidden = lines === null || view === 'dashboard';
    this.select = this.node.hidden ? undefined : this._select;
    this._draw();
    const isOld = Date.now() - this._readAt > STACKS_INTERVAL_MS && JSON.stringify(lines) !== this._readKey;
    if (isOld && this._part && !this._isRange && this._fold.open && !this._isReading) {
      void this._read(0, 0);
    }
  }

  dispose(): void {
    barSetting.changed.disconnect(this._drawBars, this);
    this._release();
  }

  private readonly _select = (from: number, to: number): void => {
    this._fold.open = true;
    void this._read(from, to);
  };

  /** Lines and stacks of a range of time, of all for 0: a record has no stacks. */
  private async _read(start: number, end: number): Promise<void> {
    const request = ++this._requests;
    this._isReading = true;
    this._readAt = Date.now();
    this._readKey = JSON.stringify(this._record);
    this._failure = '';
    try {
      const reply = await this._host.request('lines', { start, end });
      if (request === this._requests) {
        this._part = reply;
        this._isRange = end > 0;
      }
    } catch (error) {
      // Without a kernel the record's lines are enough, unless a person has asked for others.
      this._failure = end && request === this._requests ? messageOf(error) : '';
    }
    this._isReading = this._isReading && request !== this._requests;
    this._draw();
  }

  private _forget(): void {
    this._requests += 1;
    this._isReading = false;
    this._part = null;
    this._isRange = false;
    this._failure = '';
    this._draw();
    if (this._fold.open) {
      void this._read(0, 0);
    }
  }

  /** Those of the selected time, else of the record. */
  private get _lines(): IRunLines | null {
    return this._isRange && this._part ? this._part.lines : this._record;
  }

  private _draw(): void {
    const lines = this._lines;
    const key = JSON.stringify([lines, this._failure, this._part?.boxes]);
    if (lines && key !== this._key) {
      this._key = key;
      const title = this._isRange ? lines.span : '';
      say(this._title, [title, lines.sentence].filter(Boolean).join(' ') || this._trans.__('Time by line'));
      this.node.classList.toggle('jp-mod-named', lines.sentence !== '');
      this._whole.hidden = !this._isRange;
      const hint = this._trans.__('To see a part of the time, drag over a chart of it, with Shift while charts are live.');
      this._body.replaceChildren(
        drawTable(lines.table, this._trans),
        drawStacks(this._part?.boxes ?? []),
        element('div', 'jp-AmlRun-linesSpan', [this._isRange ? '' : lines.span, hint].filter(Boolean).join(' '))
      );
      if (this._failure) {
        this._body.prepend(element('div', 'jp-AmlRun-linesFailure', this._failure));
      }
    }
    this._drawBars();
  }

  /** An editor may be made after its output, and again when its cell is scrolled into sight. */
  private _drawBars(): void {
    const lines = this._lines;
    const editor = lines ? this._editorOf(lines) : null;
    this._toggle.hidden = editor === null;
    this._toggle.setAttribute('aria-pressed', String(barSetting.on));
    say(this._toggle, barSetting.on ? this._trans.__('Hide bars in the cell') : this._trans.__('Show bars in the cell'));
    const shown = barSetting.on ? editor : null;
    if (shown !== this._editor) {
      this._release();
    }
    if (lines && shown && (this._editor !== shown || this._shown !== lines)) {
      this._editor = shown;
      this._shown = lines;
      showInCell(shown, this, { owner: this, created: this._created, lines });
    }
  }

  /** The editor of the cell, if the lines are in it: not where the cell attaches a run. */
  private _editorOf(lines: IRunLines): CodeEditor.IEditor | null {
    const editor = lines.marks.length ? this._host.editor() : null;
    const text = editor?.model.sharedModel.getSource().split('\n') ?? [];
    return placeMarks(lines, text).length ? editor : null;
  }

  private _release(): void {
    if (this._editor && !this._editor.isDisposed) {
      showInCell(this._editor, this, null);
    }
    this._editor = this._shown = null;
  }

  private readonly _fold = element('details', 'jp-AmlRun-linesFold');
  private readonly _title = element('summary', 'jp-AmlRun-linesTitle');
  private readonly _body = element('div', 'jp-AmlRun-linesTable');
  private readonly _whole = element('button', 'jp-AmlRun-link');
  private readonly _toggle = element('button', 'jp-AmlRun-link');
  private _handle = '';
  private _record: IRunLines | null = null;
  /** What the kernel has read: of a range, or of all with the stacks. */
  private _part: ILinesReply | null = null;
  private _isRange = false;
  private _requests = 0;
  private _isReading = false;
  private _readAt = 0;
  /** The record's lines when the stacks were read. */
  private _readKey = '';
  private _failure = '';
  private _created = 0;
  private _key = '';
  private _shown: IRunLines | null = null;
  private _editor: CodeEditor.IEditor | null = null;
}
