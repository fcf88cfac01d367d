/** Status bar item with the number of active runs and the GPU use. */

import type { IStatusBar } from '@jupyterlab/statusbar';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { isLive } from '../kernel/rows';
import { element, say } from '../sections/dom';
import { isStale, lastSeenText, connectionWord } from './connectionMessages';
import { runsIcon } from './icons';
import { CommandIDs, IPanelContext } from './tokens';

const RUNNING: ReadonlySet<string> = new Set(['running', 'finalizing']);

class StatusItem extends Widget {
  constructor(private readonly _context: IPanelContext) {
    const button = element('button', 'jp-AmlStatus-button');
    super({ node: button });
    const { model, app } = _context;
    button.type = 'button';
    this.addClass('jp-AmlStatus');
    this.addClass('jp-mod-highlighted');
    const icon = element('span', 'jp-AmlStatus-icon');
    icon.setAttribute('aria-hidden', 'true');
    runsIcon.element({ container: icon, width: '14px', height: '14px' });
    this._text = element('span', 'jp-AmlStatus-text');
    button.append(icon, this._text);
    button.addEventListener('click', () => void app.commands.execute(CommandIDs.open));
    model.connectionChanged.connect(this._draw, this);
    model.runsChanged.connect(this._draw, this);
    model.targetsChanged.connect(this._draw, this);
    model.meterChanged.connect((_, util) => {
      this._util = util;
      this._draw();
    });
    this._draw();
  }

  /** Whether the item is visible: only while the kernel is connected. */
  get active(): boolean {
    return this._active;
  }

  get activeChanged(): ISignal<StatusItem, void> {
    return this._activeChanged;
  }

  private _draw(): void {
    const { model, trans } = this._context;
    const connection = model.connection;
    const stale = isStale(connection.state) && model.targets.length > 0;
    const active = connection.state === 'ready' || stale;
    if (active) {
      const live = model.runs.filter(isLive);
      const running = live.filter(row => RUNNING.has(row.state)).length;
      const waiting = live.length - running;
      const parts = [
        running ? trans.__('%1 running', running) : '',
        waiting ? trans.__('%1 queued', waiting) : '',
        live.length ? '' : trans.__('No runs'),
        this._util === null ? '' : trans.__('%1% GPU', Math.round(this._util))
      ].filter(Boolean);
      say(this._text, parts.join(' · '));
      const title = [
        trans.__('Training runs of %1', connection.notebook),
        model.current ? trans.__('Target in use: %1', model.current) : '',
        stale ? `${connectionWord(connection, trans)}, ${lastSeenText(connection, Date.now(), trans)}` : '',
        trans.__('Click to open the panel')
      ];
      this.node.title = title.filter(Boolean).join('\n');
      this.node.setAttribute('aria-label', `${trans.__('Training runs')}: ${this._text.textContent ?? ''}`);
      this.toggleClass('jp-mod-stale', stale);
    }
    if (active !== this._active) {
      this._active = active;
      this._activeChanged.emit();
    }
  }

  private readonly _text: HTMLElement;
  private readonly _activeChanged = new Signal<StatusItem, void>(this);
  private _active = false;
  private _util: number | null = null;
}

export function addStatusItem(context: IPanelContext, bar: IStatusBar): void {
  const item = new StatusItem(context);
  bar.registerStatusItem('jupyter-amltrain:status', {
    item,
    align: 'left',
    rank: 3,
    isActive: () => item.active,
    activeStateChanged: item.activeChanged
  });
}
