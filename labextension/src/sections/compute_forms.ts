/** The form that stands above the targets: of a new target or of a workspace, at most one at a time. */

import type { ISignal } from '@lumino/signaling';
import type { Panel, Widget } from '@lumino/widgets';
import type { IPanelContext } from '../panel/tokens';
import { NewTarget } from './compute_new';
import { ConnectWorkspace } from './workspace_connect';

interface IForm extends Widget {
  readonly closed: ISignal<unknown, void>;
  load(): Promise<void>;
  enable(whyNot: string): void;
}

/** Where the form is shown. */
export interface IFormHost {
  readonly whyNot: string;
  /** The form is gone; `inside`: it had the focus. */
  formClosed(inside: boolean): void;
  makeRoom(node?: HTMLElement): void;
}

export class ComputeForms {
  constructor(
    private readonly _context: IPanelContext,
    private readonly _body: Panel,
    private readonly _host: IFormHost
  ) {}

  /** Whether one is open. */
  get open(): boolean {
    return this._form !== null;
  }

  /** Open the form for a new target. */
  newTarget(): void {
    this._show(NewTarget, () => {
      const form = new NewTarget(this._context);
      form.workspaceWanted.connect(() => this.connect());
      return form;
    });
  }

  /** Open the form that connects a workspace. */
  connect(): void {
    this._show(ConnectWorkspace, () => new ConnectWorkspace(this._context));
  }

  /** Why nothing can be done with it now; empty when it can. */
  enable(whyNot: string): void {
    this._form?.enable(whyNot);
  }

  private _show(kind: new (context: IPanelContext) => IForm, make: () => IForm): void {
    if (this._form instanceof kind) {
      this._form.node.querySelector<HTMLElement>('input, select')?.focus();
      return;
    }
    this._close();
    const form = (this._form = make());
    form.closed.connect(() => this._close());
    form.enable(this._host.whyNot);
    this._body.insertWidget(0, form);
    void form.load().then(() => {
      if (form === this._form) {
        this._host.makeRoom(form.node);
      }
    });
  }

  private _close(): void {
    const form = this._form;
    this._form = null;
    if (form) {
      const inside = form.node.contains(document.activeElement);
      form.dispose();
      this._host.formClosed(inside);
    }
  }

  private _form: IForm | null = null;
}
