/** Drop-down list of runs and targets for the GPUs section. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { element } from './dom';
import { caret } from './controls';
import type { IOption } from './gpuSource';

export class GpuSelect {
  constructor(
    private readonly _trans: TranslationBundle,
    choose: (chosen: string) => void
  ) {
    this._select.setAttribute('aria-label', _trans.__('Show resources of'));
    this._select.addEventListener('change', () => choose(this._select.value));
    this.node = element('div', 'jp-select-wrapper jp-AmlGpus-choose', '', this._select, caret());
  }

  readonly node: HTMLElement;

  focus(): void {
    this._select.focus();
  }

  draw(found: readonly IOption[], chosen: string): void {
    const trans = this._trans;
    const texts = found.map(({ kind, name }) =>
      kind === 'in use' ? trans.__('%1 (in use)', name) : kind === 'target' ? trans.__('%1 (target)', name) : name
    );
    const key = JSON.stringify([found, texts]);
    // Leave an unchanged list alone, because it may be open.
    if (key !== this._key) {
      this._key = key;
      const groups = new Map<string, HTMLOptGroupElement>();
      found.forEach(({ kind, value }, i) => {
        const label =
          kind === 'running' ? trans.__('Running') : kind === 'run' ? trans.__('Selected run') : trans.__('Target');
        let group = groups.get(label);
        if (!group) {
          groups.set(label, (group = element('optgroup')));
          group.label = label;
        }
        const option = element('option', '', texts[i]);
        option.value = value;
        group.append(option);
      });
      this._select.replaceChildren(...groups.values());
    }
    this._select.value = chosen;
    this.node.hidden = !found.length;
  }

  private readonly _select = element('select', 'jp-AmlGpus-source jp-mod-styled');
  private _key = '';
}
