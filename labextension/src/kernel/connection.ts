/** The session of each JupyterLab kernel connection: its transport, and the signs of life that it gives. */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import { IControlChannel, IPending, KernelClient } from './client';
import { ILoadReply, ITransport, KernelSession } from './session';

/** Loads the extension. Unlike `%load_ext` it leaves the same line in a cell without a message that it is loaded already. */
const LOAD_CODE = "__import__('jupyter_amltrain').load_ipython_extension(get_ipython())";

interface IConnected {
  readonly session: KernelSession;
  readonly signs: { dispose(): void };
}

const sessions = new WeakMap<Kernel.IKernelConnection, IConnected>();

/** The one session of this connection; the first call begins it. */
export function sessionOf(kernel: Kernel.IKernelConnection): KernelSession {
  let connected = sessions.get(kernel);
  if (!connected) {
    const session = new KernelSession(new KernelTransport(kernel), null, () => UUID.uuid4());
    connected = { session, signs: forwardSigns(kernel, session) };
    sessions.set(kernel, connected);
    kernel.disposed.connect(() => {
      // The one that is followed stays to be looked at: a dead kernel's connection is disposed of.
      if (!session.listener) {
        endSession(kernel);
      }
    });
    session.begin();
  }
  return connected.session;
}

/** End the session of a connection that is disposed of. */
export function endSession(kernel: Kernel.IKernelConnection): void {
  const connected = sessions.get(kernel);
  connected?.signs.dispose();
  connected?.session.dispose();
  sessions.delete(kernel);
}

class ControlChannel implements IControlChannel {
  constructor(private readonly _kernel: Kernel.IKernelConnection) {
    _kernel.info.then(
      () => {
        this._direct = true;
      },
      () => undefined
    );
  }

  /** Until the kernel has answered JupyterLab's own request, ours wait. */
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
    // Disposing of it rejects `done`, which is not awaited: only the reply matters.
    future.done.catch(() => undefined);
    const reply = new Promise<unknown>(resolve => {
      future.onReply = answer => resolve(answer.content);
    });
    return { reply, dispose: () => future.dispose() };
  }

  private _direct = false;
}

class KernelTransport implements ITransport {
  constructor(private readonly _kernel: Kernel.IKernelConnection) {
    this.client = new KernelClient(new ControlChannel(_kernel));
  }

  readonly client: KernelClient;

  get status(): string {
    return this._kernel.isDisposed ? 'dead' : this._kernel.status;
  }

  listen(comm: string, received: (event: unknown, buffers: DataView[]) => void): { dispose(): void } {
    // Not by a comm object: of several notebooks with one kernel only the first may make one.
    const take = (_: unknown, message: KernelMessage.IIOPubMessage) => {
      if (KernelMessage.isCommMsgMsg(message) && message.content.comm_id === comm) {
        const views = (message.buffers ?? []).map(part =>
          part instanceof ArrayBuffer ? new DataView(part) : new DataView(part.buffer, part.byteOffset, part.byteLength)
        );
        received(message.content.data, views);
      }
    };
    this._kernel.iopubMessage.connect(take);
    return { dispose: () => this._kernel.iopubMessage.disconnect(take) };
  }

  async load(): Promise<ILoadReply> {
    const future = this._kernel.requestExecute({
      code: LOAD_CODE,
      silent: true,
      store_history: false,
      allow_stdin: false
    });
    const content = (await future.done).content as { status: string; ename?: string; evalue?: string };
    return { status: content.status, ename: content.ename ?? '', evalue: content.evalue ?? '' };
  }
}

/** Forward the signals of the connection to the session, until either is disposed of. */
function forwardSigns(kernel: Kernel.IKernelConnection, session: KernelSession): { dispose(): void } {
  const status = (_: unknown, word: string) => session.statusChanged(word);
  const connection = (_: unknown, word: string) => session.connectionChanged(word === 'connected');
  const message = (_: unknown, sent: KernelMessage.IIOPubMessage) => {
    const type = sent.header.msg_type as string;
    if (type === 'comm_msg' || (type === 'status' && !sent.parent_header.msg_type)) {
      return; // an event is counted where it is read; the server speaks for the kernel by the other
    }
    session.heard();
    // Our own requests make the kernel busy, too: only cells count.
    if (type === 'status' && (sent.parent_header as { msg_type?: string }).msg_type === 'execute_request') {
      session.cellRuns((sent.content as { execution_state: string }).execution_state === 'busy');
    }
  };
  const any = (_: unknown, { msg, direction }: Kernel.IAnyMessageArgs) => {
    const code = msg.content as { silent?: boolean };
    if (direction === 'send' && (msg.header.msg_type as string) === 'execute_request' && !code.silent) {
      session.cellSent();
    }
  };
  kernel.statusChanged.connect(status);
  kernel.connectionStatusChanged.connect(connection);
  kernel.iopubMessage.connect(message);
  kernel.anyMessage.connect(any);
  return {
    dispose: () => {
      kernel.statusChanged.disconnect(status);
      kernel.connectionStatusChanged.disconnect(connection);
      kernel.iopubMessage.disconnect(message);
      kernel.anyMessage.disconnect(any);
    }
  };
}
