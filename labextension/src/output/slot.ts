/** A layout whose widgets lie in one element inside the parent's node. */

import { MessageLoop } from '@lumino/messaging';
import { PanelLayout, Widget } from '@lumino/widgets';

export class SlotLayout extends PanelLayout {
  constructor(private readonly _slot: HTMLElement) {
    super();
  }

  protected attachWidget(_index: number, widget: Widget): void {
    const attached = this.parent?.isAttached === true;
    if (attached) {
      MessageLoop.sendMessage(widget, Widget.Msg.BeforeAttach);
    }
    this._slot.append(widget.node);
    if (attached) {
      MessageLoop.sendMessage(widget, Widget.Msg.AfterAttach);
    }
  }

  protected detachWidget(_index: number, widget: Widget): void {
    const attached = this.parent?.isAttached === true;
    if (attached) {
      MessageLoop.sendMessage(widget, Widget.Msg.BeforeDetach);
    }
    widget.node.remove();
    if (attached) {
      MessageLoop.sendMessage(widget, Widget.Msg.AfterDetach);
    }
  }
}
