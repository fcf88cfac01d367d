/** Questions to the kernel on its control channel: answered also while a cell runs. */

import { IErrorReply, IOperations, PROTOCOL_VERSION, REQUEST } from './protocol';

/** One message on the wire, waiting for its reply. */
export interface IPending {
  reply: Promise<unknown>;
  dispose(): void;
}

/** The control channel of one kernel (see kernel.ts); a fake one in the tests. */
export interface IControlChannel {
  /** False while messages may be held back (but `kernel_info_request` is not); absent: never. */
  readonly direct?: boolean;
  send(type: string, content: Record<string, unknown>): IPending;
}

/** Nobody answered in time: the kernel is not responding, or it has not loaded us. */
export class NoAnswer extends Error {}

/** The kernel answered that it cannot do this; the message is its own sentence. */
export class Refused extends Error {}

/** Milliseconds after which silence makes us ask the second question. */
const SOON = 400;
/** As long as JupyterLab holds messages back after it has connected, and some. */
const HELD_BACK = 3500;

/** What a probe has found. */
export interface IGreeting {
  readonly kind: KernelKind;
  /** A cell runs; known only of `ready`. */
  readonly busy: boolean;
  /** A sentence, where the kernel or we have one. */
  readonly detail: string;
}

export type KernelKind = 'ready' | 'not-loaded' | 'not-responding' | 'other-version';

/** Wait for the reply of one message for at most `ms` milliseconds. */
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

export class Client {
  constructor(
    private readonly _channel: IControlChannel,
    private readonly _timeout = 4000
  ) {}

  /**
   * Ask for one operation.
   *
   * Throws `NoAnswer` after the timeout and `Refused` with the kernel's sentence.
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
      throw new Refused('The kernel answered with something that is not a reply.');
    }
    if (reply.version !== PROTOCOL_VERSION) {
      throw new Refused(
        `The kernel's jupyter-amltrain speaks version ${reply.version} of the protocol, this page ` +
          `version ${PROTOCOL_VERSION}. Install the same version on both sides and reload the page.`
      );
    }
    if (!reply.ok) {
      throw new Refused((reply as IErrorReply).error || 'The kernel refused, without a reason.');
    }
    return reply as IOperations[K]['reply'];
  }

  /** What is at the other end: see `greet`. */
  async probe(ms = 2000): Promise<KernelKind> {
    return (await this.greet(ms)).kind;
  }

  /**
   * Find out what is at the other end.
   *
   * An unknown message type is never answered, so silence alone says nothing: only a kernel that
   * answers `kernel_info_request` on the same channel has not loaded us; otherwise it may sit
   * inside one long C call. The channel keeps the order, so an answer to the second question
   * without one to the first tells at once.
   */
  async greet(ms = 2000): Promise<IGreeting> {
    const wait = (time: number) => new Promise<null>(resolve => setTimeout(() => resolve(null), time));
    const hello = this.request('hello', {}, ms).then(
      (reply): IGreeting => ({ kind: 'ready', busy: reply.kernel_busy, detail: '' }),
      (error): IGreeting | null =>
        error instanceof Refused ? { kind: 'other-version', busy: false, detail: error.message } : null
    );
    const early = await Promise.race([hello, wait(Math.min(ms, SOON))]);
    if (early) {
      return early;
    }
    const info = this._answersInfo(ms);
    const first = await Promise.race([hello, info]);
    if (first !== null && typeof first === 'object') {
      return first;
    }
    const answered = await info;
    let late = answered ? await Promise.race([hello, wait(Math.min(ms, SOON))]) : await hello;
    if (answered && !late && this._channel.direct === false) {
      // The first question may not have been sent yet.
      late = await Promise.race([hello, wait(Math.min(ms, HELD_BACK))]);
    }
    return late ?? { kind: answered ? 'not-loaded' : 'not-responding', busy: false, detail: '' };
  }

  /** Whether the second question is answered; until the kernel is connected it cannot be sent. */
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
        await new Promise(resolve => setTimeout(resolve, Math.min(left, SOON)));
      }
    }
    return false;
  }
}
