/** Idle-GPU banner and end-of-run GPU summary. */

import { TranslationBundle } from '@jupyterlab/translation';
import { text } from '../untyped';
import { IRunRecord } from '../protocol';
import { drawTable } from './charts';

function element(tag: string, name: string, content = ''): HTMLElement {
  const node = document.createElement(tag);
  if (name) {
    node.className = `jp-AmlRun-${name}`;
  }
  node.textContent = content;
  return node;
}

export class VerdictView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = element('div', 'unused');
    this.node.hidden = true;
  }

  readonly node: HTMLElement;

  update(record: IRunRecord): void {
    const truth = record.truth;
    // The reason of a run that was stopped for it has the same sentences.
    const unused = truth?.verdict === 'not used' && record.reason !== 'gpu-unused';
    const key = unused ? `${truth.detail}\n${truth.cause}\n${record.done}` : '';
    this.node.hidden = !unused;
    if (this._key === key) {
      return;
    }
    this._key = key;
    if (!unused) {
      this.node.replaceChildren();
      return;
    }
    // An alert is read out when it comes, and once.
    this.node.setAttribute('role', 'alert');
    this.node.replaceChildren(
      element(
        'strong',
        'unusedTitle',
        record.done ? this._trans.__('This run did not use its GPU') : this._trans.__('This run does not use its GPU')
      ),
      element('div', '', truth.detail),
      ...(truth.cause ? [element('div', 'unusedCause', this._trans.__('Likely cause: %1', truth.cause))] : [])
    );
  }

  private _key = '';
}

export class SummaryView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = element('div', 'summary');
    this.node.hidden = true;
  }

  readonly node: HTMLElement;

  update(record: IRunRecord): void {
    const key = JSON.stringify([record.tables, record.summary.hint, record.truth?.verdict]);
    if (this._key === key) {
      return;
    }
    this._key = key;
    const hint = text(record.summary.hint);
    const unknown = record.truth?.verdict === 'cannot tell' ? record.truth.detail : '';
    const parts = [...drawTable(record, 'gpu summary', this._trans), ...drawTable(record, 'gpu each', this._trans)];
    if (hint) {
      parts.push(element('div', 'hint', hint));
    }
    if (unknown) {
      parts.push(element('div', 'gpuSource', this._trans.__('Cannot tell whether the GPU was used: %1', unknown)));
    }
    this.node.hidden = !parts.length;
    this.node.replaceChildren(...parts);
  }

  private _key = '';
}
