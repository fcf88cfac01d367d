/** HTML of a job, which nobody trusts: no scripts, no styles outside its box, and nothing is loaded from anywhere. */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';

const TAGS = new Set(
  `a abbr b blockquote br caption center cite code col colgroup dd del details dfn div dl dt em figcaption figure h1 h2
  h3 h4 h5 h6 hr i img ins kbd li mark ol p pre progress q s samp small span strike strong sub summary sup table tbody td tfoot
  th thead tr tt u ul var wbr`.split(/\s+/)
);
const ATTRIBUTES = new Set('align alt border colspan dir height lang max open rowspan start title valign value width'.split(' '));
/** Properties that act within their element, and whose values load nothing. */
const STYLES = new Set(
  `background-color border border-bottom border-collapse border-color border-left border-radius border-right
  border-spacing border-style border-top border-width color font-family font-size font-style font-variant font-weight
  line-height max-width min-width padding padding-bottom padding-left padding-right padding-top text-align
  text-decoration text-indent text-transform vertical-align white-space width word-break word-wrap`.split(/\s+/)
);
const IMAGE_DATA = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;
const LINK = /^(?:https?:|mailto:|#)/i;
/** Elements that are removed with their content. */
const HIDDEN = 'script, style, title, template, noscript, iframe, object, embed, textarea, select, svg, math';

/** JupyterLab's sanitizer, and after it a stricter one: JupyterLab's allows images of other sites, forms, and any class. */
export class StrictSanitizer implements IRenderMime.ISanitizer {
  constructor(private readonly _first: IRenderMime.ISanitizer) {}

  readonly allowNamedProperties = false;
  readonly allowCommandLinker = false;

  getAutolink(): boolean {
    return false;
  }

  sanitize(dirty: string, options?: IRenderMime.ISanitizerOptions): string {
    // A document of its own loads no image and runs no script.
    const { body } = new DOMParser().parseFromString(this._first.sanitize(dirty, options), 'text/html');
    body.querySelectorAll(HIDDEN).forEach(node => node.remove());
    for (const node of Array.from(body.querySelectorAll('*'))) {
      if (TAGS.has(node.localName)) {
        clean(node as HTMLElement);
      } else {
        node.replaceWith(...Array.from(node.childNodes));
      }
    }
    // Of another site.
    body.querySelectorAll('img:not([src])').forEach(node => node.remove());
    return body.innerHTML;
  }
}

/** Keep only the attributes that are allowed. */
function clean(node: HTMLElement): void {
  const styles = Array.from(node.style ?? []).filter(name => STYLES.has(name) || STYLES.has(name.replace(/-(color|style|width)$/, '')));
  const kept = styles.map(name => [name, node.style.getPropertyValue(name)] as const).filter(([, value]) => !/url|image|expression/i.test(value));
  for (const { name, value } of Array.from(node.attributes)) {
    const isAllowed =
      ATTRIBUTES.has(name) ||
      (name === 'class' && value === 'dataframe') ||
      (name === 'href' && node.localName === 'a' && LINK.test(value)) ||
      (name === 'src' && node.localName === 'img' && IMAGE_DATA.test(value));
    if (!isAllowed) {
      node.removeAttribute(name);
    }
  }
  kept.forEach(([name, value]) => node.style.setProperty(name, value));
}
