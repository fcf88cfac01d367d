/** A layout for widgets that are drawn in nodes of other parts of a view. */

import { MessageLoop } from '@lumino/messaging';
import { PanelLayout, Widget } from '@lumino/widgets';

/** Puts widgets into nodes that are not the widget's own. */
export class SlotLayout extends PanelLayout {
  constructor(private readonly _slotOf: (widget: Widget) => HTMLElement) {
    super();
  }

  protected attachWidget(_index: number, widget: Widget): void {
    const attached = this.parent?.isAttached === true;
    if (attached) {
      MessageLoop.sendMessage(widget, Widget.Msg.BeforeAttach);
    }
    this._slotOf(widget).append(widget.node);
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
