/** Status bar item with the number of active runs and the GPU use. */

import type { IStatusBar } from '@jupyterlab/statusbar';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { isLive } from '../kernel/rows';
import type { ITargetRow } from '../protocol';
import { element, say } from '../sections/dom';
import { price } from '../sections/targetText';
import { isStale, lastSeenText, connectionWord } from './connectionMessages';
import { runsIcon } from './icons';
import { CommandIDs, IPanelContext } from './tokens';

const RUNNING: ReadonlySet<string> = new Set(['running', 'finalizing']);

/** Current cost of all targets, one text for each currency. */
function costs(targets: readonly ITargetRow[], trans: TranslationBundle): string[] {
  const sums = new Map<string, number>();
  for (const target of targets) {
    if (target.price) {
      sums.set(target.currency, (sums.get(target.currency) ?? 0) + target.price);
    }
  }
  return [...sums].map(([currency, amount]) => price(amount, currency, trans));
}

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
    const stale = isStale(connection) && model.targets.length > 0;
    const active = connection.ready || stale;
    if (active) {
      const live = model.runs.filter(isLive);
      const running = live.filter(row => RUNNING.has(row.state)).length;
      const waiting = live.length - running;
      const billed = costs(model.targets, trans);
      const parts = [
        running ? trans.__('%1 running', running) : '',
        waiting ? trans.__('%1 queued', waiting) : '',
        live.length ? '' : trans.__('No live runs'),
        billed.join(' + '),
        this._util === null ? '' : trans.__('%1% GPU', Math.round(this._util))
      ].filter(Boolean);
      say(this._text, parts.join(' · '));
      const title = [
        connection.own ? trans.__('Training runs of this machine') : trans.__('Training runs of %1', connection.notebook),
        model.current ? trans.__('Target in use: %1', model.current) : '',
        ...model.targets
          .filter(target => target.price)
          .map(target => trans.__('Billed now: %1, %2', target.name, price(target.price, target.currency, trans))),
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
