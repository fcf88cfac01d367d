/** The lines of a log on a page. */

import { TranslationBundle } from '@jupyterlab/translation';
import { drawn } from '../terminalSpans';
import { cut, ILine } from './logLines';

/** Maximum distance in CSS pixels from the end that counts as the end. */
const NEAR_END_PX = 24;

/** Lines of a log, scrolled to their end unless the reader has scrolled up. */
export class LogPage {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('pre');
    this.node.className = 'jp-AmlLog-text jp-AmlTerminal';
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'log');
    // The log may scroll many times a second, too often for a screen reader.
    this.node.setAttribute('aria-live', 'off');
    this.node.setAttribute('aria-label', _trans.__('Log'));
    this.node.addEventListener('scroll', () => this._scrolled(), { passive: true });
  }

  readonly node: HTMLElement;

  /** Called when the user scrolls away from the end or back to it. */
  onFollow: () => void = () => undefined;

  /** Whether the end stays in view while lines are added. */
  get follows(): boolean {
    return this._follows;
  }

  follow(): void {
    this._setFollows(true);
    this._bottom = this.node.scrollHeight;
    this.node.scrollTop = this.node.scrollHeight;
  }

  set wrap(on: boolean) {
    this.node.classList.toggle('jp-mod-wrap', on);
    if (this._follows) {
      this.follow();
    }
  }

  /** Show lines; keep the nodes of lines with the same key, and the text selection in them. */
  show(lines: readonly ILine[]): void {
    const keys = new Set(lines.map(line => line.key));
    const old = this._nodes;
    // Keep the visible lines in place while lines are added or removed above them.
    const anchor = this._follows ? undefined : this._anchor(keys);
    const was = anchor?.offsetTop ?? 0;
    old.forEach((node, key) => {
      if (!keys.has(key)) {
        node.remove();
      }
    });
    this._nodes = new Map();
    let next: ChildNode | null = this.node.firstChild;
    let fresh: DocumentFragment | null = null;
    for (const line of lines) {
      const known = old.get(line.key);
      if (known) {
        if (fresh) {
          this.node.insertBefore(fresh, known);
          fresh = null;
        }
        next = known.nextSibling;
      } else {
        (fresh ??= document.createDocumentFragment()).append(this._line(line));
      }
      this._nodes.set(line.key, known ?? ((fresh as DocumentFragment).lastChild as HTMLElement));
    }
    if (fresh) {
      this.node.insertBefore(fresh, next);
    }
    if (this._follows) {
      this.follow();
    } else if (anchor) {
      this.node.scrollTop += anchor.offsetTop - was;
    }
  }

  /** First line in view that remains after the update. */
  private _anchor(keys: ReadonlySet<number>): HTMLElement | undefined {
    const top = this.node.scrollTop + this.node.offsetTop;
    let result: HTMLElement | undefined;
    for (const [key, node] of this._nodes) {
      if (keys.has(key)) {
        result = node;
        if (node.offsetTop + node.offsetHeight > top) {
          return node;
        }
      }
    }
    return result;
  }

  private _line(line: ILine): HTMLElement {
    const node = document.createElement('div');
    node.className = 'jp-AmlLog-line';
    const { text, rest } = cut(line.text);
    node.append(...drawn(text));
    if (rest) {
      const more = document.createElement('span');
      more.className = 'jp-AmlLog-cut';
      more.textContent = this._trans._n('… %1 more character', '… %1 more characters', rest, rest);
      node.append(' ', more);
    }
    if (!node.firstChild) {
      // Keep an empty line as a line, also in copied text.
      node.append(document.createElement('br'));
    }
    return node;
  }

  private _scrolled(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.node;
    if (!clientHeight || (this._follows && scrollHeight !== this._bottom)) {
      // The element is hidden or its content has grown since the last scroll: the user has not scrolled.
      return;
    }
    this._setFollows(scrollHeight - scrollTop - clientHeight < NEAR_END_PX);
  }

  private _setFollows(on: boolean): void {
    if (on !== this._follows) {
      this._follows = on;
      this.onFollow();
    }
  }

  private _nodes = new Map<number, HTMLElement>();
  private _follows = true;
  private _bottom = 0;
}
