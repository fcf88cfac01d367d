/** Section of the panel with live GPU charts. */

import { PanelWithToolbar, runIcon, stopIcon, ToolbarButton } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { ago } from '../format';
import { sectionLayoutOf } from '../panel/accordionLayout';
import type { IGpuFrame, IPanelContext, IPanelModel } from '../panel/tokens';
import { TERMINAL } from '../record';
import { element, say } from './dom';
import { GpuBoard } from './gpuBoard';
import { GpuSelect } from './gpuSelect';
import { choiceOf, GpuChoice, IN_USE, options, targetOf } from './gpuSource';
import { GpuStore } from './gpuStore';

/** Delay in milliseconds: a short switch to another section must not cause two messages. */
const HIDDEN_TIMEOUT_MS = 2000;
const TICK_INTERVAL_MS = 1000;

/** Seconds without a sample before the section reports it. */
const STALE_TIMEOUT_S = 6;

export class GpusSection extends PanelWithToolbar {
  constructor(context: IPanelContext) {
    super();
    const { trans, model } = context;
    this._context = context;
    this._model = model;
    this._choice = choiceOf(context);
    this.addClass('jp-AmlGpus');
    this.title.label = trans.__('GPUs');
    this.toolbar.node.setAttribute('aria-label', trans.__('GPU charts'));
    this._button = new ToolbarButton({
      className: 'jp-AmlGpus-watch',
      icon: runIcon,
      pressedIcon: stopIcon,
      tooltip: trans.__('Watch'),
      pressedTooltip: trans.__('Stop watching'),
      onClick: () => (this._choice.on = !this._watches)
    });
    this.toolbar.addItem('watch', this._button);

    const body = new Widget();
    body.addClass('jp-AmlGpus-body');
    this._select = new GpuSelect(trans, chosen => this._choice.choose(chosen));
    this._state = document.createElement('div');
    this._state.className = 'jp-AmlGpus-state';
    this._message.setAttribute('role', 'status');
    this._state.append(this._message, this._age);
    this._ask = document.createElement('button');
    this._ask.type = 'button';
    this._ask.className = 'jp-AmlGpus-ask jp-mod-styled jp-mod-minimal';
    this._ask.textContent = trans.__('Watch');
    this._ask.addEventListener('click', () => {
      this._choice.on = true;
      // The button is hidden and would lose the focus.
      this._select.focus();
    });
    // The colors of the charts are those of the body.
    this._board = new GpuBoard(trans, this._store, body.node, () => this._seen, () => this._says());
    body.node.append(this._select.node, this._state, this._ask, this._board.node);
    this.addWidget(body);

    this._look = () => this._shownChanged();
    document.addEventListener('visibilitychange', this._look);

    model.gpuFrame.connect(this._take, this);
    model.connectionChanged.connect(this._update, this);
    model.runsChanged.connect(this._update, this);
    model.targetsChanged.connect(this._update, this);
    context.settings.changed.connect(this._update, this);
    this._choice.changed.connect(this._update, this);
    this._choice.revealed.connect(this._reveal, this);
    this._update();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    const { model, settings } = this._context;
    model.gpuFrame.disconnect(this._take, this);
    model.connectionChanged.disconnect(this._update, this);
    model.runsChanged.disconnect(this._update, this);
    model.targetsChanged.disconnect(this._update, this);
    settings.changed.disconnect(this._update, this);
    this._choice.changed.disconnect(this._update, this);
    this._choice.revealed.disconnect(this._reveal, this);
    document.removeEventListener('visibilitychange', this._look);
    this._board.dispose();
    clearTimeout(this._hiding);
    clearInterval(this._timer);
    super.dispose();
    model.watchGpus('');
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._shownChanged();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._shownChanged();
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._shownChanged();
  }

  protected onAfterDetach(message: Message): void {
    super.onAfterDetach(message);
    this._shownChanged();
  }

  private get _seen(): boolean {
    return this.isAttached && this.isVisible && !document.hidden;
  }

  private get _watches(): boolean {
    return this._choice.watches(this._context.settings.watchTarget);
  }

  /** Whether the source is known to have no GPU: then the section shows its processor and memory only. */
  private get _hasNoGpu(): boolean {
    const source = this._choice.source(this._model.current);
    if (this._store.length && this._store.source === source) {
      return this._store.count === 0;
    }
    const target = targetOf(source);
    return (target ? this._model.target(target)?.gpus : this._model.run(source)?.gpus) === 0;
  }

  /** Expand this section at the user's request. */
  private _reveal(): void {
    sectionLayoutOf(this.parent)?.reveal(this);
    this._select.focus();
  }

