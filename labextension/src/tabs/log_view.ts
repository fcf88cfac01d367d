/** Lines of a log on the page: only what has changed is touched, and the end is followed. */

import { TranslationBundle } from '@jupyterlab/translation';
import { cut, ILine, ISpan, spans } from './log_text';

/** CSS pixels from the end that still count as the end. */
const NEAR = 24;

export class LogPage {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('pre');
    this.node.className = 'jp-AmlLog-text';
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'log');
    // It scrolls by many times a second; a screen reader would never stop.
    this.node.setAttribute('aria-live', 'off');
    this.node.setAttribute('aria-label', _trans.__('Log'));
    this.node.addEventListener('scroll', () => this._scrolled(), { passive: true });
  }

  readonly node: HTMLElement;

  /** Called when the reader has left the end or come back. */
  onFollow: () => void = () => undefined;

  /** The end stays in view as lines come. */
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

  /** Show these lines; one with the same key is left as it is, with what is selected in it. */
  show(lines: readonly ILine[]): void {
    const wanted = new Set(lines.map(line => line.key));
    const old = this._nodes;
    // What is read stays where it is while lines come and go before it.
    const anchor = this._follows ? undefined : this._anchor(wanted);
    const was = anchor?.offsetTop ?? 0;
    old.forEach((node, key) => {
      if (!wanted.has(key)) {
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

  /** The first line in view that stays. */
  private _anchor(wanted: ReadonlySet<number>): HTMLElement | undefined {
    const top = this.node.scrollTop + this.node.offsetTop;
    let found: HTMLElement | undefined;
    for (const [key, node] of this._nodes) {
      if (wanted.has(key)) {
        found = node;
        if (node.offsetTop + node.offsetHeight > top) {
          return node;
        }
      }
    }
    return found;
  }

  private _line(line: ILine): HTMLElement {
    const node = document.createElement('div');
    node.className = 'jp-AmlLog-line';
    const { text, rest } = cut(line.text);
    node.append(...spans(text).map(part => this._span(part)));
    if (rest) {
      const more = document.createElement('span');
      more.className = 'jp-AmlLog-cut';
      more.textContent = this._trans._n('… %1 more character', '… %1 more characters', rest, rest);
      node.append(' ', more);
    }
    if (!node.firstChild) {
      // An empty line is a line, and copied as one.
      node.append(document.createElement('br'));
    }
    return node;
  }

  private _span(part: ISpan): Node {
    if (!part.classes.length && !part.colour && !part.ground) {
      return document.createTextNode(part.text);
    }
    const node = document.createElement('span');
    node.className = part.classes.join(' ');
    node.style.color = part.colour;
    node.style.backgroundColor = part.ground;
    node.textContent = part.text;
    return node;
  }

  private _scrolled(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.node;
    if (!clientHeight || (this._follows && scrollHeight !== this._bottom)) {
      // Hidden, or longer than when we scrolled: not the reader's doing.
      return;
    }
    this._setFollows(scrollHeight - scrollTop - clientHeight < NEAR);
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
