/** Side panel: the followed notebook, the connection state of its kernel, and the sections. */

import { SessionContextDialogs } from '@jupyterlab/apputils';
import type { IStateDB } from '@jupyterlab/statedb';
import type { ITranslator } from '@jupyterlab/translation';
import { CommandToolbarButton, SidePanel } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { AccordionPanel, PanelLayout, Widget } from '@lumino/widgets';
import { PANEL_ID } from '../tokens';
import { ISection, SectionLayout } from './accordionLayout';
import { failed } from './commands';
import { isStale, Remedy } from './connectionMessages';
import { HeaderView, StateView } from './connectionView';
import { runsIcon } from './icons';
import { CommandIDs, IPanelContext } from './tokens';

export class TrainingPanel extends SidePanel {
  constructor(
    private readonly _context: IPanelContext,
    sections: readonly ISection[],
    private readonly _translator: ITranslator,
    db: IStateDB | null
  ) {
    super({ translator: _translator });
    const { model, trans, app } = _context;
    this.id = PANEL_ID;
    this.addClass('jp-AmlPanel');
    this.title.icon = runsIcon;
    this.title.caption = trans.__('Training runs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Training runs'));
    this.header.addWidget(new HeaderView(model, trans));
    this.toolbar.addItem('refresh', new CommandToolbarButton({ commands: app.commands, id: CommandIDs.refresh, label: '' }));
    this.header.addWidget(this.toolbar);
    this._state = new StateView(model, trans, remedy => {
      this._applyRemedy(remedy).catch(error => failed(trans.__('Cannot change the kernel'), error));
    });
    (this.layout as PanelLayout).insertWidget(1, this._state);
    this._sectionLayout = new SectionLayout(this.content as AccordionPanel, sections, db);
    model.connectionChanged.connect(this._update, this);
    this._update();
  }

  /** Open a section. */
  reveal(section: Widget): void {
    this._sectionLayout.reveal(section);
  }

  dispose(): void {
    this._context.model.connectionChanged.disconnect(this._update, this);
    this._context.model.setShown(false);
    this._sectionLayout.dispose();
    super.dispose();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._setShown(true);
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._setShown(false);
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._setShown(this.isVisible);
  }

  protected onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    this._setShown(false);
  }

  private _setShown(shown: boolean): void {
    this._state.seen = shown;
    this._context.model.setShown(shown);
  }

  private _update(): void {
    const { model } = this._context;
    const { connection } = model;
    const rows = model.runs.length + model.targets.length > 0;
    const stale = isStale(connection) && rows;
    this.node.dataset.state = connection.state;
    this.node.dataset.own = String(connection.own);
    this.toggleClass('jp-mod-stale', stale);
    this.content.setHidden(!connection.ready && !stale);
  }

  private async _applyRemedy(remedy: Remedy): Promise<void> {
    const { app, model } = this._context;
    const context = model.notebook?.sessionContext;
    if (remedy === 'connect') {
      await app.commands.execute(CommandIDs.connect);
    } else if (remedy === 'new-notebook') {
      await app.commands.execute('notebook:create-new');
    } else if (remedy === 'retry') {
      model.refresh();
    } else if (context && remedy === 'choose-kernel') {
      await new SessionContextDialogs({ translator: this._translator }).selectKernel(context);
    } else if (context) {
      const kernel = context.session?.kernel;
      if (kernel && !kernel.isDisposed && kernel.status !== 'dead') {
        await context.restartKernel();
      } else {
        // Jupyter neither restarts nor replaces a dead kernel, and the server has ended the session, too.
        const name = kernel?.name ?? context.prevKernelName;
        context.session?.dispose();
        await context.changeKernel({ name });
      }
    }
  }

  private readonly _sectionLayout: SectionLayout;
  private readonly _state: StateView;
}
