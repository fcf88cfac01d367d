/** A value that a job's script has displayed, drawn by JupyterLab's renderers as an output that nobody trusts. */

import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Widget } from '@lumino/widgets';
import type { IRunDisplay } from '../protocol';
import { imageUrl } from '../record';
import { drawn } from '../terminalSpans';
import type { IForms } from './forms';
import { imageData, preferredForm } from './logItems';
import { StrictSanitizer } from './safeHtml';

/** Milliseconds until a display whose request failed is requested again. */
const RETRY_INTERVAL_MS = 10000;

/** What displays need of the output that shows them. */
export interface IDisplayHost {
  readonly rendermime: IRenderMimeRegistry | null;
  /** All forms of a display; null where requests are not allowed. */
  whole(number: number): Promise<IForms> | null;
  /** Put a widget into a node of the output; the widget leaves it when it is disposed of. */
  attach(widget: Widget, node: HTMLElement): void;
}

/** One display between the lines of a log. */
class DisplayView {
  /**
   * @param _changed called when it has other forms than those of the record, or another size
   */
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _host: IDisplayHost,
    private readonly _changed: () => void
  ) {
    this.node = document.createElement('div');
    this.node.className = 'jp-AmlRun-display';
    this.node.setAttribute('role', 'figure');
    this.node.setAttribute('aria-label', _trans.__('Output of the script'));
  }

  readonly node: HTMLElement;

  /** Whether it has a form that is drawn; without one its text stands in the log. */
  get isDrawn(): boolean {
    return this._form !== '';
  }

  update(display: IRunDisplay): void {
    this._display = display;
    this._requestWhole(display);
    // An older version stays until the newer one has come, instead of its small copy.
    const whole = this._whole && (this._whole.version >= display.version || this._isRequested) ? this._whole : null;
    const key = whole ? `whole ${whole.version}` : JSON.stringify([display.data, display.sizes]);
    if (key !== this._key) {
      this._key = key;
      this._draw(whole ?? display);
    }
  }

  dispose(): void {
    this._display = null;
    this._clear();
    this.node.remove();
  }

  private _requestWhole(display: IRunDisplay): void {
    const isKnown = this._whole !== null && this._whole.version >= display.version;
    if (!display.partial || isKnown || this._isRequested || Date.now() < this._retryAt) {
      return;
    }
    const request = this._host.whole(display.number);
    if (!request) {
      return;
    }
    this._isRequested = true;
    request
      .then(
        forms => {
          this._whole = forms;
          this._retryAt = forms.version < display.version ? Date.now() + RETRY_INTERVAL_MS : 0;
        },
        () => {
          // A kernel that does not know the run: the small copy stays.
          this._retryAt = Date.now() + RETRY_INTERVAL_MS;
        }
      )
      .finally(() => {
        this._isRequested = false;
        if (this._display) {
          this.update(this._display);
          this._changed();
        }
      });
  }

  private _draw({ data, sizes }: IForms): void {
    const { rendermime } = this._host;
    // What runs scripts of its data is not safe.
    const mime = preferredForm(data, name => rendermime?.getFactory(name)?.safe === true);
    const isSame = mime === this._form;
    this._form = mime;
    this.node.dataset.mime = mime;
    if (mime.startsWith('image/')) {
      this._drawImage(imageUrl(imageData(mime, String(data[mime]))), sizes[mime] ?? {});
    } else if (mime && mime !== 'text/plain' && rendermime) {
      // The same renderer draws the next version: a new one would have no height at first.
      this._render(isSame && this._widget ? this._widget : this._newRenderer(strict(rendermime), mime), mime, data);
    } else {
      this._clear();
      if (mime) {
        this.node.append(textNode(String(data[mime])));
      }
    }
  }

  private _drawImage(url: string, size: Record<string, number>): void {
    if (!this._image) {
      this._clear();
      this._image = this._newImage();
    }
    const image = this._image;
    image.alt = this._display?.title || this._trans.__('Image that the script has displayed');
    if (size.width) {
      image.width = size.width;
    } else {
      image.removeAttribute('width');
    }
    image.style.aspectRatio = size.width && size.height ? `${size.width} / ${size.height}` : '';
    image.src = url;
  }

  private _newImage(): HTMLImageElement {
    const image = document.createElement('img');
    image.addEventListener('load', () => this._changed());
    image.addEventListener('error', () => {
      if (this._image === image) {
        this._form = '';
        this._changed();
      }
    });
    this.node.append(image);
    return image;
  }

  private _newRenderer(rendermime: IRenderMimeRegistry, mime: string): IRenderMime.IRenderer {
    this._clear();
    const widget = rendermime.createRenderer(mime);
    this._widget = widget;
    this._host.attach(widget, this.node);
    return widget;
  }

  private _render(widget: IRenderMime.IRenderer, mime: string, data: Record<string, unknown>): void {
    const model = new MimeModel({ data: { [mime]: data[mime] } as any, trusted: false });
    widget.renderModel(model).then(
      () => this._changed(),
      () => {
        // The renderer of another extension: the text says what it was.
        if (this._widget === widget) {
          this._form = '';
          this._changed();
        }
      }
    );
  }

  private _clear(): void {
    this._widget?.dispose();
    this._widget = this._image = null;
    this.node.replaceChildren();
  }

  private _display: IRunDisplay | null = null;
  private _whole: IForms | null = null;
  private _isRequested = false;
  private _retryAt = 0;
  private _widget: IRenderMime.IRenderer | null = null;
  private _image: HTMLImageElement | null = null;
  private _key = '';
  private _form = '';
}

/** The displays of one record; those that stay keep their elements. */
export class DisplayViews {
  /**
   * @param _changed called when a display has other forms, or another size
   */
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _host: IDisplayHost,
    private readonly _changed: () => void
  ) {}

  /** Update the displays; return those that have a form that is drawn. */
  update(displays: readonly IRunDisplay[]): IRunDisplay[] {
    const numbers = new Set(displays.map(({ number }) => number));
    this._views.forEach((view, number) => {
      if (!numbers.has(number)) {
        view.dispose();
        this._views.delete(number);
      }
    });
    return displays.filter(display => {
      let view = this._views.get(display.number);
      if (!view) {
        view = new DisplayView(this._trans, this._host, this._changed);
        this._views.set(display.number, view);
      }
      view.update(display);
      return view.isDrawn;
    });
  }

  has(number: number): boolean {
    return this._views.has(number);
  }

  /** The node of a display that `update` has returned. */
  node(number: number): HTMLElement {
    return (this._views.get(number) as DisplayView).node;
  }

  private readonly _views = new Map<number, DisplayView>();
}

function textNode(text: string): HTMLElement {
  const node = document.createElement('div');
  node.className = 'jp-AmlRun-displayText';
  node.append(...drawn(text));
  return node;
}

const registries = new WeakMap<IRenderMimeRegistry, IRenderMimeRegistry>();

/** JupyterLab's renderers, for data that nobody trusts. */
function strict(rendermime: IRenderMimeRegistry): IRenderMimeRegistry {
  let own = registries.get(rendermime);
  if (!own) {
    own = rendermime.clone({ sanitizer: new StrictSanitizer(rendermime.sanitizer) });
    registries.set(rendermime, own);
  }
  return own;
}
