/** Lines of the cell around the one that raised the error of a failed run. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICodeExcerpt } from '../protocol';

/** Draw the lines with their numbers; nothing while they are the same. */
export function drawExcerpt(node: HTMLElement, code: ICodeExcerpt | null, trans: TranslationBundle): void {
  const key = JSON.stringify(code);
  if (node.dataset.key === key) {
    return;
  }
  node.dataset.key = key;
  node.hidden = !code;
  node.setAttribute('aria-label', code ? trans.__('Line %1 of the cell raised the error', code.line) : '');
  node.setAttribute('role', 'figure');
  const width = code ? String(code.first + code.lines.length).length : 0;
  node.replaceChildren(
    ...(code?.lines ?? []).map((line, i) => {
      const number = code!.first + i;
      const row = document.createElement(number === code!.line ? 'mark' : 'span');
      row.textContent = `${String(number).padStart(width)}  ${line}\n`;
      return row;
    })
  );
}
