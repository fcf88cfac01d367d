/** Texts of targets and workspaces. Pure functions. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { bytes } from '../format';
import type { ITargetRow, IWorkspaceRow } from '../protocol';

/** Price per hour, e.g. `$1.20/h`; empty if there is none. */
export function price(amount: number | null, currency: string, trans: TranslationBundle, locale?: string): string {
  if (amount === null || !Number.isFinite(amount)) {
    return '';
  }
  const digits = amount !== 0 && Math.abs(amount) < 0.1 ? 4 : 2;
  const shape = { minimumFractionDigits: 2, maximumFractionDigits: digits };
  let text: string;
  try {
    const money = { ...shape, style: 'currency', currency, currencyDisplay: 'narrowSymbol' } as const;
    text = new Intl.NumberFormat(locale, money).format(amount);
  } catch {
    // The currency is not an ISO 4217 code: show the name that the service uses.
    text = `${new Intl.NumberFormat(locale, shape).format(amount)} ${currency}`.trim();
  }
  return trans.__('%1/h', text);
}

/** Display text of a state. */
export function stateText(state: string, trans: TranslationBundle): string {
  switch (state) {
    case 'ready':
      return trans.__('Ready');
    case 'stopped':
      return trans.__('Stopped');
    case 'creating':
      return trans.__('Creating');
    case 'starting':
      return trans.__('Starting');
    case 'stopping':
      return trans.__('Stopping');
    case 'scaling':
      return trans.__('Scaling');
    case 'deleting':
      return trans.__('Deleting');
    case 'failed':
      return trans.__('Failed');
    case 'unreachable':
      return trans.__('Unreachable');
    default:
      return trans.__('Not checked yet');
  }
}

/** Title of an action. */
export function verbText(verb: string, trans: TranslationBundle): string {
  switch (verb) {
    case 'use':
      return trans.__('Use');
    case 'test':
      return trans.__('Test');
    case 'start':
      return trans.__('Start');
    case 'stop':
      return trans.__('Stop');
    case 'scale':
      return trans.__('Change');
    case 'delete':
      return trans.__('Delete');
    case 'detach':
      return trans.__('Detach');
    case 'create':
      return trans.__('Create');
    case 'attach':
      return trans.__('Attach');
    case 'accept':
      return trans.__('Accept key');
    case 'disconnect':
      return trans.__('Disconnect');
    default:
      return verb.charAt(0).toUpperCase() + verb.slice(1);
  }
}

/** Display text of an operation in progress. */
export function workText(verb: string, trans: TranslationBundle): string {
  switch (verb) {
    case 'test':
      return trans.__('Testing');
    case 'start':
      return trans.__('Starting');
    case 'stop':
      return trans.__('Stopping');
    case 'scale':
      return trans.__('Scaling');
    case 'delete':
      return trans.__('Deleting');
    case 'create':
      return trans.__('Creating');
    case 'attach':
      return trans.__('Attaching');
    default:
      return verbText(verb, trans);
  }
}

/** GPUs of one machine: `4 × NVIDIA T4`, `no GPU`; empty if unknown. */
export function gpusText(row: ITargetRow, trans: TranslationBundle): string {
  if (row.gpus === null) {
    return '';
  }
  if (row.gpus === 0) {
    return trans.__('no GPU');
  }
  if (row.gpus_text) {
    return row.gpus_text.replace(/(^|, )(\d+) x /g, '$1$2 × ');
  }
  return row.gpu_name ? `${row.gpus} × ${row.gpu_name}` : trans._n('%1 GPU', '%1 GPUs', row.gpus, row.gpus);
}

/** Number of nodes of a scalable target: `2 of 4 nodes`; empty for a single machine. */
export function nodesText(row: ITargetRow, trans: TranslationBundle): string {
  if (row.nodes === null) {
    return '';
  }
  return row.max_nodes === null
    ? trans._n('%1 node', '%1 nodes', row.nodes, row.nodes)
    : trans._n('%2 of %1 node', '%2 of %1 nodes', row.max_nodes, row.nodes);
}

/** Number of runs on the target: `2 running, 1 queued`; empty if there are none. */
export function runsText(row: ITargetRow, trans: TranslationBundle): string {
  return [
    row.running ? trans.__('%1 running', row.running) : '',
    row.queued ? trans.__('%1 queued', row.queued) : ''
  ]
    .filter(text => text !== '')
    .join(', ');
}

/** Most important facts, in order of importance. */
export function facts(row: ITargetRow, trans: TranslationBundle): string[] {
  return [row.size, gpusText(row, trans), nodesText(row, trans), runsText(row, trans), row.quota].filter(text => text !== '');
}

/** All details of a target, as labels and values. */
export function details(row: ITargetRow, trans: TranslationBundle): [string, string][] {
  const machine = [
    row.cpus === null ? '' : trans._n('%1 core', '%1 cores', row.cpus, row.cpus),
    row.memory === null ? '' : bytes(row.memory),
    gpusText(row, trans)
  ];
  const known: [string, string][] = [
    [trans.__('Kind'), row.title || row.kind],
    [trans.__('Size'), row.size],
    [trans.__('Machine'), machine.filter(text => text !== '').join(', ')],
    [trans.__('Nodes'), nodesText(row, trans)],
    [trans.__('Price now'), price(row.price, row.currency, trans)],
    [trans.__('Price per node'), row.price_node === row.price ? '' : price(row.price_node, row.currency, trans)],
    [trans.__('Quota'), row.quota],
    [trans.__('Power'), row.stops],
    [trans.__('Runs'), runsText(row, trans)],
    ...row.gpu_rows
  ];
  return known.filter(([, text]) => text !== '');
}

/** Most important facts of a workspace: the signed-in user, the number of targets, the location. */
export function workspaceFacts(row: IWorkspaceRow, trans: TranslationBundle): string[] {
  const { length } = row.targets;
  return [row.user, trans._n('%1 target', '%1 targets', length, length), row.location].filter(text => text !== '');
}

/** Location of a workspace, one line for each part. */
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
