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
export class DisplayView {
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
    const whole = this._whole && this._whole.version >= display.version ? this._whole : null;
    const forms = whole ?? display;
    const key = JSON.stringify([forms.data, forms.sizes]);
    if (key === this._key) {
      return;
    }
    this._key = key;
    this._draw(forms);
  }

  dispose(): void {
    this._display = null;
    this._widget?.dispose();
    this.node.remove();
  }

  private _requestWhole(display: IRunDisplay): void {
    const isKnown = this._whole !== null && this._whole.version >= display.version;
    if (!display.partial || isKnown || Date.now() < this._dueAt) {
      return;
    }
    const request = this._host.whole(display.number);
    if (!request) {
      return;
    }
    this._dueAt = Date.now() + RETRY_INTERVAL_MS;
    request.then(
      forms => {
        if (this._display) {
          this._whole = forms;
          this._dueAt = 0;
          this.update(this._display);
          this._changed();
        }
      },
      () => {
        // A kernel that does not know the run: the small copy stays.
      }
    );
  }

  private _draw({ data, sizes }: IForms): void {
    const { rendermime } = this._host;
    // What runs scripts of its data is not safe.
    const mime = preferredForm(data, name => rendermime?.getFactory(name)?.safe === true);
    this._form = mime;
    this._widget?.dispose();
    this._widget = null;
    this.node.replaceChildren();
    this.node.dataset.mime = mime;
    if (mime.startsWith('image/')) {
      this._image(imageUrl(imageData(mime, String(data[mime]))), sizes[mime] ?? {});
    } else if (mime === 'text/plain') {
      const body = document.createElement('div');
      body.className = 'jp-AmlRun-displayText';
      body.append(...drawn(String(data[mime])));
      this.node.append(body);
    } else if (mime && rendermime) {
      this._render(strict(rendermime), mime, data);
    }
  }

  private _image(url: string, size: Record<string, number>): void {
    const image = document.createElement('img');
    image.alt = this._display?.title || this._trans.__('Image that the script has displayed');
    if (size.width) {
      image.width = size.width;
    }
    if (size.width && size.height) {
      image.style.aspectRatio = `${size.width} / ${size.height}`;
    }
    image.addEventListener('load', () => this._changed());
    image.addEventListener('error', () => {
      if (this.node.contains(image)) {
        this._form = '';
        this._changed();
      }
    });
    image.src = url;
    this.node.append(image);
  }

  private _render(rendermime: IRenderMimeRegistry, mime: string, data: Record<string, unknown>): void {
    const widget: IRenderMime.IRenderer = rendermime.createRenderer(mime);
    this._widget = widget;
    this._host.attach(widget, this.node);
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

  private _display: IRunDisplay | null = null;
  private _whole: IForms | null = null;
  private _widget: Widget | null = null;
  private _key = '';
  private _form = '';
  private _dueAt = 0;
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
