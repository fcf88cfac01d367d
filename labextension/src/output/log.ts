/** The end of a log: follows the text unless the reader has scrolled up. */

import { TranslationBundle } from '@jupyterlab/translation';
import { bytes, plain } from '../format';
import { ILogTail } from '../protocol';
import { drawn } from '../terminalSpans';

/** Characters kept on the page, whatever a record holds. */
const MAX_CHARS = 64 * 1024;

export class LogView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('section');
    this.node.className = 'jp-AmlRun-log';
    this._title = document.createElement('div');
    this._title.className = 'jp-AmlRun-logTitle';
    this._body = document.createElement('pre');
    this._body.className = 'jp-AmlTerminal';
    this._body.tabIndex = 0;
    this._body.setAttribute('role', 'log');
    // The log scrolls by many times a second; a screen reader would never stop.
    this._body.setAttribute('aria-live', 'off');
    this._body.setAttribute('aria-label', _trans.__('End of the log'));
    this.node.append(this._title, this._body);
  }

  readonly node: HTMLElement;

  update(log: ILogTail): void {
    this.node.hidden = !plain(log.tail);
    this._titles(log);
    const lines = lastLines(log.tail);
    const old = this._lines;
    if (lines.length === old.length && lines.every((line, i) => line === old[i])) {
      return;
    }
    const body = this._body;
    const follows = body.scrollHeight - body.scrollTop - body.clientHeight < 8;
    this._show(lines);
    if (follows) {
      this.follow();
    }
  }

  /** Draw lines; those that were there keep their nodes, and with them the selection of the reader. */
  private _show(lines: readonly string[]): void {
    const body = this._body;
    const gone = goneLines(this._lines, lines);
    const old = this._lines.slice(gone);
    for (let i = 0; i < gone; i++) {
      body.firstChild?.remove();
    }
    while (body.childNodes.length > lines.length) {
      body.lastChild?.remove();
    }
    lines.forEach((line, i) => {
      const node = body.childNodes[i];
      if (!node) {
        body.append(lineNode(line));
      } else if (line !== old[i] && !grow(node, old[i], line)) {
        node.replaceWith(lineNode(line));
      }
    });
    this._lines = lines;
  }

  /** Scroll to the end; has an effect only once the node is laid out. */
  follow(): void {
    this._body.scrollTop = this._body.scrollHeight;
  }

  private _titles(log: ILogTail): void {
    const parts = [this._trans.__('Log')];
    if (log.bytes) {
      parts.push(bytes(log.bytes));
    }
    if (log.lines_hidden) {
      parts.push(this._trans.__('last lines; %1 earlier lines are in the file', log.lines_hidden));
    }
    const text = parts.join(', ');
    if (this._title.textContent !== text) {
      this._title.textContent = text;
    }
  }

  private readonly _title: HTMLElement;
  private readonly _body: HTMLElement;
  /** Lines that are drawn, a node for each. */
  private _lines: readonly string[] = [];
}

/** Lines of the end of a log, bounded, without an empty one at the end. */
function lastLines(tail: string): string[] {
  const at = tail.length > MAX_CHARS ? tail.indexOf('\n', tail.length - MAX_CHARS) + 1 : 0;
  const lines = (at || tail.length <= MAX_CHARS ? tail.slice(at) : tail.slice(-MAX_CHARS)).split('\n');
  return lines[lines.length - 1] ? lines : lines.slice(0, -1);
}

/** Number of lines at the begin of `old` that are no longer in `now`. */
function goneLines(old: readonly string[], now: readonly string[]): number {
  for (let gone = 0; gone < old.length; gone++) {
    // The last lines may have changed, as bars do; the first ones tell.
    if (old.slice(gone, gone + 3).every((line, i) => line === now[i])) {
      return gone;
    }
  }
  return 0;
}

function lineNode(line: string): HTMLElement {
  const node = document.createElement('span');
  node.append(...drawn(line), '\n');
  return node;
}

/** Add to a line without colors what has been written at its end; returns whether that was possible. */
function grow(node: Node, old: string, line: string): boolean {
  const text = node.firstChild;
  if (!old || !line.startsWith(old) || line !== plain(line) || !(text instanceof Text) || text.data !== old) {
    return false;
  }
  text.appendData(line.slice(old.length));
  return true;
}
