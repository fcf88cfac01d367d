/** A session for each kernel connection that was followed, until the connection is gone. */

import type { Kernel } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import type { PanelEvent } from '../protocol';
import { Forms } from './forms';
import { feedSession, KernelPort } from './port';
import type { IDifference } from './rows';
import { Session } from './session';

export interface IFollowed {
  readonly session: Session;
  readonly feed: { dispose(): void };
  readonly forms: Forms;
  gpuWhy: string;
  /** Connect was pressed by the setting: once for each life of a kernel. */
  pressed: boolean;
}

/** Told of the kernel that is followed, not of others. */
export interface IFollower {
  follows(kernel: Kernel.IKernelConnection): boolean;
  stateChanged(): void;
  rowsChanged(followed: IFollowed, difference: IDifference): void;
  event(event: PanelEvent, buffers: DataView[]): void;
  gpuWhyChanged(): void;
}

export class Sessions {
  constructor(private readonly _follower: IFollower) {}

  /** The one that there is, if there is one. */
  find(kernel: Kernel.IKernelConnection): IFollowed | undefined {
    return this._sessions.get(kernel);
  }

  make(kernel: Kernel.IKernelConnection): IFollowed {
    const follower = this._follower;
    const tell = (run: () => void) => {
      if (follower.follows(kernel)) {
        run();
      }
    };
    const session = new Session(
      new KernelPort(kernel),
      {
        stateChanged: () => {
          if (session.state !== 'ready' && session.state !== 'not-responding') {
            followed.forms.forget();
          }
          tell(() => follower.stateChanged());
        },
        rowsChanged: difference => {
          if (difference.workspaces) {
            followed.forms.forget();
          }
          tell(() => follower.rowsChanged(followed, difference));
        },
        event: (event, buffers) => tell(() => follower.event(event, buffers)),
        gpuWhy: why => {
          if (followed.gpuWhy !== why) {
            followed.gpuWhy = why;
            tell(() => follower.gpuWhyChanged());
          }
        }
      },
      () => UUID.uuid4()
    );
    const followed: IFollowed = {
      session,
      feed: feedSession(kernel, session),
      forms: new Forms(() => session.request('kinds', {})),
      gpuWhy: '',
      pressed: false
    };
    this._sessions.set(kernel, followed);
    kernel.disposed.connect(() => {
      // The one that is followed stays to be looked at: a dead kernel's connection is disposed of.
      if (!follower.follows(kernel)) {
        this.end(kernel);
      }
    });
    return followed;
  }

  end(kernel: Kernel.IKernelConnection): void {
    const followed = this._sessions.get(kernel);
    followed?.feed.dispose();
    followed?.session.dispose();
    this._sessions.delete(kernel);
  }

  private readonly _sessions = new Map<Kernel.IKernelConnection, IFollowed>();
}
