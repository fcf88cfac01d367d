/** The question before a run is ended, wherever a person asks for that. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

/** Names that a question lists. */
const MAX_NAMES = 10;

/** What the question needs to know of a run. */
export interface ICancelled {
  readonly name: string;
  readonly state: string;
}

/** The names of some runs, in one line. */
export function names(runs: readonly ICancelled[]): string {
  const shown = runs.slice(0, MAX_NAMES).map(run => run.name);
  return shown.join(', ') + (runs.length > MAX_NAMES ? ' …' : '');
}

/** Whether ending these runs loses anything: one that has not begun has nothing to lose. */
export function needsConfirmation(runs: readonly ICancelled[]): boolean {
  return runs.some(run => run.state !== 'queued' && run.state !== 'preparing');
}

/** Ask whether these runs shall be ended; true without a question where nothing is lost. */
export async function confirmCancel(trans: TranslationBundle, runs: readonly ICancelled[]): Promise<boolean> {
  if (!needsConfirmation(runs)) {
    return true;
  }
  const answer = await showDialog({
    title: trans._n('Cancel run?', 'Cancel %1 runs?', runs.length, runs.length),
    body: trans.__('%1 will be stopped. What it has written stays.', names(runs)),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Keep Running') }),
      Dialog.warnButton({ label: trans._n('Cancel Run', 'Cancel Runs', runs.length) })
    ],
    // Enter alone never agrees.
    defaultButton: 0
  });
  return answer.button.accept;
}
