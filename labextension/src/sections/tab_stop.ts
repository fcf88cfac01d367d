/** A toolbar whose buttons are often disabled stays open to the keyboard. */

/** What JupyterLab's toolbar element has: the list of what Tab and the arrows reach. */
interface IReach {
  reduceFocusableElements?(): void;
  focusableElements?: HTMLElement[];
  activeIndex?: number;
}

/**
 * Which button is to be the stop of Tab, of those in their order; -1 for none.
 *
 * It stays where it is unless that button cannot be pressed any more.
 */
export function stopOf(buttons: readonly { readonly usable: boolean; readonly stop: boolean }[]): number {
  const kept = buttons.findIndex(button => button.usable && button.stop);
  return kept >= 0 ? kept : buttons.findIndex(button => button.usable);
}

/**
 * Let Tab and the arrows reach what can be pressed now.
 *
 * JupyterLab lists that only when buttons come or go: those that were disabled then are passed by ever after.
 */
export function keepTabStop(toolbar: HTMLElement): MutationObserver {
  const observer = new MutationObserver(() => {
    const reach = toolbar as IReach;
    reach.reduceFocusableElements?.();
    const buttons = [...toolbar.querySelectorAll<HTMLElement>('jp-button')];
    const usable = buttons.filter(button => !button.hasAttribute('disabled') && button.offsetParent !== null);
    const at = stopOf(
      buttons.map(button => ({
        usable: usable.includes(button),
        stop: button.getAttribute('tabindex') === '0'
      }))
    );
    if (at >= 0) {
      buttons.forEach((button, k) => button.setAttribute('tabindex', k === at ? '0' : '-1'));
      if (reach.focusableElements) {
        reach.focusableElements = usable; // without the opener of a menu that is not shown
        reach.activeIndex = usable.indexOf(buttons[at]);
      }
    }
  });
  observer.observe(toolbar, { subtree: true, childList: true, attributeFilter: ['disabled'] });
  return observer;
}
