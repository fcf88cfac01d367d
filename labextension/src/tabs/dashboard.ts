/** Tab with the dashboard of one run. */

import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { Kernel } from '@jupyterlab/services';
import { Message } from '@lumino/messaging';
import { ISignal, Signal } from '@lumino/signaling';
import { PanelLayout, Widget } from '@lumino/widgets';
import { Refused } from '../kernel/client';
import { IRunHost, living } from '../output/notebook';
import { RunOutput } from '../output/renderer';
import type { IPanelContext } from '../panel/tokens';
import { RUN_MIME } from '../protocol';
import { quiet } from './tabText';

/** Host with the kernel that the tab was opened with, or the followed kernel after that one is gone. */
class TabHost implements IRunHost {
  constructor(private readonly _context: IPanelContext) {
    this._own = living(_context.model.kernel);
    _context.model.connectionChanged.connect(this._look, this);
  }

  readonly saves = false;

  get rendermime(): IRenderMimeRegistry | null {
    return this._context.rendermime;
  }

  get kernel(): Kernel.IKernelConnection | null {
    return living(this._own) ?? living(this._context.model.kernel);
  }

  get kernelChanged(): ISignal<unknown, unknown> {
    return this._changed;
  }

  /** Keep no record: the output in the notebook does that. */
  write(): boolean {
    return false;
  }

  /** Use a kernel that has replied, and so knows the run. */
  adopt(kernel: Kernel.IKernelConnection | null): void {
    this._own = living(kernel) ?? this._own;
    this._changed.emit();
  }

  dispose(): void {
    this._context.model.connectionChanged.disconnect(this._look, this);
    Signal.clearData(this);
  }

  private _look(): void {
    const { model } = this._context;
    if (model.connection.ready && living(this._own) === null) {
      this.adopt(model.kernel);
    }
  }

  private _own: Kernel.IKernelConnection | null;
  private readonly _changed = new Signal<this, void>(this);
}

export class DashboardTab extends Widget {
  constructor(
    private readonly _context: IPanelContext,
    readonly handle: string
  ) {
    super();
    this.addClass('jp-AmlTab');
    this.addClass('jp-AmlDashboardTab');
    this._host = new TabHost(_context);
    this._state = document.createElement('div');
    this._state.className = 'jp-AmlTab-state';
    this._state.setAttribute('role', 'status');
    this._state.hidden = true;
    this.node.append(this._state);
    this.layout = new PanelLayout();
    _context.model.connectionChanged.connect(this._fetch, this);
    void this._fetch();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._context.model.connectionChanged.disconnect(this._fetch, this);
    this._host.dispose();
    super.dispose();
  }

  protected onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.tabIndex = -1;
    this.node.focus({ preventScroll: true });
  }

  /** Fetch the record once; afterwards, the run output updates itself. */
  private async _fetch(): Promise<void> {
    const { model, trans } = this._context;
    if (this._run || this._fetching || this.isDisposed) {
      return;
    }
    if (!model.connection.ready) {
      this._setStatus(quiet(trans, model.connection, trans.__('the dashboard')));
      return;
    }
    this._fetching = true;
    // The panel may follow another kernel when the reply arrives.
    const { kernel } = model;
    try {
      const { record } = await model.request('run', { handle: this.handle });
      if (this.isDisposed) {
        return;
      }
      if (record.handle !== this.handle) {
        throw new Refused(trans.__('The kernel returned another run.'));
      }
      this._setStatus('');
      this._host.adopt(kernel);
      const run = (this._run = new RunOutput(trans, this._host));
      (this.layout as PanelLayout).addWidget(run);
      this.title.label = record.name || this.handle;
      const data = { [RUN_MIME]: record as any };
      await run.renderModel({ data, metadata: {}, trusted: true, setData: () => undefined });
      run.openDashboard();
    } catch (error) {
      this._setStatus(error instanceof Refused ? error.message : quiet(trans, model.connection, trans.__('the dashboard')));
    } finally {
      this._fetching = false;
    }
    if (!this._run && kernel !== model.kernel) {
      // The kernel that is followed now has not received the request.
      await this._fetch();
    }
  }

  private _setStatus(text: string): void {
    this._state.textContent = text;
    this._state.hidden = !text;
  }

  private readonly _host: TabHost;
  private readonly _state: HTMLElement;
  private _run: RunOutput | null = null;
  private _fetching = false;
}
