/** Live values of the settings; the defaults where there is no registry (Notebook 7 without it, tests). */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ISignal, Signal } from '@lumino/signaling';
import type { IPanelSettings } from './tokens';

export class PanelSettings implements IPanelSettings {
  autoConnect = false;
  notifyEnded = true;
  notifyAttention = true;
  watchTarget = true;
  statusBarSeconds = 30;

  get changed(): ISignal<IPanelSettings, void> {
    return this._changed;
  }

  /** Follow them from now on. */
  follow(settings: ISettingRegistry.ISettings): void {
    const read = () => {
      const values = settings.composite as Record<string, unknown>;
      const flag = (name: string, other: boolean) => (typeof values[name] === 'boolean' ? (values[name] as boolean) : other);
      this.autoConnect = flag('autoConnect', false);
      this.notifyEnded = flag('notifyEnded', true);
      this.notifyAttention = flag('notifyAttention', true);
      this.watchTarget = flag('watchTarget', true);
      const seconds = values.statusBarSeconds;
      this.statusBarSeconds = typeof seconds === 'number' && seconds >= 0 ? seconds : 30;
      this._changed.emit();
    };
    read();
    settings.changed.connect(read);
  }

  private readonly _changed = new Signal<IPanelSettings, void>(this);
}
