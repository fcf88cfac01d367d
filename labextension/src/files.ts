/** Files that a run has written: a list with downloads, and models to register. Names come from a job: never HTML. */

import { InputDialog, Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ago, bytes, duration } from './format';
import { messageOf } from './kernel/client';
import type { IFilesReply, IRunFile } from './protocol';

/** Requests about the files of one run; they reject with a sentence for the user. */
export interface IFileRequests {
  list(): Promise<IFilesReply>;
  /** Base64 of a part of a file; empty at its end. */
  read(path: string, offset: number): Promise<string>;
  /** Register a model; the sentence about it, or empty if it comes later. */
  register(name: string, path: string): Promise<string>;
}

/** A larger file does not fit into the memory of a page. */
const MAX_DOWNLOAD_BYTES = 1 << 30;

function element<K extends keyof HTMLElementTagNameMap>(tag: K, name: string, parent?: HTMLElement): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = `jp-AmlFiles-${name}`;
  parent?.append(node);
  return node;
}

function link(parent: HTMLElement, label: string, name: string, act: () => void): HTMLButtonElement {
  const button = element('button', 'link', parent);
  button.type = 'button';
  button.classList.add('jp-AmlRun-link');
  button.textContent = label;
  button.setAttribute('aria-label', name);
  button.addEventListener('click', act);
  return button;
}

/** Ask for a name and register a model of a run under it. */
export async function registerModel(
  trans: TranslationBundle,
  requests: Pick<IFileRequests, 'register'>,
  paths: readonly string[],
  suggested: string
): Promise<void> {
  let [path] = paths;
  if (paths.length > 1) {
    const chosen = await InputDialog.getItem({ title: trans.__('Register which model?'), items: [...paths], okLabel: trans.__('Next') });
    if (!chosen.button.accept || !chosen.value) {
      return;
    }
    path = chosen.value;
  }
  const named = await InputDialog.getText({
    title: trans.__('Register %1', path),
    label: trans.__('Name of the model; an existing model gets a new version'),
    text: suggested,
    okLabel: trans.__('Register')
  });
  const name = named.value?.trim();
  if (!named.button.accept || !name) {
    return;
  }
  const shown = Notification.emit(trans.__('Registering %1…', name), 'in-progress', { autoClose: 5000 });
  try {
    const message = await requests.register(name, path);
    if (message) {
      Notification.update({ id: shown, message, type: 'success', autoClose: 8000 });
    }
  } catch (error) {
    Notification.update({ id: shown, message: messageOf(error), type: 'error', autoClose: false });
  }
}

/** The list of a run's files; hidden until it is opened. */
export class FilesList {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _requests: IFileRequests
  ) {
    this.node = document.createElement('section');
    this.node.className = 'jp-AmlFiles';
    this.node.setAttribute('aria-label', _trans.__('Files'));
    this.node.hidden = true;
  }

  readonly node: HTMLElement;

  /** Show the files as they are now, or hide them. */
  async toggle(): Promise<void> {
    this.node.hidden = !this.node.hidden;
    if (this.node.hidden) {
      return;
    }
    this._say(this._trans.__('Reading the list of files…'));
    try {
      this._draw(await this._requests.list());
    } catch (error) {
      this._say(messageOf(error));
    }
  }

  /** Take the list away: another run is shown. */
  hide(): void {
    this.node.hidden = true;
    this.node.replaceChildren();
  }

  private _say(text: string): void {
    const status = element('div', 'status');
    status.setAttribute('role', 'status');
    status.textContent = text;
    this.node.replaceChildren(status);
  }

  private _draw({ files, hidden, folder }: IFilesReply): void {
    const trans = this._trans;
    if (!files.length) {
      this._say(trans.__('This run has written no files. Write to the folder in AML_OUTPUT_DIR to keep files.'));
      return;
    }
    const table = element('table', 'table');
    table.setAttribute('aria-label', trans.__('Files'));
    const body = table.createTBody();
    for (const file of files) {
      this._row(body.insertRow(), file);
    }
    const where = element('div', 'folder');
    const more = hidden ? `${trans._n('and %1 more', 'and %1 more', hidden)}. ` : '';
    where.textContent = more + trans.__('They are in %1', folder);
    this.node.replaceChildren(table, where);
    this.node.scrollIntoView({ block: 'nearest' });
  }

  private _row(row: HTMLTableRowElement, file: IRunFile): void {
    const cell = (name: string, text: string) => {
      const created = row.insertCell();
      created.className = `jp-AmlFiles-${name}`;
      created.textContent = text;
      return created;
    };
    cell('path', file.path).title = file.path;
    cell('size', bytes(file.size));
    cell('age', this._trans.__('%1 ago', ago(Date.now() / 1000 - file.modified)));
    const actions = cell('actions', '');
    const label = this._trans.__('Download');
    const button = link(actions, label, this._trans.__('Download %1', file.path), () => {
      const running = this._downloads.get(file.path);
      if (running) {
        running.abort();
      } else {
        void this._download(file, button, label);
      }
    });
  }

  /** Read a file in parts; the button shows how far it is, and stops it. */
  private async _download(file: IRunFile, button: HTMLButtonElement, label: string): Promise<void> {
    const trans = this._trans;
    if (file.size > MAX_DOWNLOAD_BYTES) {
      Notification.error(trans.__('%1 is too large to download here (%2).', file.path, bytes(file.size)), { autoClose: 8000 });
      return;
    }
    const stop = new AbortController();
    this._downloads.set(file.path, stop);
    const parts: Uint8Array[] = [];
    let size = 0;
    const begun = Date.now();
    try {
      while (!stop.signal.aborted) {
        // What is appended while it is read does not count: such a download might never end.
        const data = size && size >= file.size ? '' : await this._requests.read(file.path, size);
        if (!data) {
          save(parts, file.path.split('/').pop() || 'file');
          break;
        }
        const part = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
        parts.push(part);
        size += part.length;
        button.textContent = trans.__('Stop (%1 of %2)', bytes(size), bytes(Math.max(file.size, size)));
        const rate = (1000 * size) / Math.max(1, Date.now() - begun);
        button.title = trans.__('%1/s, %2 left', bytes(rate), duration(Math.max(0, file.size - size) / rate));
      }
    } catch (error) {
      Notification.error(messageOf(error), { autoClose: 8000 });
    } finally {
      this._downloads.delete(file.path);
      button.textContent = label;
      button.removeAttribute('title');
    }
  }

  private readonly _downloads = new Map<string, AbortController>();
}

function save(parts: Uint8Array[], name: string): void {
  // A type that no browser displays: the file comes from a job.
  const address = URL.createObjectURL(new Blob(parts, { type: 'application/octet-stream' }));
  const anchor = document.createElement('a');
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}
