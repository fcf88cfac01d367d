/** A connected workspace in words. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { IWorkspaceRow } from '../protocol';

/** What can be read at a glance: who is signed in, how many targets, where it is. */
export function workspaceFacts(row: IWorkspaceRow, trans: TranslationBundle): string[] {
  const { length } = row.targets;
  return [row.user, trans._n('%1 target', '%1 targets', length, length), row.location].filter(text => text !== '');
}

/** Where it is, a line each. */
export function workspaceTitle(row: IWorkspaceRow, trans: TranslationBundle): string {
  const lines: [string, string][] = [
    [trans.__('Workspace'), row.workspace],
    [trans.__('Resource group'), row.resource_group],
    [trans.__('Subscription'), row.subscription],
    [trans.__('Location'), row.location],
    [trans.__('Signed in'), row.user]
  ];
  return lines
    .filter(([, text]) => text !== '')
    .map(([label, text]) => `${label}: ${text}`)
    .join('\n');
}
