/** Links in the header of a run's output, and the fold with its ids and paths. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { IRunRecord } from '../protocol';

/** What a link does; those that are absent have no link. */
export interface IHeaderActions {
  log?(handle: string): void;
  files?(): void;
  model?(): void;
  mlflow?(handle: string): void;
  dashboard?(handle: string): void;
  copy(handle: string): void;
}

/** Links to the log, the files, the model, MLflow, the dashboard tab, and to copy the handle. */
export class HeaderLinks {
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _actions: IHeaderActions
  ) {
    this.node = document.createElement('nav');
    this.node.className = 'jp-AmlRun-links';
  }

  readonly node: HTMLElement;

  /**
   * @param trusted whether requests about the run are allowed: tabs find a kernel themselves
   * @param connected whether the output's kernel answers requests about the run
   */
  update(record: IRunRecord, trusted: boolean, connected: boolean): void {
    const { _actions: actions, _trans: trans } = this;
    const isRun = record.kind !== 'monitor' && record.handle !== '';
    const asks = isRun && trusted;
    const begun = asks && connected && record.state !== 'preparing' && record.state !== 'queued';
    const tracked = begun && record.tracking.run_id !== '';
    const hasModel = begun && record.models.length > 0;
    const links: [name: string, label: string, act: (() => void) | undefined][] = [
      ['log', trans.__('Log'), asks && actions.log ? () => actions.log?.(record.handle) : undefined],
      ['files', trans.__('Files'), begun ? actions.files : undefined],
      ['model', trans.__('Register model…'), hasModel ? actions.model : undefined],
      ['mlflow', trans.__('MLflow'), tracked && actions.mlflow ? () => actions.mlflow?.(record.handle) : undefined],
      ['dashboard', trans.__('Dashboard'), asks && actions.dashboard ? () => actions.dashboard?.(record.handle) : undefined],
      ['copy', trans.__('Copy handle'), isRun ? () => actions.copy(record.handle) : undefined]
    ];
    const shown = links.filter(([, , act]) => act !== undefined);
    const key = JSON.stringify([record.handle, shown.map(([name]) => name)]);
    if (key === this._key) {
      return;
    }
    this._key = key;
    this.node.setAttribute('aria-label', trans.__('Views of %1', record.name));
    this.node.hidden = shown.length === 0;
    this.node.replaceChildren(
      ...shown.map(([name, label, act]) => {
        const link = document.createElement('button');
        link.type = 'button';
        link.className = 'jp-AmlRun-link';
        link.dataset.link = name;
        link.textContent = label;
        link.addEventListener('click', () => act?.());
        return link;
      })
    );
  }

  private _key = '';
}

/** Fold with what identifies a run: its handle, target, files, and MLflow's record. */
export class DetailsFold {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = document.createElement('details');
    this.node.className = 'jp-AmlRun-details';
    const summary = document.createElement('summary');
    summary.textContent = _trans.__('Details');
    this.node.append(summary, this._list);
  }

  readonly node: HTMLDetailsElement;

  update(record: IRunRecord, tracking: string): void {
    const trans = this._trans;
    const rows: [name: string, text: string, label: string][] = [
      ['handle', record.handle, trans.__('Handle')],
      ['target', record.target, trans.__('Target')],
      ['experiment', record.kind === 'monitor' ? '' : record.experiment, trans.__('Experiment')],
      ['logPath', record.log.path, trans.__('Log file')],
      ['tracking', tracking, trans.__('MLflow')]
    ];
    const shown = rows.filter(([, text]) => text);
    const key = JSON.stringify(shown);
    if (key === this._key) {
      return;
    }
    this._key = key;
    this.node.hidden = shown.length === 0;
    this._list.replaceChildren(
      ...shown.flatMap(([name, text, label]) => {
        const term = document.createElement('dt');
        term.textContent = label;
        const value = document.createElement('dd');
        value.className = `jp-AmlRun-${name}`;
        value.textContent = text;
        return [term, value];
      })
    );
  }

  private readonly _list = document.createElement('dl');
  private _key = '';
}
