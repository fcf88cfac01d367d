/** A JupyterLab kernel connection as a session needs it, and the signs of life that it gives. */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { linkOf } from '../kernel';
import { LOAD_COMMAND } from '../tokens';
import type { ILoaded, IPort } from './peer';
import type { Session } from './session';

export class KernelPort implements IPort {
  constructor(readonly kernel: Kernel.IKernelConnection) {}

  get client(): IPort['client'] {
    return linkOf(this.kernel).client;
  }

  get status(): string {
    return this.kernel.isDisposed ? 'dead' : this.kernel.status;
  }

  listen(id: string, got: (event: unknown, buffers: DataView[]) => void): { dispose(): void } {
    // Not by a comm object: of several notebooks with one kernel only the first may make one.
    const take = (_: unknown, message: KernelMessage.IIOPubMessage) => {
      if (KernelMessage.isCommMsgMsg(message) && message.content.comm_id === id) {
        const views = (message.buffers ?? []).map(part =>
          part instanceof ArrayBuffer ? new DataView(part) : new DataView(part.buffer, part.byteOffset, part.byteLength)
        );
        got(message.content.data, views);
      }
    };
    this.kernel.iopubMessage.connect(take);
    return { dispose: () => this.kernel.iopubMessage.disconnect(take) };
  }

  async load(): Promise<ILoaded> {
    const future = this.kernel.requestExecute({
      code: LOAD_COMMAND,
      silent: true,
      store_history: false,
      allow_stdin: false
    });
    const content = (await future.done).content as { status: string; ename?: string; evalue?: string };
    return { status: content.status, ename: content.ename ?? '', evalue: content.evalue ?? '' };
  }
}

/** Tell the session what the connection hears; ends with the connection or when disposed of. */
export function feedSession(kernel: Kernel.IKernelConnection, session: Session): { dispose(): void } {
  const status = (_: unknown, word: string) => session.statusChanged(word);
  const connection = (_: unknown, word: string) => session.connectionChanged(word === 'connected');
  const message = (_: unknown, sent: KernelMessage.IIOPubMessage) => {
    const type = sent.header.msg_type as string;
    if (type === 'comm_msg' || (type === 'status' && !sent.parent_header.msg_type)) {
      return; // an event is counted where it is read; the server speaks for the kernel by the other
    }
    session.heard();
    // Our own questions make the kernel busy, too: only cells count.
    if (type === 'status' && (sent.parent_header as { msg_type?: string }).msg_type === 'execute_request') {
      session.cell((sent.content as { execution_state: string }).execution_state === 'busy');
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
