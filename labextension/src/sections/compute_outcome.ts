/** What came of the last act on a target: what was said, and the line that does the same. */

import { Clipboard } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { LabIcon, closeIcon, copyIcon } from '@jupyterlab/ui-components';
import type { IOutcome } from './acts';
import { element, sayLine } from './dom';

/** Milliseconds after which what went well makes room for the rows again. */
const STAYS = 15000;

export class OutcomeView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node.hidden = true;
    this.node.setAttribute('role', 'status');
  }

  readonly node = element('div', 'jp-AmlOutcome');

  show(outcome: IOutcome): void {
    const trans = this._trans;
    const { node } = this;
    clearTimeout(this._timer);
    node.hidden = outcome.text === '' && outcome.line === '';
    node.classList.toggle('jp-mod-failed', !outcome.done);
    const parts: Node[] = [];
    if (outcome.text) {
      parts.push(element('div', 'jp-AmlOutcome-text', outcome.text));
    }
    if (outcome.line) {
      const line = element('code', 'jp-AmlLine');
      sayLine(line, outcome.line);
      const copy = this._icon(copyIcon, trans.__('Copy the line'), () => Clipboard.copyToSystem(outcome.line));
      parts.push(element('div', 'jp-AmlOutcome-same', '', element('span', '', trans.__('The same as:')), line, copy));
    }
    const close = this._icon(closeIcon, trans.__('Dismiss'), () => void (node.hidden = true));
    node.replaceChildren(element('div', 'jp-AmlOutcome-parts', '', ...parts), close);
    if (outcome.done) {
      this._leave();
    }
  }

  /** It has been read, or makes way. */
  hide(): void {
    clearTimeout(this._timer);
    this.node.hidden = true;
  }

  dispose(): void {
    clearTimeout(this._timer);
  }

  /** Not while somebody is at it. */
  private _leave(): void {
    this._timer = setTimeout(() => {
      if (this.node.matches(':hover, :focus-within')) {
        this._leave();
      } else {
        this.node.hidden = true;
      }
    }, STAYS);
  }

  private _icon(shape: LabIcon, label: string, click: () => void): HTMLElement {
    const made = element('button', 'jp-AmlOutcome-button');
    made.type = 'button';
    made.title = label;
    made.setAttribute('aria-label', label);
    shape.element({ container: made });
    made.addEventListener('click', click);
    return made;
  }

  private _timer: ReturnType<typeof setTimeout> | undefined;
}
