/** The end of a log: follows the text unless the reader has scrolled up. */

import { Sanitizer } from '@jupyterlab/apputils';
import { renderText } from '@jupyterlab/rendermime';
import { TranslationBundle } from '@jupyterlab/translation';
import { bytes, plain } from '../format';
import { ILogTail } from '../protocol';

/** Codes that color a terminal's text. */
// eslint-disable-next-line no-control-regex
const COLORS = /\u001b\[[\d;]*m/;

const sanitizer = new Sanitizer();

/** Characters kept on the page, whatever a record holds. */
const MAX_CHARS = 64 * 1024;

export class LogView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('section');
    this.node.className = 'jp-AmlRun-log';
    this._title = document.createElement('div');
    this._title.className = 'jp-AmlRun-logTitle';
    this._body = document.createElement('pre');
    this._body.tabIndex = 0;
    this._body.setAttribute('role', 'log');
    // The log scrolls by many times a second; a screen reader would never stop.
    this._body.setAttribute('aria-live', 'off');
    this._body.setAttribute('aria-label', _trans.__('End of the log'));
    this._text = document.createTextNode('');
    this._body.append(this._text);
    this.node.append(this._title, this._body);
  }

  readonly node: HTMLElement;

  update(log: ILogTail): void {
    const text = plain(log.tail).slice(-MAX_CHARS);
    this.node.hidden = !text;
    this._titles(log);
    const body = this._body;
    const follows = body.scrollHeight - body.scrollTop - body.clientHeight < 8;
    if (COLORS.test(log.tail)) {
      void this._color(log.tail.slice(-MAX_CHARS));
      return;
    }
    this._colored = '';
    if (text === this._text.data && body.firstChild === this._text) {
      return;
    }
    if (body.firstChild !== this._text) {
      body.replaceChildren(this._text);
    }
    if (text.startsWith(this._text.data)) {
      // Keeps the selection of the reader.
      this._text.appendData(text.slice(this._text.data.length));
    } else {
      this._text.data = text;
    }
    if (follows) {
      this.follow();
    }
  }

  /** Draw text with terminal colors, as JupyterLab draws a cell's output. */
  private async _color(source: string): Promise<void> {
    if (source === this._colored) {
      return;
    }
    this._colored = source;
    const body = this._body;
    const follows = body.scrollHeight - body.scrollTop - body.clientHeight < 8;
    const host = document.createElement('div');
    await renderText({ host, source, sanitizer });
    if (source === this._colored) {
      body.replaceChildren(...(host.querySelector('pre')?.childNodes ?? []));
      if (follows) {
        this.follow();
      }
    }
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
  private readonly _text: Text;
  /** Text with colors that is drawn; empty for text without. */
  private _colored = '';
}
