/** Loading the extension in a kernel, and what came of it. No DOM. */

import type { ILoaded, IPort } from './peer';

async function attempt(port: IPort): Promise<ILoaded> {
  try {
    return await port.load();
  } catch (error) {
    return { status: 'error', ename: '', evalue: error instanceof Error ? error.message : String(error) };
  }
}

/** Load it; `still` says whether anybody waits for the answer. */
export async function loadInto(
  port: IPort,
  still: () => boolean
): Promise<{ state: 'ready' | 'missing' | 'not-loaded'; detail: string }> {
  let answer = await attempt(port);
  if (answer.status === 'aborted' && still()) {
    // A cell before us failed, and took with it what waited behind.
    answer = await attempt(port);
  }
  if (answer.status === 'ok') {
    return { state: 'ready', detail: '' };
  }
  if (answer.ename === 'ModuleNotFoundError' && answer.evalue.includes('jupyter_amltrain')) {
    return { state: 'missing', detail: answer.evalue };
  }
  return { state: 'not-loaded', detail: [answer.ename, answer.evalue].filter(Boolean).join(': ') };
}
