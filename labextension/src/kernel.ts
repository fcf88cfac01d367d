/** The control channel of a JupyterLab kernel connection, and one client for each connection. */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { Client, IControlChannel, IPending, KernelKind } from './client';

class ControlChannel implements IControlChannel {
  constructor(private readonly _kernel: Kernel.IKernelConnection) {
    _kernel.info.then(
      () => {
        this._direct = true;
      },
      () => undefined
    );
  }

  /** Until the kernel has answered JupyterLab's own question, ours wait. */
  get direct(): boolean {
    return this._direct;
  }

  send(type: string, content: Record<string, unknown>): IPending {
    const message = KernelMessage.createMessage({
      // Our own message type is unknown to JupyterLab's list.
      msgType: type as 'kernel_info_request',
      channel: 'control',
      username: this._kernel.username,
      session: this._kernel.clientId,
      content: content as any
    } as any) as unknown as KernelMessage.IControlMessage;
    const future = this._kernel.sendControlMessage(message as any, true, true);
    // Disposing of it rejects `done`, which nobody awaits: the reply is all we need.
    future.done.catch(() => undefined);
    const reply = new Promise<unknown>(resolve => {
      future.onReply = answer => resolve(answer.content);
    });
    return { reply, dispose: () => future.dispose() };
  }

  private _direct = false;
}

/** What is known of one kernel, shared by all outputs of its notebook. */
export class Link {
  constructor(kernel: Kernel.IKernelConnection) {
    this.client = new Client(new ControlChannel(kernel));
    kernel.statusChanged.connect((_, status) => {
      // A cell that ran may have loaded us; a restart has unloaded us.
      if (status === 'idle' || status === 'restarting' || status === 'autorestarting') {
        this._ranSomething = true;
      }
    });
  }

  readonly client: Client;

  /** Ask the kernel what it is, at most every few seconds, and only when that may have changed. */
  async kind(): Promise<KernelKind> {
    const old = this._kind;
    const again = old === null || old === 'not-responding' || (old !== 'ready' && this._ranSomething);
    if (this._probing === null && again && Date.now() - this._probed > 3000) {
      this._ranSomething = false;
      this._probing = this.client.probe().then(kind => {
        this._probed = Date.now();
        this._probing = null;
        return (this._kind = kind);
      });
    }
    return this._probing ?? this._kind ?? 'not-responding';
  }

  /** Forget the last answer: a request stayed unanswered. */
  doubt(): void {
    this._kind = null;
  }

  private _kind: KernelKind | null = null;
  private _probing: Promise<KernelKind> | null = null;
  private _probed = 0;
  private _ranSomething = false;
}

const links = new WeakMap<Kernel.IKernelConnection, Link>();

/** The one link of this connection. */
export function linkOf(kernel: Kernel.IKernelConnection): Link {
  let link = links.get(kernel);
  if (!link) {
    links.set(kernel, (link = new Link(kernel)));
  }
  return link;
}
