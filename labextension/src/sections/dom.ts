/** Elements in one call. Text is only ever set as text. */

/** An element with a class, a text and children. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = '',
  text = '',
  ...children: Node[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) {
    made.className = className;
  }
  if (text) {
    made.textContent = text;
  }
  made.append(...children);
  return made;
}

/** A button in the styles of JupyterLab: `accept`, `warn` or `reject`. */
export function button(label: string, look: 'accept' | 'warn' | 'reject', click: () => void): HTMLButtonElement {
  const made = element('button', `jp-AmlButton jp-mod-styled jp-mod-${look}`, label);
  made.type = 'button';
  made.addEventListener('click', () => {
    // A button that explains why it cannot be pressed stays in the tab order.
    if (made.getAttribute('aria-disabled') !== 'true') {
      click();
    }
  });
  return made;
}

/** Let a button be pressed, or say why not. */
export function allow(button: HTMLButtonElement, whyNot: string): void {
  button.title = whyNot;
  if (whyNot) {
    button.setAttribute('aria-disabled', 'true');
    button.setAttribute('aria-description', whyNot);
  } else {
    button.removeAttribute('aria-disabled');
    button.removeAttribute('aria-description');
  }
}

/** Set a text only when it differs, so that nothing is announced or selected anew. */
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
