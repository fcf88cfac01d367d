/** Helpers for DOM elements, and the tab stop of a toolbar. Text is never inserted as HTML. */

/** Create an element with a class, a text and children. */
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

/** Create a button in a style of JupyterLab: `accept`, `warn` or `reject`. */
export function button(label: string, look: 'accept' | 'warn' | 'reject', click: () => void): HTMLButtonElement {
  const created = element('button', `jp-AmlButton jp-mod-styled jp-mod-${look}`, label);
  created.type = 'button';
  created.addEventListener('click', () => {
    // A disabled button that explains the reason stays in the tab order.
    if (created.getAttribute('aria-disabled') !== 'true') {
      click();
    }
  });
  return created;
}

/** Enable a button, or disable it and show the reason. */
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

/** Set a text only if it differs, so that screen readers do not repeat it and a selection is kept. */
export function say(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Set a code line that breaks only between words: `--size` must not be split into `--` and `size`. */
export function sayLine(node: HTMLElement, line: string): void {
  if (node.textContent !== line) {
    const words = line.split(/(\s+)/).filter(word => word !== '');
    node.replaceChildren(
      ...words.map(word => (word.trim() ? element('span', 'jp-AmlLine-word', word) : document.createTextNode(word)))
    );
  }
}

/** Properties of the toolbar element of JupyterLab for the buttons in reach of Tab and the arrow keys. */
interface IReach {
  reduceFocusableElements?(): void;
  focusableElements?: HTMLElement[];
  activeIndex?: number;
}

/**
 * Index of the button that is the tab stop, or -1 for none.
 *
 * The tab stop remains the same until its button is disabled.
 */
export function stopOf(buttons: readonly { readonly usable: boolean; readonly stop: boolean }[]): number {
  const current = buttons.findIndex(button => button.usable && button.stop);
  return current >= 0 ? current : buttons.findIndex(button => button.usable);
}

/**
 * Keep all enabled buttons of a toolbar in reach of Tab and the arrow keys.
 *
 * JupyterLab updates its list only when buttons are added or removed, so buttons that were disabled then stay skipped.
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
        reach.focusableElements = usable; // excludes the opener of a hidden menu
        reach.activeIndex = usable.indexOf(buttons[at]);
      }
    }
  });
  observer.observe(toolbar, { subtree: true, childList: true, attributeFilter: ['disabled'] });
  return observer;
}
