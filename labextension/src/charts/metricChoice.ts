/** How the metrics of a run are charted: by step or time, on a logarithmic axis, smoothed, and which of them. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';
import type { Row } from './scale';

/** Metrics that are charted unless others are chosen. */
export const MAX_SHOWN = 4;

/** The choice for one run, shared by all its outputs and tabs on the page. */
export class MetricChoice {
  /** Whether the x axis is time since the start instead of the step. */
  get byTime(): boolean {
    return this._byTime;
  }

  set byTime(on: boolean) {
    this._byTime = on;
    this._changed.emit();
  }

  get log(): boolean {
    return this._log;
  }

  set log(on: boolean) {
    this._log = on;
    this._changed.emit();
  }

  /** Weight of the past in the moving average, 0 (none) to below 1. */
  get smoothing(): number {
    return this._smoothing;
  }

  set smoothing(weight: number) {
    this._smoothing = Math.min(0.99, Math.max(0, weight));
    this._changed.emit();
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The metrics to chart, of `names` in their order. */
  shown(names: readonly string[]): string[] {
    const chosen = this._chosen;
    return chosen ? names.filter(name => chosen.has(name)) : names.slice(0, MAX_SHOWN);
  }

  /** Chart a metric or not. */
  choose(names: readonly string[], name: string, on: boolean): void {
    const chosen = new Set(this.shown(names));
    if (on) {
      chosen.add(name);
    } else {
      chosen.delete(name);
    }
    this._chosen = chosen;
    this._changed.emit();
  }

  private _byTime = false;
  private _log = false;
  private _smoothing = 0;
  private _chosen: Set<string> | null = null;
  private readonly _changed = new Signal<this, void>(this);
}

const choices = new Map<string, MetricChoice>();

/** The choice for a run. */
export function choiceOf(handle: string): MetricChoice {
  let choice = choices.get(handle);
  if (!choice) {
    choices.set(handle, (choice = new MetricChoice()));
  }
  return choice;
}

/** Exponential moving average without the bias of its start; gaps stay gaps. */
export function smooth(values: Row, weight: number): number[] {
  let mean = 0;
  let total = 0;
  return Array.from({ length: values.length }, (_, i) => {
    const value = values[i];
    if (value === null || !Number.isFinite(value)) {
      return NaN;
    }
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

/** Values as they are drawn: smoothed, and as powers of ten on a logarithmic axis. */
export function drawn(values: Row, { smoothing, log }: Pick<MetricChoice, 'smoothing' | 'log'>): number[] {
  const means = smoothing ? smooth(values, smoothing) : Array.from({ length: values.length }, (_, i) => values[i] ?? NaN);
  return log ? means.map(value => (value > 0 ? Math.log10(value) : NaN)) : means;
}

/** Controls of the choice. */
export class MetricBar {
  constructor(
    private readonly _choice: MetricChoice,
    private readonly _trans: TranslationBundle
  ) {
    this.node = document.createElement('div');
    this.node.className = 'jp-AmlRun-metricBar';
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', _trans.__('Charts of metrics'));
    this.node.hidden = true;
    this._axis = this._select(_trans.__('X axis'), [
      ['step', _trans.__('Step')],
      ['time', _trans.__('Time')]
    ]);
    this._axis.addEventListener('change', () => void (_choice.byTime = this._axis.value === 'time'));
    this._scale = this._select(_trans.__('Y axis'), [
      ['linear', _trans.__('Linear')],
      ['log', _trans.__('Logarithmic')]
    ]);
    this._scale.addEventListener('change', () => void (_choice.log = this._scale.value === 'log'));
    this._smoothing = this._select(
      _trans.__('Smoothing'),
      [0, 0.6, 0.9, 0.97].map(weight => [String(weight), weight ? _trans.__('Smoothing %1', weight) : _trans.__('Not smoothed')])
    );
    this._smoothing.addEventListener('change', () => void (_choice.smoothing = Number(this._smoothing.value)));
    this._list.className = 'jp-AmlRun-metricList';
    this._list.append(this._count, this._boxes);
    this.node.append(this._axis, this._scale, this._smoothing, this._list);
    _choice.changed.connect(this._draw, this);
    this._draw();
  }

  readonly node: HTMLElement;

  /** Set the names of the run's metrics that can be charted; without any, the bar is hidden. */
  update(names: readonly string[], hasCharts: boolean): void {
    this.node.hidden = !hasCharts;
    if (names.join('\n') !== this._names.join('\n')) {
      this._names = [...names];
      this._draw();
    }
  }

  dispose(): void {
    this._choice.changed.disconnect(this._draw, this);
  }

  private _draw(): void {
    const { _choice: choice, _names: names } = this;
    this._axis.value = choice.byTime ? 'time' : 'step';
    this._scale.value = choice.log ? 'log' : 'linear';
    this._smoothing.value = String(choice.smoothing);
    const shown = new Set(choice.shown(names));
    this._list.hidden = names.length <= MAX_SHOWN;
    this._count.textContent = this._trans.__('%1 of %2 metrics', shown.size, names.length);
    const old = [...this._boxes.querySelectorAll('input')].map(box => box.value);
    if (old.join('\n') !== names.join('\n')) {
      this._boxes.replaceChildren(...names.map(name => this._box(name)));
    }
    this._boxes.querySelectorAll('input').forEach(box => void (box.checked = shown.has(box.value)));
  }

  private _box(name: string): HTMLElement {
    const label = document.createElement('label');
    const box = document.createElement('input');
    box.type = 'checkbox';
    box.value = name;
    box.addEventListener('change', () => this._choice.choose(this._names, name, box.checked));
    label.append(box, name);
    return label;
  }

  private _select(label: string, options: readonly (readonly [value: string, text: string])[]): HTMLSelectElement {
    const select = document.createElement('select');
    select.className = 'jp-AmlRun-select';
    select.title = label;
    select.setAttribute('aria-label', label);
    for (const [value, text] of options) {
      const option = document.createElement('option');
      option.value = value;
      option.textContent = text;
      select.append(option);
    }
    return select;
  }

  private readonly _axis: HTMLSelectElement;
  private readonly _scale: HTMLSelectElement;
  private readonly _smoothing: HTMLSelectElement;
  private readonly _list = document.createElement('details');
  private readonly _count = document.createElement('summary');
  private readonly _boxes = document.createElement('div');
  private _names: string[] = [];
}
