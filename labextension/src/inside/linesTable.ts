/** The table of the lines of a run; the last column of its data is code. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { ITable } from '../protocol';
import { element } from '../sections/dom';

/** @param isNarrow the code stands behind line and time, because the rest is out of sight at first */
export function drawTable(table: ITable, trans: TranslationBundle, isNarrow = false): HTMLElement {
  const code = table.columns.length - 1;
  const order = table.columns.map((_, at) => at);
  if (isNarrow) {
    const line = table.columns.findIndex(({ number }) => number);
    order.splice(line + 2, 0, ...order.splice(code, 1));
  }
  const look = (at: number) => (table.columns[at].number ? 'jp-mod-number' : '');
  const head = order.map(at => {
    const { title, help } = table.columns[at];
    const cell = element('th', look(at), title);
    cell.scope = 'col';
    cell.title = help;
    return cell;
  });
  const rows = table.rows.map(row => {
    const cells = order.map(at => {
      const text = row[at] ?? '';
      return at === code ? element('td', '', '', element('code', '', text)) : element('td', look(at), text);
    });
    return element('tr', '', '', ...cells);
  });
  const body = element('tbody', '', '', ...rows);
  const node = element('table', '', '', element('thead', '', '', element('tr', '', '', ...head)), body);
  return table.more ? element('div', '', '', node, element('div', 'jp-AmlRun-linesSpan', trans.__('and %1 more', table.more))) : node;
}
