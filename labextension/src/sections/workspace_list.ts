/** The connected Azure ML workspaces, below the targets: who is signed in where, and what can be done about it. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { LabIcon, closeIcon } from '@jupyterlab/ui-components';
import { againIcon, linkIcon } from '../panel/icons';
import type { IWorkspaceRow } from '../protocol';
import { cloudIcon } from './compute_icons';
import { allow, element, say } from './dom';
import { workspaceFacts, workspaceTitle } from './workspace_text';

/** What a row asks for. */
export interface IWorkspaceHost {
  readonly trans: TranslationBundle;
  /** Sign in again, look for computes anew, and make it the current one. */
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

  /** Draw them; `whyNot`: why nothing can be done with one. */
  draw(rows: readonly IWorkspaceRow[], whyNot: (name: string) => string): void {
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
      view.update(row, whyNot(row.name));
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
    this._again = act('again', againIcon, trans.__('Connect %1 again: sign in, look for its computes, make it the current one', name), () =>
      host.connect(name)
    );
    this._off = act('disconnect', closeIcon, trans.__('Disconnect %1…', name), () => host.disconnect(name));
    const acts = element('span', 'jp-AmlWorkspace-acts', '', this._link, this._again.node, this._off.node);
    this.node.append(element('div', 'jp-AmlTarget-head', '', icon, this._name, this._badge, acts), this._facts);
  }

  readonly node = element('div', 'jp-AmlWorkspace');

  update(row: IWorkspaceRow, whyNot: string): void {
    this.node.classList.toggle('jp-mod-current', row.current);
    say(this._badge, row.current ? this._trans.__('current') : '');
    this._badge.hidden = !row.current;
    say(this._facts, workspaceFacts(row, this._trans).join(' · '));
    this._name.title = this._facts.title = workspaceTitle(row, this._trans);
    // Of the service's words only an address of its own kind is one.
    const linked = row.studio_url.startsWith('https://');
    this._link.hidden = !linked;
    if (linked) {
      this._link.href = row.studio_url;
    }
    this._again.allow(whyNot);
    this._off.allow(whyNot);
  }

  private readonly _trans: TranslationBundle;
  private readonly _name = element('span', 'jp-AmlTarget-name');
  private readonly _badge = element('span', 'jp-AmlTarget-badge');
  private readonly _facts = element('div', 'jp-AmlTarget-facts');
  private readonly _link = element('a', 'jp-AmlTarget-dismiss');
  private readonly _again: IAct;
  private readonly _off: IAct;
}

interface IAct {
  readonly node: HTMLButtonElement;
  allow(whyNot: string): void;
}

/** A small button that says what it does, or why it cannot be pressed. */
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
    allow: whyNot => {
      allow(node, whyNot);
      node.title = whyNot || label;
    }
  };
}
