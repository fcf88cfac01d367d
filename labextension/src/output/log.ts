/** The end of a log with the values that the script has displayed: follows the text unless the reader has scrolled up. */

import { TranslationBundle } from '@jupyterlab/translation';
import { bytes, plain } from '../format';
import { ILogTail, IRunDisplay } from '../protocol';
import { drawn } from '../terminalSpans';
import { DisplayViews, IDisplayHost } from './display';
import { goneItems, LogItem, logItems } from './logItems';

/** Characters kept on the page, whatever a record holds. */
const MAX_CHARS = 64 * 1024;

export class LogView {
  constructor(
    private readonly _trans: TranslationBundle,
    host: IDisplayHost
  ) {
    this._views = new DisplayViews(_trans, host, () => this._changed());
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
    this._body.addEventListener('scroll', () => (this._follows = this._isAtEnd()), { passive: true });
    this.node.append(this._title, this._body);
  }

  readonly node: HTMLElement;

  update(log: ILogTail, displays: readonly IRunDisplay[], hidden = 0): void {
    this._shown = [log, displays, hidden];
    this.node.hidden = !plain(log.tail) && !displays.length;
    this._titles(log, hidden);
    const shown = this._views.update(displays);
    // The nodes of displays that are no longer there are gone already.
    this._items = this._items.filter(item => typeof item === 'string' || this._views.has(item));
    this._body.classList.toggle('jp-mod-rich', shown.length > 0);
    const { lines, cut } = lastLines(log.tail);
    const items = logItems(lines, shown, cut);
    const old = this._items;
    if (items.length === old.length && items.every((item, i) => item === old[i])) {
      return;
    }
    this._follows = this._isAtEnd();
    this._show(items);
    if (this._follows) {
      this.follow();
    }
  }

  /** Scroll to the end; has an effect only once the node is laid out. */
  follow(): void {
    this._body.scrollTop = this._body.scrollHeight;
  }

  dispose(): void {
    this._views.update([]);
  }

  /** A display has been drawn, which takes its time. */
  private _changed(): void {
    const follows = this._follows;
    this.update(...this._shown);
    if (follows) {
      this.follow();
    }
  }

  private _isAtEnd(): boolean {
    const { scrollHeight, scrollTop, clientHeight } = this._body;
    return scrollHeight - scrollTop - clientHeight < 8;
  }

  /** Draw items; those that were there keep their nodes, and with them the selection of the reader. */
  private _show(items: readonly LogItem[]): void {
    const body = this._body;
    const gone = goneItems(this._items, items);
    const old = this._items.slice(gone);
    for (let i = 0; i < gone; i++) {
      body.firstChild?.remove();
    }
    while (body.childNodes.length > items.length) {
      body.lastChild?.remove();
    }
    items.forEach((item, i) => {
      const node = body.childNodes[i];
      const was = old[i];
      if (!node) {
        body.append(this._node(item));
      } else if (item !== was && !(typeof item === 'string' && typeof was === 'string' && grow(node, was, item))) {
        const next = this._node(item);
        if (next !== node) {
          // A display that moves leaves a gap where it was, which keeps the other nodes in their places.
          next.replaceWith(document.createComment(''));
          node.replaceWith(next);
        }
      }
    });
    this._items = items;
  }

  private _node(item: LogItem): HTMLElement {
    return typeof item === 'string' ? lineNode(item) : this._views.node(item);
  }

  private _titles(log: ILogTail, hidden: number): void {
    const parts = [this._trans.__('Log')];
    if (log.bytes) {
      parts.push(bytes(log.bytes));
    }
    if (log.lines_hidden) {
      parts.push(this._trans.__('last lines; %1 earlier lines are in the file', log.lines_hidden));
    }
    if (hidden) {
      parts.push(this._trans._n('%1 earlier output is left out', '%1 earlier outputs are left out', hidden));
    }
    const text = parts.join(', ');
    if (this._title.textContent !== text) {
      this._title.textContent = text;
    }
  }

  private readonly _title: HTMLElement;
  private readonly _body: HTMLElement;
  private readonly _views: DisplayViews;
  /** What is drawn, a node for each. */
  private _items: readonly LogItem[] = [];
  private _shown: [ILogTail, readonly IRunDisplay[], number] = [{ tail: '', bytes: 0, lines_hidden: 0, path: '' }, [], 0];
  /** The reader has not scrolled up. */
  private _follows = true;
}

/** Lines of the end of a log, bounded, without an empty one at the end; and the number of lines before them. */
function lastLines(tail: string): { lines: string[]; cut: number } {
  const at = tail.length > MAX_CHARS ? tail.indexOf('\n', tail.length - MAX_CHARS) + 1 : 0;
  const lines = (at || tail.length <= MAX_CHARS ? tail.slice(at) : tail.slice(-MAX_CHARS)).split('\n');
  const cut = tail.slice(0, at).split('\n').length - 1;
  return { lines: lines[lines.length - 1] ? lines : lines.slice(0, -1), cut };
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
