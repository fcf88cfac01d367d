/** The lines of the selected run in the side panel; hidden until they are opened. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { messageOf } from '../kernel/client';
import type { ILinesReply } from '../protocol';
import { element } from '../sections/dom';
import { drawTable } from './linesTable';
import { drawStacks } from './stackBoxes';

export class LinesPanel {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _read: () => Promise<ILinesReply>
  ) {
    this.node.setAttribute('aria-label', _trans.__('Time by line'));
    this.node.tabIndex = 0;
    this.node.hidden = true;
  }

  readonly node = element('section', 'jp-AmlRun-linesTable');

  /** Show the lines as they are now, or hide them. */
  async toggle(): Promise<void> {
    if (!this.node.hidden) {
      this.hide();
      return;
    }
    this.node.hidden = false;
    const request = ++this._requests;
    this._say(this._trans.__('Reading the lines…'));
    try {
      const { lines, boxes } = await this._read();
      if (request === this._requests) {
        const text = (content: string) => element('div', 'jp-AmlRun-linesSpan', content);
        const sentence = lines.sentence ? [element('div', '', lines.sentence)] : [];
        this.node.replaceChildren(...sentence, drawTable(lines.table, this._trans, true), drawStacks(boxes), text(lines.span));
      }
    } catch (error) {
      if (request === this._requests) {
        this._say(messageOf(error));
      }
    }
  }

  /** Take them away: another run is shown. */
  hide(): void {
    this._requests += 1;
    this.node.hidden = true;
    this.node.replaceChildren();
  }

  private _say(text: string): void {
    const status = element('div', 'jp-AmlRun-linesSpan', text);
    status.setAttribute('role', 'status');
    this.node.replaceChildren(status);
  }

  private _requests = 0;
}
