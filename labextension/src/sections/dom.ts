/** DOM elements in one call, and the tab stop of a toolbar. Text is only ever set as text. */

/** An element with a class, a text and children. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = '',
  text = '',
  ...children: Node[]
): HTMLElementTagNameMap[K] {
  const created = document.createElement(tag);
  if (className) {
    created.className = className;
  }
  if (text) {
    created.textContent = text;
  }
  created.append(...children);
  return created;
}

/** A button in the styles of JupyterLab: `accept`, `warn` or `reject`. */
export function button(label: string, look: 'accept' | 'warn' | 'reject', click: () => void): HTMLButtonElement {
  const created = element('button', `jp-AmlButton jp-mod-styled jp-mod-${look}`, label);
  created.type = 'button';
  created.addEventListener('click', () => {
    // A button that explains why it cannot be pressed stays in the tab order.
    if (created.getAttribute('aria-disabled') !== 'true') {
      click();
    }
  });
  return created;
}

/** Let a button be pressed, or say why not. */
export function allow(button: HTMLButtonElement, disabledReason: string): void {
  button.title = disabledReason;
  if (disabledReason) {
    button.setAttribute('aria-disabled', 'true');
    button.setAttribute('aria-description', disabledReason);
  } else {
    button.removeAttribute('aria-disabled');
    button.removeAttribute('aria-description');
  }
}

/** Set a text only when it differs, so that screen readers do not repeat it and a selection survives. */
export function say(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Set a line of code that breaks between words only: `--size` is not `--` and `size`. */
export function sayLine(node: HTMLElement, line: string): void {
  if (node.textContent !== line) {
    const words = line.split(/(\s+)/).filter(word => word !== '');
    node.replaceChildren(
      ...words.map(word => (word.trim() ? element('span', 'jp-AmlLine-word', word) : document.createTextNode(word)))
    );
  }
}

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
  const current = buttons.findIndex(button => button.usable && button.stop);
  return current >= 0 ? current : buttons.findIndex(button => button.usable);
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
