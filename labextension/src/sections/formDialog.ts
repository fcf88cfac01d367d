/**
 * Dialog for a form with buttons of its own.
 *
 * A `Dialog` of JupyterLab waits until the one before is closed, so the confirmation of a cost could not open above
 * the form that causes it.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { ISignal, Signal } from '@lumino/signaling';
import { PanelLayout, Widget } from '@lumino/widgets';
import { element } from './dom';

const FOCUSABLE = 'a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), [tabindex="0"]';

export class FormDialog extends Widget {
  constructor(body: Widget, label: string, trans: TranslationBundle) {
    super();
    this.addClass('jp-AmlDialog');
    this.node.dataset.lmSuppressShortcuts = 'true';
    const box = new Widget();
    box.addClass('jp-AmlDialog-box');
    box.node.setAttribute('role', 'dialog');
    box.node.setAttribute('aria-modal', 'true');
    box.node.setAttribute('aria-label', label);
    const close = element('button', 'jp-AmlDialog-close');
    close.type = 'button';
    close.title = trans.__('Close');
    close.setAttribute('aria-label', close.title);
    closeIcon.element({ container: close });
    close.addEventListener('click', () => this._canceled.emit());
    const layout = (box.layout = new PanelLayout());
    layout.addWidget(body);
    box.node.append(close);
    (this.layout = new PanelLayout()).addWidget(box);
    this.node.addEventListener('keydown', event => this._key(event));
  }

  /** Emitted when the user presses Escape or the close button. */
  get canceled(): ISignal<this, void> {
    return this._canceled;
  }

  /** Show the dialog above the page. */
  open(): void {
    this._before = document.activeElement;
    Widget.attach(this, document.body);
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    const before = this._before;
    Signal.clearData(this);
    super.dispose();
    if (before instanceof HTMLElement && before.isConnected) {
      before.focus({ preventScroll: true });
    }
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (!this.node.contains(document.activeElement)) {
      this._stops[0]?.focus();
    }
  }

  /** Elements in reach of Tab, the close button last. */
  private get _stops(): HTMLElement[] {
    return [...this.node.querySelectorAll<HTMLElement>(FOCUSABLE)].filter(node => node.offsetParent !== null);
  }

  private _key(event: KeyboardEvent): void {
    if (event.key === 'Escape') {
      event.preventDefault();
      event.stopPropagation();
      this._canceled.emit();
    } else if (event.key === 'Tab') {
      const stops = this._stops;
      const [first, last] = [stops[0], stops[stops.length - 1]];
      if (event.shiftKey ? document.activeElement === first : document.activeElement === last) {
        event.preventDefault();
        (event.shiftKey ? last : first)?.focus();
      }
    }
  }

  private _before: Element | null = null;
  private readonly _canceled = new Signal<this, void>(this);
}
