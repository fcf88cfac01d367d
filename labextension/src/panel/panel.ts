/** The side panel: who is followed, how it stands with that kernel, and the sections. */

import { SessionContextDialogs } from '@jupyterlab/apputils';
import { ITranslator } from '@jupyterlab/translation';
import { CommandToolbarButton, PanelWithToolbar, SidePanel } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { AccordionPanel, PanelLayout } from '@lumino/widgets';
import { PANEL_ID } from '../tokens';
import { runsIcon } from './icons';
import { isStale, Remedy } from './look';
import { HeaderView, StateView } from './states';
import { CommandIDs, IPanelContext } from './tokens';

/** Of compute, runs, GPUs and submit to each other. */
const SIZES = [2, 5, 3, 0];

export class TrainingPanel extends SidePanel {
  constructor(
    private readonly _context: IPanelContext,
    sections: readonly PanelWithToolbar[],
    private readonly _translator: ITranslator
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
    this._state = new StateView(model, trans, remedy => void this._heal(remedy));
    (this.layout as PanelLayout).insertWidget(1, this._state);
    // Until a person changes it: runs have most of the room, and the form of a submit waits to be opened.
    sections[sections.length - 1].hide();
    sections.forEach(section => this.addWidget(section));
    (this.content as AccordionPanel).setRelativeSizes(SIZES.slice(0, sections.length));
    model.connectionChanged.connect(this._draw, this);
    this._draw();
  }

  /** Bring a section into view. */
  reveal(section: PanelWithToolbar): void {
    const index = this.content.widgets.indexOf(section);
    if (index >= 0) {
      (this.content as AccordionPanel).expand(index);
    }
  }

  dispose(): void {
    this._context.model.connectionChanged.disconnect(this._draw, this);
    this._context.model.setShown(false);
    super.dispose();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._tell(true);
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._tell(false);
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._tell(this.isVisible);
  }

  protected onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    this._tell(false);
  }

  private _tell(shown: boolean): void {
    this._state.seen = shown;
    this._context.model.setShown(shown);
  }

  private _draw(): void {
    const { model } = this._context;
    const state = model.connection.state;
    const rows = model.runs.length + model.targets.length > 0;
    const stale = isStale(state) && rows;
    this.node.dataset.state = state;
    this.toggleClass('jp-mod-stale', stale);
    this.content.setHidden(state !== 'ready' && !stale);
  }

  private async _heal(remedy: Remedy): Promise<void> {
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
        // Jupyter does not restart what is dead: another takes its place.
        await context.changeKernel({ name: kernel?.name ?? context.prevKernelName });
      }
    }
  }

  private readonly _state: StateView;
}
