/** Pictures of a run: a row of thumbnails, and a dialog with the whole picture. They come from a job: never trusted. */

import { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { caretLeftIcon, caretRightIcon, imageIcon, LabIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';
import { bytes } from './format';
import type { IPictureReply, IRunPicture } from './protocol';
import { imageUrl } from './record';

/** Read one picture as a `data:` URL; rejects with a sentence for the user. */
export type ReadPicture = (path: string) => Promise<string>;

/** Maximum number of replies for one picture. */
const MAX_PARTS = 64;

/** Read a whole picture in parts. */
export async function readPicture(request: (offset: number) => Promise<IPictureReply>): Promise<string> {
  const parts: string[] = [];
  let offset = 0;
  let reply: IPictureReply;
  do {
    reply = await request(offset);
    parts.push(reply.data);
    offset += Math.floor((reply.data.length * 3) / 4) - (reply.data.match(/=*$/)?.[0].length ?? 0);
  } while (reply.data && offset < reply.bytes && parts.length < MAX_PARTS);
  return imageUrl(`data:${reply.mime};base64,${parts.join('')}`);
}

/** What a screen reader says about a picture: its title, else its name. */
function caption(shown: IRunPicture): string {
  return shown.title && shown.kind === 'figure' ? shown.title : shown.name;
}

function element<K extends keyof HTMLElementTagNameMap>(tag: K, name: string, parent?: HTMLElement) {
  const node = document.createElement(tag);
  node.className = `jp-AmlPictures-${name}`;
  parent?.append(node);
  return node;
}

/** A row of thumbnails; each opens the whole picture. */
export class PicturesRow {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _read: ReadPicture
  ) {
    this.node = document.createElement('div');
    this.node.className = 'jp-AmlPictures';
    this.node.hidden = true;
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', _trans.__('Figures'));
    this._list = element('ul', 'list', this.node);
    this._more = element('div', 'more', this.node);
  }

  readonly node: HTMLElement;

  /** Redraw; pictures that stay keep their elements, so that focus is kept. */
  update(shown: readonly IRunPicture[], hidden = 0): void {
    const key = JSON.stringify([shown, hidden]);
    if (key === this._key) {
      return;
    }
    this._key = key;
    this._shown = shown;
    this.node.hidden = !shown.length;
    const old = this._items;
    this._items = new Map();
    shown.forEach((one, at) => {
      const id = JSON.stringify(one);
      const item = old.get(id) ?? this._item(one);
      this._items.set(id, item);
      if (this._list.children[at] !== item) {
        this._list.insertBefore(item, this._list.children[at] ?? null);
      }
    });
    while (this._list.children.length > shown.length) {
      this._list.lastElementChild?.remove();
    }
    this._more.textContent = hidden ? this._trans._n('%1 earlier picture', '%1 earlier pictures', hidden) : '';
    this._more.hidden = !hidden;
  }

  private _item(one: IRunPicture): HTMLElement {
    const item = element('li', 'item');
    const open = element('button', 'open', item);
    open.type = 'button';
    open.title = one.name;
    open.setAttribute('aria-label', this._trans.__('Open %1', caption(one)));
    if (one.thumbnail) {
      const image = element('img', 'thumbnail', open);
      image.src = one.thumbnail;
      image.alt = caption(one);
      if (one.width && one.height) {
        // The row has its height before the image is decoded.
        image.style.aspectRatio = `${one.width} / ${one.height}`;
      }
    } else {
      imageIcon.element({ container: element('span', 'icon', open), width: '24px', height: '24px' });
    }
    element('span', 'name', open).textContent = one.name;
    open.addEventListener('click', () => {
      const at = this._shown.findIndex(other => other.path === one.path);
      void openPicture(this._trans, this._shown, Math.max(0, at), this._read);
    });
    return item;
  }

  private readonly _list: HTMLElement;
  private readonly _more: HTMLElement;
  private _items = new Map<string, HTMLElement>();
  private _shown: readonly IRunPicture[] = [];
  private _key = '[[],0]';
}

/** The whole picture, its neighbors by the arrow keys, and its file. */
class PictureBody extends Widget {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _pictures: readonly IRunPicture[],
    private _at: number,
    private readonly _read: ReadPicture
  ) {
    super();
    this.addClass('jp-AmlPictureDialog-body');
    const bar = element('div', 'bar', this.node);
    this._back = this._arrow(bar, caretLeftIcon, _trans.__('Previous picture'), -1);
    this._name = element('strong', 'title', bar);
    this._name.setAttribute('role', 'status');
    this._next = this._arrow(bar, caretRightIcon, _trans.__('Next picture'), 1);
    this._frame = element('div', 'frame', this.node);
    this._image = element('img', 'full', this._frame);
    this._facts = element('div', 'facts', this.node);
    this._error = element('div', 'error', this.node);
    this._error.setAttribute('role', 'alert');
    void this._show();
  }

  handleEvent(event: Event): void {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[(event as KeyboardEvent).key];
    if (step) {
      event.preventDefault();
      event.stopPropagation();
      this._step(step);
    }
  }

  protected onAfterAttach(): void {
    document.addEventListener('keydown', this, true);
  }

  protected onBeforeDetach(): void {
    document.removeEventListener('keydown', this, true);
  }

  private _arrow(parent: HTMLElement, icon: LabIcon, label: string, step: number): HTMLButtonElement {
    const created = element('button', 'arrow', parent);
    created.type = 'button';
    created.title = label;
    created.setAttribute('aria-label', label);
    created.hidden = this._pictures.length < 2;
    icon.element({ container: created, width: '20px', height: '20px', margin: '0' });
    created.addEventListener('click', () => this._step(step));
    return created;
  }

  private _step(step: number): void {
    const at = this._at + step;
    if (at >= 0 && at < this._pictures.length) {
      this._at = at;
      void this._show();
    }
  }

  private async _show(): Promise<void> {
    const at = this._at;
    const shown = this._pictures[at];
    const trans = this._trans;
    this._back.disabled = at === 0;
    this._next.disabled = at === this._pictures.length - 1;
    this._name.textContent = shown.name;
    this._image.alt = caption(shown);
    this._image.src = shown.thumbnail || EMPTY;
    this._image.classList.toggle('jp-mod-loading', true);
    this._image.style.width = shown.width ? `${shown.width}px` : '';
    this._error.textContent = '';
    const size = shown.width ? trans.__('%1 × %2 pixels, %3', shown.width, shown.height, bytes(shown.bytes)) : bytes(shown.bytes);
    this._facts.textContent = `${size} · ${shown.path}`;
    try {
      const url = await this._read(shown.path);
      if (this._at !== at || this.isDisposed) {
        return;
      }
      this._image.src = url || this._image.src;
      const save = element('a', 'download');
      save.textContent = trans.__('Download');
      save.href = url;
      save.download = shown.path.split('/').pop() ?? 'picture';
      this._facts.append(' · ', save);
    } catch (error) {
      if (this._at === at) {
        this._error.textContent = error instanceof Error ? error.message : String(error);
      }
    }
    if (this._at === at) {
      this._image.classList.remove('jp-mod-loading');
    }
  }

  private readonly _back: HTMLButtonElement;
  private readonly _next: HTMLButtonElement;
  private readonly _name: HTMLElement;
  private readonly _frame: HTMLElement;
  private readonly _image: HTMLImageElement;
  private readonly _facts: HTMLElement;
  private readonly _error: HTMLElement;
}

const EMPTY = 'data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==';

/** Show a picture in a dialog. */
export async function openPicture(
  trans: TranslationBundle,
  shown: readonly IRunPicture[],
  at: number,
  read: ReadPicture
): Promise<void> {
  const dialog = new Dialog({
    body: new PictureBody(trans, shown, at, read),
    buttons: [Dialog.okButton({ label: trans.__('Close') })],
    focusNodeSelector: '.jp-mod-accept'
  });
  dialog.addClass('jp-AmlPictureDialog');
  await dialog.launch();
}
