/** Text lines about a run and about the kernel that reports it. Independent of the DOM. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { duration } from '../format';
import { isStale } from '../panel/connectionMessages';
import type { IConnection } from '../panel/tokens';
import type { IRunRow } from '../protocol';
import { TERMINAL } from '../record';

/** State and elapsed time of a run: `running, 3 min 05 s`, `failed (exit code 1), 12.3 s`. */
export function runLine(trans: TranslationBundle, row: IRunRow, now: number): string {
  const hasEnded = TERMINAL.has(row.state);
  let state: string = row.state;
  if (hasEnded && row.exit_code) {
    state = trans.__('%1 (exit code %2)', row.state, row.exit_code);
  } else if (hasEnded && row.state === 'failed' && row.reason && row.reason !== 'exit') {
    state = `${row.state} (${row.reason})`;
  } else if (!hasEnded && row.cancel_requested) {
    state = trans.__('%1, cancel requested', row.state);
  }
  const seconds = row.started === null ? null : (row.ended ?? (hasEnded ? row.started : now)) - row.started;
  return seconds === null || seconds <= 0 ? state : `${state}, ${duration(seconds)}`;
}

/** Reason for missing updates; may be empty. */
export function quiet(trans: TranslationBundle, connection: IConnection, what: string): string {
  const { state } = connection;
  if (connection.ready) {
    return '';
  }
  if (state === 'not-responding') {
    return trans.__('The kernel is not responding: %1 continues when it responds.', what);
  }
  if (state === 'reconnecting') {
    return trans.__('The page has lost the connection to the server: %1 continues when the connection is back.', what);
  }
  if (isStale(connection)) {
    return trans.__('The kernel has died, but the run continues: %1 continues with another kernel that has loaded the extension.', what);
  }
  return trans.__('No kernel is connected: %1 continues when the panel is connected.', what);
}
