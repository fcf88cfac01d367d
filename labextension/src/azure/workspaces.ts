/** Azure ML workspaces: the list of connected ones, and the form that connects one. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon, LabIcon } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { againIcon, cloudIcon, linkIcon } from '../panel/icons';
import type { IPanelContext } from '../panel/tokens';
import type { IConnectReply, IWorkspaceRow } from '../protocol';
import { allow, button, element, say, sayLine } from '../sections/dom';
import { FieldForm } from '../sections/form';
import { connectFromCell } from '../sections/notebookEdits';
import { Checker } from '../sections/targetActions';
import { connectTitle } from './texts';
import { workspaceFacts, workspaceTitle } from '../sections/targetText';

/** Actions of a row. */
export interface IWorkspaceHost {
  readonly trans: TranslationBundle;
  /** Sign in again, list the computes of the workspace again, and make it the current one. */
  connect(name: string): void;
  disconnect(name: string): void;
}

export class WorkspaceList {
  constructor(private readonly _host: IWorkspaceHost) {
    const { trans } = _host;
    this._rows.setAttribute('role', 'list');
    this._rows.setAttribute('aria-label', trans.__('Azure ML workspaces'));
    this.node.append(element('h3', 'jp-AmlWorkspaces-title', trans.__('Azure ML workspaces')), this._rows);
    this.node.hidden = true;
  }

  readonly node = element('div', 'jp-AmlWorkspaces');

  /** Draw the rows; `disabledReason`: why actions on a workspace are disabled. */
  draw(rows: readonly IWorkspaceRow[], disabledReason: (name: string) => string): void {
    this.node.hidden = rows.length === 0;
    const focused = this._rows.contains(document.activeElement);
    for (const [name, view] of this._views) {
      if (!rows.some(row => row.name === name)) {
        view.node.remove();
        this._views.delete(name);
      }
    }
    rows.forEach((row, at) => {
      let view = this._views.get(row.name);
      if (!view) {
        this._views.set(row.name, (view = new WorkspaceView(this._host, row.name)));
      }
      view.update(row, disabledReason(row.name));
      if (this._rows.children[at] !== view.node) {
        this._rows.insertBefore(view.node, this._rows.children[at] ?? null);
      }
    });
    if (focused && !this._rows.contains(document.activeElement)) {
      this._rows.querySelector<HTMLElement>('button')?.focus({ preventScroll: true });
    }
  }

  private readonly _rows = element('div');
  private readonly _views = new Map<string, WorkspaceView>();
}

class WorkspaceView {
  constructor(host: IWorkspaceHost, name: string) {
    const { trans } = host;
    this._trans = trans;
    this.node.dataset.workspace = name;
    this.node.setAttribute('role', 'listitem');
    const icon = element('span', 'jp-AmlTarget-icon');
    icon.setAttribute('aria-hidden', 'true');
    cloudIcon.element({ container: icon });
    say(this._name, name);
    this._link.target = '_blank';
    this._link.rel = 'noopener noreferrer';
    this._link.title = trans.__('Open %1 in Azure ML studio', name);
    this._link.setAttribute('aria-label', this._link.title);
    linkIcon.element({ container: this._link });
    this._reconnect = act('again', againIcon, trans.__('Connect %1 again: sign in, refresh its computes, make it the current workspace', name), () =>
      host.connect(name)
    );
    this._off = act('disconnect', closeIcon, trans.__('Disconnect %1…', name), () => host.disconnect(name));
    const acts = element('span', 'jp-AmlWorkspace-acts', '', this._link, this._reconnect.node, this._off.node);
    this.node.append(element('div', 'jp-AmlTarget-head', '', icon, this._name, this._badge, acts), this._facts);
  }

  readonly node = element('div', 'jp-AmlWorkspace');

  update(row: IWorkspaceRow, disabledReason: string): void {
    this.node.classList.toggle('jp-mod-current', row.current);
    say(this._badge, row.current ? this._trans.__('current') : '');
    this._badge.hidden = !row.current;
    say(this._facts, workspaceFacts(row, this._trans).join(' · '));
    this._name.title = this._facts.title = workspaceTitle(row, this._trans);
    // Accept only HTTPS addresses from the service as links.
    const linked = row.studio_url.startsWith('https://');
    this._link.hidden = !linked;
    if (linked) {
      this._link.href = row.studio_url;
    }
    this._reconnect.allow(disabledReason);
    this._off.allow(disabledReason);
  }

  private readonly _trans: TranslationBundle;
  private readonly _name = element('span', 'jp-AmlTarget-name');
  private readonly _badge = element('span', 'jp-AmlTarget-badge');
  private readonly _facts = element('div', 'jp-AmlTarget-facts');
  private readonly _link = element('a', 'jp-AmlTarget-dismiss');
  private readonly _reconnect: IAct;
  private readonly _off: IAct;
}