  private _shownChanged(): void {
    clearTimeout(this._hiding);
    this._hiding = undefined;
    clearInterval(this._timer);
    this._timer = undefined;
    if (this._seen) {
      this._timer = setInterval(() => this._says(), TICK_INTERVAL_MS);
      this._update();
      this._board.dirty();
    } else {
      // The kernel must not continue to read GPUs for a hidden section.
      this._hiding = setTimeout(() => this._watch(), HIDDEN_TIMEOUT_MS);
    }
  }

  /** Request from the model the source that the section needs now. */
  private _watch(): void {
    const wanted = this._seen && this._watches ? this._choice.source(this._model.current) : '';
    if (wanted !== this._model.gpuSource && (wanted || this._hiding !== undefined || this._seen)) {
      this._model.watchGpus(wanted);
    }
  }

  private _take(_: IPanelModel, frame: IGpuFrame): void {
    if (frame.head.source === this._model.gpuSource && this._store.push(frame)) {
      this._heard = Date.now();
      this._board.dirty();
      if (frame.head.first) {
        this._update();
      }
    }
  }

  private _update(): void {
    const model = this._model;
    const choice = this._choice;
    // Before the first snapshot, a kernel has no targets.
    if (model.targets.length && choice.settle(model.runs, model.targets)) {
      return;
    }
    this.title.label = this._hasNoGpu ? this._context.trans.__('Resources') : this._context.trans.__('GPUs');
    this._select.draw(options(model.current, model.runs, choice.chosen), choice.chosen);
    if (this._seen) {
      this._watch();
    }
    const source = choice.source(model.current);
    if (this._store.source && this._store.source !== source) {
      this._store.clear();
    }
    this._button.enabled = model.connection.ready && source !== '';
    // A disabled button cannot be pressed, so this follows its enabling.
    this._button.pressed = this._watches;
    this._says();
    this._board.dirty();
  }

  /** Update the line below the choice: the reason for missing data, or the age of the data. */
  private _says(): void {
    const { trans, settings } = this._context;
    const model = this._model;
    const store = this._store;
    const chosen = this._choice.chosen;
    const source = this._choice.source(model.current);
    const ready = model.connection.ready;
    const row = targetOf(source) ? undefined : model.run(source);
    const lines: string[] = [];
    let ask = false;
    if (!source) {
      lines.push(ready ? trans.__('No target is in use.') : '');
    } else if (!this._watches) {
      const target = targetOf(source);
      ask = ready;
      lines.push(
        target && chosen === IN_USE && !settings.watchTarget && !store.length
          ? trans.__('The GPUs of %1 are sampled only on request.', target)
          : trans.__('Not watched.')
      );
    } else if (model.gpuWhy) {
      lines.push(model.gpuWhy);
    } else if (!store.length && !store.note && ready) {
      lines.push(
        row && TERMINAL.has(row.state) ? trans.__('Reading the samples of this run…') : trans.__('Waiting for the first sample…')
      );
    }
    // Where the processor is charted instead, why there is no GPU is a detail.
    const charted = store.length > 0 && store.count === 0;
    this._board.node.title = charted ? store.note : '';
    if (store.note && store.note !== model.gpuWhy && !charted) {
      lines.push(store.note);
    }
    const silent = (Date.now() - this._heard) / 1000;
    let age = '';
    if (store.length && store.ended) {
      lines.push(trans.__('Finished. Showing the last minutes.'));
    } else if (store.length && silent > Math.max(STALE_TIMEOUT_S, 3 * store.period)) {
      age = trans.__('Last sample %1 ago.', ago(silent));
    }
    const text = lines.filter(Boolean).join(' ');
    say(this._message, text);
    // The age changes every second, so it is not announced by screen readers.
    say(this._age, text && age ? ` ${age}` : age);
    this._state.hidden = !text && !age;
    this._ask.hidden = !ask;
  }

  private readonly _context: IPanelContext;
  private readonly _model: IPanelModel;
  private readonly _choice: GpuChoice;
  private readonly _store = new GpuStore();
  private readonly _select: GpuSelect;
  private readonly _state: HTMLElement;
  private readonly _message = element('span');
  private readonly _age = element('span');
  private readonly _ask: HTMLButtonElement;
  private readonly _board: GpuBoard;
  private readonly _look: () => void;
  private readonly _button: ToolbarButton;
  private _heard = 0;
  private _hiding: ReturnType<typeof setTimeout> | undefined;
  private _timer: ReturnType<typeof setInterval> | undefined;
}
