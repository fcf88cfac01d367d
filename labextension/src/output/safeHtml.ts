/** HTML of a job, which nobody trusts: no scripts, no styles outside its box, and nothing is loaded from anywhere. */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';

const TAGS = new Set(
  `a abbr b blockquote br caption center cite code col colgroup dd del details dfn div dl dt em figcaption figure h1 h2
  h3 h4 h5 h6 hr i img ins kbd li mark ol p pre progress q s samp small span strike strong sub summary sup table tbody td tfoot
  th thead tr tt u ul var wbr`.split(/\s+/)
);
const ATTRIBUTES = new Set('align alt border colspan dir height lang max open rowspan start title valign value width'.split(' '));
/** Properties that act within their element, and whose values load nothing; the kernel has the same list, without longhands. */
const STYLES = new Set(
  `align-items background-color background-image border-bottom-color border-bottom-left-radius border-bottom-right-radius
  border-bottom-style border-bottom-width border-collapse border-left-color border-left-style border-left-width
  border-right-color border-right-style border-right-width border-spacing border-top-color border-top-left-radius
  border-top-right-radius border-top-style border-top-width caption-side clear color column-gap display flex-basis
  flex-direction flex-grow flex-shrink flex-wrap float font-family font-size font-style font-variant font-variant-caps
  font-weight grid-template-columns height justify-content letter-spacing line-height margin-bottom margin-left
  margin-right margin-top max-height max-width min-height min-width opacity overflow-wrap overflow-x overflow-y
  padding-bottom padding-left padding-right padding-top row-gap table-layout text-align text-decoration
  text-decoration-color text-decoration-line text-decoration-style text-decoration-thickness text-indent text-overflow
  text-transform text-wrap-mode vertical-align visibility white-space white-space-collapse width word-break
  -webkit-border-horizontal-spacing -webkit-border-vertical-spacing`.split(/\s+/)
);
/** Functions in values of these properties, none of which loads a file. */
const FUNCTIONS = new Set('calc hsl hsla linear-gradient max min minmax repeat rgb rgba'.split(' '));
const IMAGE_DATA = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;
const FAR = /^https?:/i;
const LINK = /^(?:https?:|mailto:|#)/i;
/** Elements that are removed with their content. */
const HIDDEN = 'script, style, title, template, noscript, iframe, object, embed, audio, video, textarea, select, svg, math';

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
      if (node.localName === 'img' && FAR.test(node.getAttribute('src') ?? '')) {
        node.replaceWith(farImage(node));
      } else if (TAGS.has(node.localName)) {
        clean(node as HTMLElement);
      } else {
        node.replaceWith(...Array.from(node.childNodes));
      }
    }
    body.querySelectorAll('img:not([src])').forEach(node => node.remove());
    return body.innerHTML;
  }
}

/** A link in place of an image of another site. */
function farImage(image: Element): HTMLElement {
  const link = document.createElement('a');
  link.href = image.getAttribute('src') as string;
  link.textContent = image.getAttribute('alt') || link.href;
  return link;
}

function loadsNothing(value: string): boolean {
  const functions = value.match(/[\w-]+(?=\()/g) ?? [];
  return !value.includes('\\') && functions.every(name => FUNCTIONS.has(name.toLowerCase()));
}

/** Keep only the attributes that are allowed. */
function clean(node: HTMLElement): void {
  const kept = Array.from(node.style ?? [])
    .filter(name => STYLES.has(name))
    .map(name => [name, node.style.getPropertyValue(name)] as const)
    .filter(([, value]) => loadsNothing(value));
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
