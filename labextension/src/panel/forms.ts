/** The forms of one kernel: asked for once, and again when they may be others. No DOM. */

import type { IKindsReply } from '../protocol';

export class Forms {
  constructor(private readonly _request: () => Promise<IKindsReply>) {}

  /** The forms; a refusal is not kept. */
  ask(): Promise<IKindsReply> {
    if (this._asked) {
      return this._asked;
    }
    const asked = (this._asked = this._request());
    asked.catch(() => {
      if (asked === this._asked) {
        this._asked = null;
      }
    });
    return asked;
  }

  /** They may be others. */
  forget(): void {
    this._asked = null;
  }

  private _asked: Promise<IKindsReply> | null = null;
}
