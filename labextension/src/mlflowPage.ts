/** Opening the page of a run in MLflow. */

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IOperations } from './protocol';

/** Poll interval and timeout in milliseconds; the first start of the MLflow server is slow. */
const POLL_INTERVAL_MS = 700;
const START_TIMEOUT_MS = 120000;

/** Kernel that knows the address. */
export interface IMlflowSource {
  /** Ask for the address; `null`: the page follows another kernel now, which does not know the run. */
  ask(): Promise<IOperations['mlflow']['reply']> | null;
  /** Whether MLflow's record of the run is about to come. */
  readonly isComing: boolean;
}

/** Open MLflow's page of a run, and show a notification while its server starts. */
export async function openMlflow(source: IMlflowSource, trans: TranslationBundle): Promise<void> {
  const end = Date.now() + START_TIMEOUT_MS;
  let waiting = '';
  try {
    for (let request = source.ask(); request; request = source.ask()) {
      const reply = await request;
      const soon = reply.reason !== '' && source.isComing;
      if (reply.url) {
        openPage(reply.url, trans.__('MLflow is ready'), trans.__('Open'));
        return;
      } else if (reply.reason && (!soon || Date.now() > end)) {
        Notification.warning(reply.reason, { autoClose: 10000 });
        return;
      } else if (Date.now() > end) {
        throw new Error(trans.__('The MLflow server did not start within two minutes.'));
      }
      waiting = waiting || Notification.emit(trans.__('Waiting for MLflow…'), 'in-progress', { autoClose: false });
      await new Promise(resolve => setTimeout(resolve, POLL_INTERVAL_MS));
    }
  } finally {
    if (waiting) {
      Notification.dismiss(waiting);
    }
  }
}

/** Open a page without access to this one; show a button if the browser blocks the pop-up. */
export function openPage(address: string, ready: string, label: string): void {
  // Resolve relative to this page: behind JupyterHub, the address is a path of the hub.
  const { href: url, protocol } = new URL(address, window.location.href);
  if (protocol !== 'http:' && protocol !== 'https:') {
    throw new Error(address);
  }
  const opened = window.open(url, '_blank');
  if (opened) {
    // Clear `opener` instead of passing `noopener`, which would hide whether the browser blocked the pop-up.
    opened.opener = null;
    return;
  }
  const callback = () => void window.open(url, '_blank', 'noopener');
  Notification.info(ready, { autoClose: false, actions: [{ label, callback }] });
}
