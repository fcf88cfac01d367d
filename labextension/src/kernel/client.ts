/** Requests to a kernel on its control channel: answered also while a cell runs. No JupyterLab. */

import { IErrorReply, IOperations, PROTOCOL_VERSION, REQUEST } from '../protocol';

/** One message on the wire that waits for its reply. */
export interface IPending {
  reply: Promise<unknown>;
  dispose(): void;
}

/** The control channel of one kernel (see connection.ts); a fake one in the tests. */
export interface IControlChannel {
  /** False while JupyterLab may hold messages back (but not `kernel_info_request`); absent: it never does. */
  readonly direct?: boolean;
  send(type: string, content: Record<string, unknown>): IPending;
}

/** No reply within the timeout: the kernel is not responding, or it has not loaded the extension. */
export class NoAnswer extends Error {}

/** The kernel replied that it cannot do this; the message is the kernel's. */
export class Refused extends Error {}

/** The text of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Milliseconds of silence after which a probe sends `kernel_info_request` too. */
const SECOND_QUESTION_MS = 400;
/** Milliseconds for which JupyterLab holds messages back after it has connected, and some more. */
const HELD_BACK_MS = 3500;

/** The result of a probe. */
export interface IProbe {
  readonly kind: KernelKind;
  /** A cell runs; known only of `ready`. */
  readonly busy: boolean;
  /** A message for the user; may be empty. */
  readonly detail: string;
}

export type KernelKind = 'ready' | 'not-loaded' | 'not-responding' | 'other-version';

/** Send one message and wait for its reply for at most `ms` milliseconds. */
export async function ask(
  channel: IControlChannel,
  type: string,
  content: Record<string, unknown>,
  ms: number
): Promise<unknown> {
  const pending = channel.send(type, content);
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new NoAnswer(`The kernel has not answered within ${ms / 1000} s.`)), ms);
  });
  try {
    return await Promise.race([pending.reply, late]);
  } finally {
    clearTimeout(timer);
    pending.dispose();
  }
}

export class KernelClient {
  constructor(
    private readonly _channel: IControlChannel,
    private readonly _timeout = 4000
  ) {}

  /**
   * Request one operation.
   *
   * Throws `NoAnswer` after the timeout and `Refused` with the kernel's message.
   */
  async request<K extends keyof IOperations>(
    op: K,
    payload: IOperations[K]['payload'],
    ms = this._timeout
  ): Promise<IOperations[K]['reply']> {
    const content = { version: PROTOCOL_VERSION, op, ...payload };
    const reply = (await ask(this._channel, REQUEST, content, ms)) as
      | IOperations[K]['reply']
      | IErrorReply
      | undefined;
    if (typeof reply !== 'object' || reply === null) {
      throw new Refused('The kernel sent an invalid reply.');
    }
    if (reply.version !== PROTOCOL_VERSION) {
      throw new Refused(
        `The kernel's jupyter-amltrain uses protocol version ${reply.version}, this page ` +
          `version ${PROTOCOL_VERSION}. Install the same version in both environments and reload the page.`
      );
    }
    if (!reply.ok) {
      throw new Refused((reply as IErrorReply).error || 'The kernel rejected the request without a reason.');
    }
    return reply as IOperations[K]['reply'];
  }

  /**
   * Probe the kernel for the extension and its version.
   *
   * A kernel never answers an unknown message type, so silence alone is ambiguous: a kernel that answers
   * `kernel_info_request` on the same channel has not loaded the extension; otherwise it may be inside one long C
   * call. The channel keeps the order, so an answer to the second message without one to the first is conclusive.
   */
  async probe(ms = 2000): Promise<IProbe> {
    const wait = (time: number) => new Promise<null>(resolve => setTimeout(() => resolve(null), time));
    const hello = this.request('hello', {}, ms).then(
      (reply): IProbe => ({ kind: 'ready', busy: reply.kernel_busy, detail: '' }),
      (error): IProbe | null =>
        error instanceof Refused ? { kind: 'other-version', busy: false, detail: error.message } : null
    );
    const early = await Promise.race([hello, wait(Math.min(ms, SECOND_QUESTION_MS))]);
    if (early) {
      return early;
    }
    const info = this._answersInfo(ms);
    const first = await Promise.race([hello, info]);
    if (first !== null && typeof first === 'object') {
      return first;
    }
    const answered = await info;
    let late = answered ? await Promise.race([hello, wait(Math.min(ms, SECOND_QUESTION_MS))]) : await hello;
    if (answered && !late && this._channel.direct === false) {
      // The first message may not have been sent yet.
      late = await Promise.race([hello, wait(Math.min(ms, HELD_BACK_MS))]);
    }
    return late ?? { kind: answered ? 'not-loaded' : 'not-responding', busy: false, detail: '' };
  }

  /** Whether `kernel_info_request` is answered; until the kernel is connected it cannot be sent. */
  private async _answersInfo(ms: number): Promise<boolean> {
    const end = Date.now() + ms;
    for (let left = ms; left > 0; left = end - Date.now()) {
      try {
        await ask(this._channel, 'kernel_info_request', {}, left);
        return true;
      } catch (error) {
        if (error instanceof NoAnswer) {
          return false;
        }
        await new Promise(resolve => setTimeout(resolve, Math.min(left, SECOND_QUESTION_MS)));
      }
    }
    return false;
  }
}
