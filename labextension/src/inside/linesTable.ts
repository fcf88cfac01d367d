/** The table of the lines of a run; its last column is code. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { ITable } from '../protocol';
import { element } from '../sections/dom';

export function drawTable(table: ITable, trans: TranslationBundle): HTMLElement {
  const last = table.columns.length - 1;
  const head = element('tr');
  head.append(
    ...table.columns.map(({ title, number, help }) => {
      const cell = element('th', number ? 'jp-mod-number' : '', title);
      cell.scope = 'col';
      cell.title = help;
      return cell;
    })
  );
  const rows = table.rows.map(row => {
    const cells = row.map((text, at) => {
      const cell = element('td', table.columns[at]?.number ? 'jp-mod-number' : '', at === last ? '' : text);
      cell.append(...(at === last ? [element('code', '', text)] : []));
      return cell;
    });
    return element('tr', '', '', ...cells);
  });
  const node = element('table', '', '', element('thead', '', '', head), element('tbody', '', '', ...rows));
  return table.more ? element('div', '', '', node, element('div', 'jp-AmlRun-linesSpan', trans.__('and %1 more', table.more))) : node;
}
