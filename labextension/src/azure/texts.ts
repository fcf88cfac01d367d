/** Texts about Azure Machine Learning that the other parts of the page show. */

import type { TranslationBundle } from '@jupyterlab/translation';

/** Label of what opens the form that connects a workspace. */
export function connectText(trans: TranslationBundle): string {
  return trans.__('Connect Azure ML workspace…');
}

/** Title of that form. */
export function connectTitle(trans: TranslationBundle): string {
  return trans.__('Connect Azure ML workspace');
}

/** Why a target of a kind cannot be created yet. */
export function unconnectedText(trans: TranslationBundle): string {
  return trans.__('Connect an Azure ML workspace first: targets of this kind belong to one.');
}

/** Label of what opens the page of a run at the service. */
export function studioText(trans: TranslationBundle): string {
  return trans.__('Azure ML Studio');
}
