/** A run's page in MLflow, whose server is started when it is asked for. */

import { Notification } from '@jupyterlab/apputils';
import type { IRunRow } from '../protocol';
import { isLive } from '../kernel/rows';
import type { IPanelContext } from './tokens';

/** Milliseconds; MLflow's server takes a while the first time. */
const PAUSE = 700;
const LIMIT = 120000;

export async function openMlflow(context: IPanelContext, row: IRunRow): Promise<void> {
  const { model, trans } = context;
  const end = Date.now() + LIMIT;
  // Another notebook's kernel does not know the run.
  const { kernel } = model;
  let waiting = '';
  try {
    while (model.kernel === kernel) {
      const reply = await model.request('mlflow', { handle: row.handle });
      // The record of a run that has just ended is still being written.
      const soon = reply.why !== '' && model.run(row.handle)?.tracking === 'pending' && !isLive(row);
      if (reply.url) {
        openPage(reply.url, trans.__('MLflow is ready'), trans.__('Open'));
        return;
      } else if (reply.why && (!soon || Date.now() > end)) {
        Notification.warning(reply.why, { autoClose: 10000 });
        return;
      } else if (Date.now() > end) {
        throw new Error(trans.__('Its server has not started within two minutes.'));
      }
      waiting = waiting || Notification.emit(trans.__('Waiting for MLflow…'), 'in-progress', { autoClose: false });
      await new Promise(resolve => setTimeout(resolve, PAUSE));
    }
  } finally {
    if (waiting) {
      Notification.dismiss(waiting);
    }
  }
}

/** Open a page that cannot reach back; a browser that forbids it gets a button. */
export function openPage(address: string, ready: string, label: string): void {
  // Behind a hub it is a path of the hub.
  const { href: url, protocol } = new URL(address, window.location.href);
  if (protocol !== 'http:' && protocol !== 'https:') {
    throw new Error(address);
  }
  const opened = window.open(url, '_blank');
  if (opened) {
    // `noopener` would hide whether the browser has forbidden it.
    opened.opener = null;
    return;
  }
  const callback = () => void window.open(url, '_blank', 'noopener');
  Notification.info(ready, { autoClose: false, actions: [{ label, callback }] });
}
