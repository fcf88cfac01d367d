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

/** Content of `comm_info_reply`, as far as it is read. */
interface ICommInfo {
  readonly comms?: Readonly<Record<string, unknown>>;
}

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
   * A kernel logs an error for an unknown message type and does not answer it. So the first question is Jupyter's own
   * `comm_info_request`: a kernel that has loaded the extension lists our comm. A kernel that answers
   * `kernel_info_request` on the same channel, which keeps the order, but not this one, has not loaded it either;
   * without any answer, it may be inside one long C call.
   */
  async probe(ms = 2000): Promise<IProbe> {
    const wait = (time: number) => new Promise<null>(resolve => setTimeout(() => resolve(null), time));
    const seen = { marker: false };
    const hello = this._greet(ms, seen);
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
    // After the list of comms, which has the marker, `hello` is a second question: its reply may come later.
    const isLoaded = answered && seen.marker;
    let late = answered && !isLoaded ? await Promise.race([hello, wait(Math.min(ms, SECOND_QUESTION_MS))]) : await hello;
    if (answered && !isLoaded && !late && this._channel.direct === false) {
      // The first message may not have been sent yet.
      late = await Promise.race([hello, wait(Math.min(ms, HELD_BACK_MS))]);
    }
    return late ?? { kind: answered && !seen.marker ? 'not-loaded' : 'not-responding', busy: false, detail: '' };
  }

  /** Trust that the extension is loaded, until a probe is not answered. */
  trust(): void {
    this._trusted = true;
  }

  /** Look for the extension again at the next probe: the kernel may have been restarted. */
  doubt(): void {
    this._trusted = false;
  }

  /**
   * Result of the probe; `null`: no answer.
   *
   * @param seen whether the kernel has listed the marker of the extension
   */
  private async _greet(ms: number, seen: { marker: boolean }): Promise<IProbe | null> {
    try {
      if (!this._trusted) {
        const listed = (await ask(this._channel, 'comm_info_request', { target_name: REQUEST }, ms)) as ICommInfo | undefined;
        if (Object.keys(listed?.comms ?? {}).length === 0) {
          return { kind: 'not-loaded', busy: false, detail: '' };
        }
        seen.marker = true;
      }
      const reply = await this.request('hello', {}, ms);
      this._trusted = true;
      return { kind: 'ready', busy: reply.kernel_busy, detail: '' };
    } catch (error) {
      this._trusted = false;
      return error instanceof Refused ? { kind: 'other-version', busy: false, detail: error.message } : null;
    }
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

  /** Whether the extension was there at the last answer. */
  private _trusted = false;
}
