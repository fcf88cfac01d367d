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
