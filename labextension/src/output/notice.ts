/** Where a record comes from, in one line. Pure functions. */

import { TranslationBundle } from '@jupyterlab/translation';
import type { KernelKind } from '../kernel/client';
import { ago } from '../format';
import { IRunRecord } from '../protocol';
import { TERMINAL } from '../record';
import { LOAD_COMMAND } from '../tokens';

export type Source = 'live' | 'saved' | KernelKind | 'unknown-run';

/** Empty for a record that is live; `untrusted`: the kernel may not be asked. */
export function notice(trans: TranslationBundle, record: IRunRecord, source: Source, untrusted = false): string {
  const age = ago(Date.now() / 1000 - record.seen_at);
  if (source === 'live' && !untrusted) {
    return record.reachable
      ? ''
      : trans.__('%1 does not answer; last seen %2 ago. The run itself goes on.', record.target, age);
  }
  const over = TERMINAL.has(record.state);
  // A monitor ends with its kernel.
  const saved = over || record.kind === 'monitor' ? trans.__('As saved %1 ago', age) : trans.__('As saved %1 ago; the run itself may go on', age);
  if (untrusted) {
    return trans.__('%1. This notebook is not trusted, so the kernel is not asked about the run.', saved);
  }
  if (source === 'not-responding') {
    return trans.__('%1. The kernel does not answer now; asking again.', saved);
  }
  if (source === 'unknown-run' || source === 'other-version') {
    return trans.__('%1.', saved);
  }
  return trans.__('%1. To reconnect, run: %2', saved, LOAD_COMMAND);
}
