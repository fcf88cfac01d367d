/** Cancellation of runs, for commands, menus, JupyterLab's list of running sessions and cell outputs. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { messageOf, NoAnswer } from './kernel/client';
import type { KernelSession } from './kernel/session';
import { LOAD_COMMAND } from './tokens';

/** Maximum number of names in a dialog. */
const MAX_NAMES = 10;

/** Properties of a run that cancellation needs: a row of the panel or the record of an output. */
export interface ICancelable {
  readonly handle: string;
  readonly name: string;
  readonly state: string;
  readonly kind?: string;
}

/** Result of a request to cancel runs. */
export interface ICancelResult {
  /** Runs that had ended already, with their states. */
  readonly ended: readonly { readonly name: string; readonly state: string }[];
  /** One message for each run that could not be canceled. */
  readonly errors: readonly string[];
}

/** Names of runs, in one line. */
export function names(runs: readonly ICancelable[]): string {
  const shown = runs.slice(0, MAX_NAMES).map(run => run.name);
  return shown.join(', ') + (runs.length > MAX_NAMES ? ' …' : '');
}

/** Whether canceling needs confirmation: only a run that has begun can lose results, and a monitor never does. */
function needsConfirmation(run: ICancelable): boolean {
  return run.kind !== 'monitor' && run.state !== 'queued' && run.state !== 'preparing';
}

/** Ask the user to confirm the cancellation; true without a dialog if no results can be lost. */
export async function confirmCancel(trans: TranslationBundle, runs: readonly ICancelable[]): Promise<boolean> {
  if (!runs.some(needsConfirmation)) {
    return true;
  }
  const result = await showDialog({
    title: trans._n('Cancel run?', 'Cancel %1 runs?', runs.length, runs.length),
    body: trans._n(
      '"%2" will be stopped. Everything it has written so far is kept.',
      '%2 will be stopped. Everything they have written so far is kept.',
      runs.length,
      names(runs)
    ),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Keep running') }),
      Dialog.warnButton({ label: trans._n('Cancel run', 'Cancel runs', runs.length) })
    ],
    // Pressing Enter alone must not confirm.
    defaultButton: 0
  });
  return result.button.accept;
}

/** Cancel the runs independently of each other. */
export async function requestCancel(
  trans: TranslationBundle,
  session: Pick<KernelSession, 'request' | 'kind'>,
  runs: readonly ICancelable[]
): Promise<ICancelResult> {
  const ended: { name: string; state: string }[] = [];
  const errors: string[] = [];
  await Promise.all(
    runs.map(async run => {
      try {
        const { accepted, state } = await session.request('cancel', { handle: run.handle });
        if (!accepted) {
          ended.push({ name: run.name, state });
        }
      } catch (error) {
        errors.push(error instanceof NoAnswer ? await noAnswer(trans, session, run) : messageOf(error));
      }
    })
  );
  return { ended, errors };
}

async function noAnswer(
  trans: TranslationBundle,
  session: Pick<KernelSession, 'kind'>,
  run: ICancelable
): Promise<string> {
  return (await session.kind()) === 'not-loaded'
    ? trans.__('Not canceled: this kernel has not loaded the extension. Run: %1', LOAD_COMMAND)
    : trans.__(
        'Not canceled: the kernel is not responding. Try again, or use: %1',
        `amltrain runs cancel ${run.handle}`
      );
}
