/** Bars beside the lines of a cell: an extension of its CodeMirror editor. */

import { Compartment, EditorState, RangeSet, RangeSetBuilder, StateEffect, StateField } from '@codemirror/state';
import { EditorView, gutter, GutterMarker } from '@codemirror/view';
import type { CodeEditor } from '@jupyterlab/codeeditor';
import type { IRunLines } from '../protocol';
import { IPlacedMark, markText, placeMarks } from './lineMarks';

/** The lines of a run that a cell shows. */
export interface ICellLines {
  /** of the output that shows the run */
  owner: object;
  /** when the run was submitted, Unix seconds: a newer run of the cell replaces it */
  created: number;
  lines: IRunLines;
}

interface IShown {
  cell: ICellLines | null;
  markers: RangeSet<GutterMarker>;
}

class LineBar extends GutterMarker {
  constructor(
    private readonly _placed: IPlacedMark,
    private readonly _text: string
  ) {
    super();
    const { share, total, work } = _placed.mark;
    this._key = [share, total, work, _text].join();
  }

  eq(other: LineBar): boolean {
    return other._key === this._key;
  }

  toDOM(): HTMLElement {
    const { share, total, work } = this._placed.mark;
    const node = document.createElement('div');
    node.className = 'jp-AmlLines-bar';
    node.title = this._text;
    node.style.setProperty('--jp-amllines-share', String(share));
    node.style.setProperty('--jp-amllines-total', String(Math.max(share, total)));
    node.style.setProperty('--jp-amllines-work', String(work));
    return node;
  }

  private readonly _key: string;
}

const NOTHING: IShown = { cell: null, markers: RangeSet.empty };

const show = StateEffect.define<ICellLines | null>();

function markersOf(cell: ICellLines, state: EditorState): RangeSet<GutterMarker> {
  const text = Array.from({ length: state.doc.lines }, (_, at) => state.doc.line(at + 1).text);
  const builder = new RangeSetBuilder<GutterMarker>();
  for (const placed of placeMarks(cell.lines, text)) {
    const { from } = state.doc.line(placed.line);
    builder.add(from, from, new LineBar(placed, markText(cell.lines, placed.mark)));
  }
  return builder.finish();
}

const shown = StateField.define<IShown>({
  create: () => NOTHING,
  update: (value, transaction) => {
    const effect = transaction.effects.find(one => one.is(show));
    const cell = effect ? (effect.value as ICellLines | null) : value.cell;
    if (!cell) {
      return NOTHING;
    }
    return effect || transaction.docChanged ? { cell, markers: markersOf(cell, transaction.state) } : value;
  }
});

/** A gutter takes room, so there is one only while there are bars. */
const place = new Compartment();

const bars = gutter({ class: 'jp-AmlLines', markers: view => view.state.field(shown).markers });

function viewOf(editor: CodeEditor.IEditor): EditorView | null {
  const view = (editor as unknown as { editor?: unknown }).editor;
  return view instanceof EditorView ? view : null;
}

/** Show the lines of a run in a cell, unless it shows a newer run; null removes those of `owner`. */
export function showInCell(editor: CodeEditor.IEditor, owner: object, cell: ICellLines | null): void {
  const view = viewOf(editor);
  if (!view || editor.isDisposed) {
    return;
  }
  const known = view.state.field(shown, false);
  if (cell ? known?.cell && known.cell.owner !== owner && known.cell.created > cell.created : known?.cell?.owner !== owner) {
    return;
  }
  if (!known) {
    editor.injectExtension([shown, place.of([])]);
  }
  const effects: StateEffect<unknown>[] = [show.of(cell)];
  if ((cell === null) !== !known?.cell) {
    effects.push(place.reconfigure(cell ? bars : []));
  }
  view.dispatch({ effects });
}
