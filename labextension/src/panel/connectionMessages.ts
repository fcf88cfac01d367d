/** Message and remedy for each connection state. Independent of the DOM. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { ago } from '../format';
import { INSTALL_COMMAND } from '../tokens';
import type { ConnectionState, IConnection } from './tokens';

/** Action with which the user can resolve a connection state. */
export type Remedy = 'connect' | 'new-notebook' | 'choose-kernel' | 'restart' | 'retry';

export interface IConnectionMessage {
  readonly icon: 'notebook' | 'kernel' | 'language' | 'wait' | 'plug' | 'package' | 'version' | 'quiet' | 'lost' | 'dead';
  readonly title: string;
  readonly text: string;
  readonly remedy: Remedy | null;
  readonly label: string;
  /** Line to copy; empty for none. */
  readonly copy: string;
}

/** States in which the rows of the last snapshot remain visible. */
const STALE: ReadonlySet<ConnectionState> = new Set(['not-responding', 'reconnecting', 'dead']);

export function isStale({ state, own }: IConnection): boolean {
  return STALE.has(state) && !own;
}

/** Short description of the connection, for the dot beside the kernel's name. */
export function connectionWord(connection: IConnection, trans: TranslationBundle): string {
  switch (connection.state) {
    case 'ready':
      return connection.busy ? trans.__('Connected, a cell is running') : trans.__('Connected');
    case 'starting':
      return trans.__('Starting');
    case 'connecting':
      return trans.__('Connecting');
    case 'loading':
      return trans.__('Loading');
    case 'not-responding':
      return trans.__('Not responding');
    case 'reconnecting':
      return trans.__('Reconnecting');
    case 'dead':
      return trans.__('Dead');
    default:
      return trans.__('Not connected');
  }
}

/** Time since the last reply, e.g. "last seen 12 s ago", or "not seen yet". */
export function lastSeenText(connection: IConnection, now: number, trans: TranslationBundle): string {
  return connection.lastSeen
    ? trans.__('last seen %1 ago', ago((now - connection.lastSeen) / 1000))
    : trans.__('not seen yet');
}

/** Message for a connection state; `null` when no message is needed. */
export function connectionMessage(connection: IConnection, trans: TranslationBundle): IConnectionMessage | null {
  const { detail, busy, own } = connection;
  const kernel = connection.kernelName || trans.__('the kernel');
  const message = (
    icon: IConnectionMessage['icon'],
    title: string,
    text: string,
    remedy: Remedy | null = null,
    label = '',
    copy = ''
  ): IConnectionMessage => ({ icon, title, text, remedy, label, copy });
  switch (connection.state) {
    case 'ready':
      return detail ? message('version', trans.__('Targets cannot be read'), detail) : null;
    case 'no-notebook':
      return message(
        'notebook',
        trans.__('No notebook is open'),
        own ? trans.__('The runs of this machine are listed below.') : trans.__('Open a notebook to see its runs and targets here.'),
        'new-notebook',
        trans.__('New notebook')
      );
    case 'no-kernel':
      return message(
        'kernel',
        trans.__('No kernel'),
        trans.__('%1 has no kernel. Start one to submit runs.', connection.notebook),
        'choose-kernel',
        trans.__('Choose kernel…')
      );
    case 'other-language':
      return message(
        'language',
        trans.__('Not a Python kernel'),
        trans.__('Runs are started from Python, but %1 is a kernel of another language.', kernel),
        'choose-kernel',
        trans.__('Choose kernel…')
      );
    case 'starting':
      return message('wait', trans.__('The kernel is starting…'), trans.__('Runs that were started before keep running.'));
    case 'connecting':
      return message('wait', trans.__('Connecting to the kernel…'), detail);
    case 'not-loaded':
      return message(
        'plug',
        trans.__('Not connected'),
        detail ||
          (own
            ? trans.__('The runs of this machine are listed below. Connect %1 to use the magics in the notebook.', kernel)
            : trans.__('The extension is not loaded in %1.', kernel)),
        'connect',
        trans.__('Connect')
      );
    case 'loading':
      return message(
        'wait',
        trans.__('Loading the extension…'),
        busy ? trans.__('Waiting for the running cell to end.') : trans.__('This takes a few seconds.')
      );
    case 'missing':
      return message(
        'package',
        trans.__('Not installed in this kernel'),
        trans.__(
          'JupyterLab has jupyter-amltrain, but the environment of %1 does not: server and kernels often have ' +
            'separate environments. Run this in a cell, then try again.',
          kernel
        ),
        'connect',
        trans.__('Try again'),
        INSTALL_COMMAND
      );
    case 'other-version':
      return message(
        'version',
        trans.__('Versions differ'),
        detail || trans.__('The kernel and this page have different versions of jupyter-amltrain.'),
        'retry',
        trans.__('Try again')
      );
    case 'not-responding':
      return message(
        'quiet',
        trans.__('Kernel not responding'),
        detail ||
          (connection.lastSeen
            ? trans.__('A long call is blocking the kernel. Runs continue, and the panel reconnects automatically.')
            : trans.__('A long call is blocking the kernel, or it is still starting. The panel reconnects automatically.'))
      );
    case 'reconnecting':
      return message(
        'lost',
        trans.__('Reconnecting to the server…'),
        trans.__('Runs keep running. The rows may be outdated.'),
        'retry',
        trans.__('Try now')
      );
    case 'dead':
      return message(
        'dead',
        trans.__('The kernel has died'),
        own ? trans.__('Runs keep running without it.') : trans.__('Runs keep running without the kernel. Restart it to see them.'),
        'restart',
        trans.__('Restart kernel')
      );
  }
}
