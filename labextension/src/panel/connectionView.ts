/** View of the kernel connection at the top of the panel: its state and the remedy. */

import { Clipboard, Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  copyIcon,
  kernelIcon,
  LabIcon,
  notebookIcon,
  offlineBoltIcon,
  pythonIcon,
  runningIcon,
  stopIcon
} from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { button, element, say } from '../sections/dom';
import { IConnectionMessage, isStale, connectionMessage, Remedy, lastSeenText, connectionWord } from './connectionMessages';
import { plugIcon } from './icons';
import type { IPanelModel } from './tokens';

const ICONS: Partial<Record<IConnectionMessage['icon'], LabIcon>> = {
  notebook: notebookIcon,
  kernel: kernelIcon,
  language: pythonIcon,
  plug: plugIcon,
  package: plugIcon,
  version: plugIcon,
  quiet: runningIcon,
  lost: offlineBoltIcon,
  dead: stopIcon
};

const SECOND_MS = 1000;

export class StateView extends Widget {
  constructor(
    private readonly _model: IPanelModel,
    private readonly _trans: TranslationBundle,
    private readonly _act: (remedy: Remedy) => void
  ) {
    super();
    this.addClass('jp-AmlState');
    this._title = element('div', 'jp-AmlState-title');
    this._text = element('div', 'jp-AmlState-text');
    this._seen = element('div', 'jp-AmlState-seen');
    this._icon = element('div', 'jp-AmlState-icon');
    this._icon.setAttribute('aria-hidden', 'true');
    // A screen reader announces changes of the message, but not of the seconds.
    const message = element('div', 'jp-AmlState-said', '', this._title, this._text);
    message.setAttribute('role', 'status');
    message.setAttribute('aria-live', 'polite');
    this._doing = element('div', 'jp-AmlState-doing');
    this.node.append(this._icon, element('div', 'jp-AmlState-body', '', message, this._seen, this._doing));
    _model.connectionChanged.connect(this._draw, this);
    this._draw();
  }

  dispose(): void {
    clearInterval(this._timer);
    this._model.connectionChanged.disconnect(this._draw, this);
    super.dispose();
  }

  /** Set whether the view is visible; update the seconds only while it is. */
  set seen(shown: boolean) {
    this._shown = shown;
    this._draw();
  }

  protected onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    clearInterval(this._timer);
    this._timer = undefined;
  }

  private _draw(): void {
    const connection = this._model.connection;
    const now = connectionMessage(connection, this._trans);
    this.setHidden(now === null);
    clearInterval(this._timer);
    this._timer = undefined;
    if (!now) {
      this._key = '';
      return;
    }
    this.node.dataset.state = connection.state;
    const stale = isStale(connection);
    const rows = this._model.runs.length + this._model.targets.length > 0;
    this.toggleClass('jp-mod-compact', connection.ready || (stale && rows));
    say(this._title, now.title);
    say(this._text, now.text);
    const key = JSON.stringify([now.icon, now.remedy, now.label, now.copy]);
    if (key !== this._key) {
      this._key = key;
      this._drawParts(now);
    }
    this._seen.hidden = !stale;
    this._tick();
    if (stale && this._shown) {
      this._timer = setInterval(() => this._tick(), SECOND_MS);
    }
  }

  private _drawParts(now: IConnectionMessage): void {
    this._icon.replaceChildren();
    ICONS[now.icon]?.element({ container: this._icon, width: '32px', height: '32px' });
    this._icon.className = `jp-AmlState-icon${now.icon === 'wait' ? ' jp-mod-wait' : ''}`;
    const parts: Node[] = [];
    if (now.copy) {
      const line = element('code', 'jp-AmlState-line', now.copy);
      const copy = element('button', 'jp-AmlState-copy jp-mod-styled jp-mod-minimal');
      copy.type = 'button';
      copy.title = this._trans.__('Copy');
      copy.setAttribute('aria-label', this._trans.__('Copy %1', now.copy));
      copyIcon.element({ container: copy, width: '16px', height: '16px' });
      copy.addEventListener('click', () => {
        Clipboard.copyToSystem(now.copy);
        Notification.emit(this._trans.__('Copied %1', now.copy), 'success', { autoClose: 3000 });
      });
      parts.push(element('div', 'jp-AmlState-command', '', line, copy));
    }
    const remedy = now.remedy;
    if (remedy) {
      const message = button(now.label, 'accept', () => this._act(remedy));
      message.dataset.remedy = remedy;
      parts.push(message);
    }
    this._doing.replaceChildren(...parts);
    this._doing.hidden = parts.length === 0;
  }

  private _tick(): void {
    const connection = this._model.connection;
    say(this._seen, lastSeenText(connection, Date.now(), this._trans));
  }

  private readonly _icon: HTMLElement;
  private readonly _title: HTMLElement;
  private readonly _text: HTMLElement;
  private readonly _seen: HTMLElement;
  private readonly _doing: HTMLElement;
  private _key = '';
  private _shown = false;
  private _timer: ReturnType<typeof setInterval> | undefined;
}

/** Header with notebook, kernel and a dot for the connection state. */
export class HeaderView extends Widget {
  constructor(
    private readonly _model: IPanelModel,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-AmlHeader');
    this._dot = element('span', 'jp-AmlHeader-dot');
    this._dot.setAttribute('role', 'img');
    this._notebook = element('span', 'jp-AmlHeader-notebook');
    this._kernel = element('span', 'jp-AmlHeader-kernel');
    this.node.append(this._dot, this._notebook, this._kernel);
    _model.connectionChanged.connect(this._draw, this);
    this._draw();
  }

  dispose(): void {
    this._model.connectionChanged.disconnect(this._draw, this);
    super.dispose();
  }

  private _draw(): void {
    const connection = this._model.connection;
    const text = connectionWord(connection, this._trans);
    this.node.dataset.state = connection.state;
    this.node.classList.toggle('jp-mod-busy', connection.busy);
    this._dot.setAttribute('aria-label', text);
    this._dot.title = text;
    say(this._notebook, connection.notebook || this._trans.__('No notebook'));
    say(this._kernel, connection.kernelName);
    this.node.title = [connection.notebook, connection.kernelName, text].filter(Boolean).join('\n');
  }

  private readonly _dot: HTMLElement;
  private readonly _notebook: HTMLElement;
  private readonly _kernel: HTMLElement;
}
