/** Selection of the cells or the file to submit, and insertion of the line into the notebook. */

import type { Cell, ICodeCellModel } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { insertBelow } from './notebookEdits';
import { edit, firstLines, join, otherMagic, scriptLine, split } from './submitText';

export type Mode = 'cell' | 'selected' | 'file';

export interface ISubject {
  readonly mode: Mode;
  /** Title that identifies the cells, e.g. `Cell [3]`. */
  readonly title: string;
  /** First lines of the code; empty for a file. */
  readonly preview: string;
  /** Reason why the code cannot be submitted, as one sentence; empty if it can. */
  readonly disabledReason: string;
  /** Additional note, e.g. that a new cell will be created. */
  readonly note: string;
  /** Existing line. */
  readonly old: string;
  /** Code below the line; `null` for a file. */
  readonly cell: string | null;
  readonly script: string;
  /** Key of the place in the notebook: a line that was read there need not be read again. */
  readonly place: string;
}

const NO_SUBJECT: ISubject = {
  mode: 'cell',
  title: '',
  preview: '',
  disabledReason: '',
  note: '',
  old: '',
  cell: null,
  script: '',
  place: ''
};

/** Number of selected cells, including the active one. */
export function selectedCount(notebook: NotebookPanel | null): number {
  return notebook ? notebook.content.widgets.filter(cell => isIn(notebook, cell)).length : 0;
}

/** Cells or file that a submit would use now. */
export function subjectOf(
  notebook: NotebookPanel | null,
  mode: Mode,
  file: string,
  trans: TranslationBundle
): ISubject {
  const none = { ...NO_SUBJECT, mode };
  if (!notebook?.content.model) {
    return { ...none, disabledReason: trans.__('Open a notebook to submit its cells from here.') };
  }
  switch (mode) {
    case 'cell':
      return ofCell(notebook.content.activeCell, none, trans);
    case 'selected':
      return ofSelected(notebook, none, trans);
    default:
      return ofFile(notebook, file, none, trans);
  }
}

/**
 * Insert or replace the line as one undoable step, and activate its cell.
 *
 * `false`: the notebook is read-only or has changed, and the cell no longer exists.
 */
export function writeLine(notebook: NotebookPanel, subject: ISubject, line: string): boolean {
  const { content } = notebook;
  const active = content.activeCell;
  if (!content.model || content.model.readOnly) {
    return false;
  }
  if (subject.mode === 'cell' || /^%aml_(?:submit|sweep)\b/.test(subject.old)) {
    if (!active || active.model.id !== subject.place) {
      return false;
    }
    const cell = active.model.sharedModel;
    const source = cell.getSource();
    const change = subject.mode === 'cell' ? edit(source, line) : { start: 0, end: source.length, text: line };
    if (source.slice(change.start, change.end) !== change.text) {
      cell.transact(() => cell.updateSource(change.start, change.end, change.text));
    }
    content.deselectAll();
    return true;
  }
  const source = subject.cell === null ? line : `${line}\n${subject.cell}`;
  const last = content.widgets.reduce((result, cell, at) => (isIn(notebook, cell) ? at : result), content.activeCellIndex);
  return insertBelow(notebook, subject.mode === 'selected' ? last : content.activeCellIndex, source);
}

function isIn(notebook: NotebookPanel, cell: Cell): boolean {
  return notebook.content.isSelectedOrActive(cell);
}

function ofCell(cell: Cell | null, none: ISubject, trans: TranslationBundle): ISubject {
  if (!cell) {
    return { ...none, disabledReason: trans.__('The notebook has no active cell.') };
  }
  const source = cell.model.sharedModel.getSource();
  const { line, code } = split(source);
  const title = titleOf(cell, trans);
  const subject = { ...none, title, preview: firstLines(code), old: line, cell: code, place: cell.model.id };
  if (cell.model.type !== 'code') {
    return { ...subject, disabledReason: trans.__('The active cell is not code: choose a code cell to submit.') };
  }
  if (cell.model.getMetadata('editable') === false) {
    return { ...subject, disabledReason: trans.__('The active cell is read-only, so no line can be written into it.') };
  }
  const magic = otherMagic(source);
  if (magic) {
    const disabledReason = trans.__('The cell begins with %1: only Python code can be submitted. Remove that line first.', magic);
    return { ...subject, disabledReason };
  }
  return code.trim() === '' ? { ...subject, disabledReason: trans.__('The cell has no code to submit.') } : subject;
}

function ofSelected(notebook: NotebookPanel, none: ISubject, trans: TranslationBundle): ISubject {
  const cells = notebook.content.widgets.filter(cell => isIn(notebook, cell));
  const joined = join(cells.map(({ model }) => ({ type: model.type, source: model.sharedModel.getSource() })));
  const title = trans._n('%1 cell of code', '%1 cells of code', joined.used, joined.used);
  const left = joined.skipped
    ? trans._n('%1 cell is not code and is left out.', '%1 cells are not code and are left out.', joined.skipped, joined.skipped)
    : '';
  const subject = {
    ...none,
    title,
    preview: firstLines(joined.code),
    note: [left, trans.__('They are joined into a new cell below them.')].filter(text => text !== '').join(' '),
    old: joined.line,
    cell: joined.code,
    place: cells.map(({ model }) => model.id).join(' ')
  };
  if (joined.refused) {
    return {
      ...subject,
      disabledReason: trans.__(
        'One of the cells begins with %1: only Python code can be submitted. Leave that cell out.',
        joined.refused
      )
    };
  }
  return joined.code === '' ? { ...subject, disabledReason: trans.__('The selected cells have no code to submit.') } : subject;
}

function ofFile(notebook: NotebookPanel, file: string, none: ISubject, trans: TranslationBundle): ISubject {
  const script = file.trim();
  if (!/\.py$/i.test(script)) {
    const disabledReason = script
      ? trans.__('%1 is not a .py file.', script)
      : trans.__('Type the path of a .py file, or choose "Submit as training run…" on one in the file browser.');
    return { ...none, disabledReason };
  }
  const active = notebook.content.activeCell;
  const old = active?.model.type === 'code' ? scriptLine(active.model.sharedModel.getSource(), script) : '';
  const note = old ? trans.__('The line replaces the active cell.') : trans.__('The line goes into a new cell below the active one.');
  return { ...none, script, old, note, place: old && active ? active.model.id : `file ${script}` };
}

function titleOf(cell: Cell, trans: TranslationBundle): string {
  const count = cell.model.type === 'code' ? (cell.model as ICodeCellModel).executionCount : null;
  return trans.__('Cell [%1]', count === null ? ' ' : count);
}