interface IAct {
  readonly node: HTMLButtonElement;
  allow(disabledReason: string): void;
}

/** Create a small button with a tooltip for its action, or for the reason why it is disabled. */
function act(verb: string, icon: LabIcon, label: string, click: () => void): IAct {
  const node = element('button', 'jp-AmlTarget-dismiss');
  node.type = 'button';
  node.dataset.verb = verb;
  node.setAttribute('aria-label', label);
  icon.element({ container: node });
  node.addEventListener('click', () => {
    if (node.getAttribute('aria-disabled') !== 'true') {
      click();
    }
  });
  return {
    node,
    allow: disabledReason => {
      allow(node, disabledReason);
      node.title = disabledReason || label;
    }
  };
}

export class ConnectWorkspace extends Widget {
  constructor(private readonly _context: IPanelContext) {
    super();
    const { trans } = _context;
    this.addClass('jp-AmlNew');
    this.addClass('jp-AmlConnect');
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', connectTitle(trans));
    this._form = new FieldForm({ fields: [], trans });
    this._form.addClass('jp-AmlNew-form');
    this._checker = new Checker<IConnectReply>(() => _context.model.request('connect', { values: this._form.values() }));
    this._checker.answered.connect((_, reply) => this._checked(reply));
    this._checker.failed.connect((_, text) => this._form.setErrors({ '': text }));
    this._form.changed.connect(() => this._checker.soon());
    this._form.submitted.connect(() => void this._connect());
    this._form.canceled.connect(() => this._closed.emit());
    this._go = button(trans.__('Connect'), 'accept', () => void this._connect());
    const cancel = button(trans.__('Cancel'), 'reject', () => this._closed.emit());
    const lead = trans.__(
      'A config.json beside the notebook or in a folder above is found automatically (download it from the ' +
        "workspace's page in the portal). Without one, give subscription, " +
        'resource group and workspace.'
    );
    this._note.setAttribute('role', 'status');
    const foot = [this._note, this._preview, this._queued, element('div', 'jp-AmlForm-buttons', '', cancel, this._go)];
    this.node.append(
      element('h3', 'jp-AmlNew-title', connectTitle(trans)),
      element('div', 'jp-AmlForm-help', lead),
      this._form.node,
      element('div', 'jp-AmlNew-foot', '', ...foot)
    );
    this._preview.hidden = this._note.hidden = this._queued.hidden = true;
    say(this._queued, trans.__('The kernel is busy: the line is queued behind the running cell.'));
  }

  /** Emitted when the form is to be closed: after a cancellation, or when the line runs. */
  get closed(): ISignal<this, void> {
    return this._closed;
  }

  /** Request the fields from the kernel and show them. */
  async load(): Promise<void> {
    try {
      const { connect } = await this._context.model.kinds();
      if (!this.isDisposed) {
        this._form.setFields(connect);
        this._form.focus();
        await this._checker.now();
      }
    } catch (error) {
      this._form.setErrors({ '': error instanceof Error ? error.message : String(error) });
    }
  }

  /** Enable connecting, or disable it for a reason; an empty reason enables it. */
  enable(disabledReason: string): void {
    this._whyNot = disabledReason;
    this._queued.hidden = disabledReason !== '' || !this._context.model.connection.busy || this._writing;
    if (!this._writing) {
      allow(this._go, disabledReason);
    }
  }

  dispose(): void {
    this._checker.dispose();
    this._form.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  private _checked({ line, errors, note }: IConnectReply): void {
    this._form.setErrors(errors);
    const good = Object.keys(errors).length === 0;
    sayLine(this._preview, good ? line : '');
    this._preview.hidden = !good;
    say(this._note, note);
    this._note.hidden = note === '';
  }

  private async _connect(): Promise<void> {
    if (this._writing || this._go.getAttribute('aria-disabled') === 'true') {
      return;
    }
    this._writing = true;
    this._checker.cancel();
    allow(this._go, this._context.trans.__('Waiting for the kernel…'));
    let errors: Readonly<Record<string, string>>;
    try {
      errors = await connectFromCell(this._context, this._form.values());
    } catch (error) {
      errors = { '': error instanceof Error ? error.message : String(error) };
    }
    this._writing = false;
    if (this.isDisposed) {
      return;
    }
    this.enable(this._whyNot);
    if (Object.keys(errors).length === 0) {
      this._closed.emit();
    } else {
      this._form.setErrors(errors, true);
    }
  }

  private _writing = false;
  private _whyNot = '';
  private readonly _form: FieldForm;
  private readonly _checker: Checker<IConnectReply>;
  private readonly _go: HTMLButtonElement;
  private readonly _note = element('div', 'jp-AmlForm-help jp-AmlConnect-note');
  private readonly _preview = element('code', 'jp-AmlLine jp-AmlNew-preview');
  private readonly _queued = element('div', 'jp-AmlForm-help');
  private readonly _closed = new Signal<this, void>(this);
}
