/** The board of GPU charts: which of them are seen, and when they are drawn. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { DrawGate } from '../widgets/gate';
import { element } from './dom';
import { FieldPlot, HostPlot } from './gpu_charts';
import { HeatPlot } from './gpu_heat';
import { GpuList } from './gpu_list';
import { Colours, Plot } from './gpu_plot';
import type { GpuStore } from './gpu_store';

/** Draws a second, at most. */
const RATE = 2;

export class GpuBoard {
  /** Charts of `store` in the colours of `styled`; `drawing` is told of each draw, also of one without samples. */
  constructor(
    trans: TranslationBundle,
    private readonly _store: GpuStore,
    styled: HTMLElement,
    private readonly _seen: () => boolean,
    private readonly _drawing: () => void
  ) {
    const colours = new Colours(styled);
    this._util = new FieldPlot(trans, colours, trans.__('Utilization'), 'util');
    this._heat = new HeatPlot(trans, colours);
    this._memory = new FieldPlot(trans, colours, trans.__('Memory'), 'memory');
    this._cpu = new HostPlot(trans, colours, trans.__('Host CPU'), 'cpu');
    this._host = new HostPlot(trans, colours, trans.__('Host memory'), 'memory');
    this._list = new GpuList(trans);
    const host = element('div', 'jp-AmlGpus-host', '', this._cpu.node, this._host.node);
    this.node.append(this._util.node, this._heat.node, this._memory.node, this._list.node, host);

    this._gate = new DrawGate(() => this._frame(), _seen, () => RATE);
    this._size = new ResizeObserver(() => this.dirty());
    this._size.observe(this.node);
    this._theme = new MutationObserver(() => {
      colours.forget();
      this._plots.forEach(plot => plot.repaint());
      this.dirty();
    });
    this._theme.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name'] });
  }

  readonly node = element('div', 'jp-AmlGpus-charts');

  /** There is something new to draw. */
  dirty(): void {
    // Nothing is drawn for nobody, and nothing waits: what is shown again is drawn anew.
    if (this._seen()) {
      this._gate.dirty();
    }
  }

  dispose(): void {
    this._size.disconnect();
    this._theme.disconnect();
    this._gate.dispose();
    cancelAnimationFrame(this._request);
  }

  private get _plots(): Plot[] {
    return [this._util, this._heat, this._memory, this._cpu, this._host];
  }

  private _frame(): void {
    cancelAnimationFrame(this._request);
    this._request = requestAnimationFrame(() => this._paint());
  }

  private _paint(): void {
    const store = this._store;
    const any = store.length > 0 && store.count > 0;
    this.node.hidden = !store.length;
    this._drawing();
    if (!store.length || !this._seen()) {
      return;
    }
    performance.mark('jp-aml-gpus');
    const many = store.count > 1;
    const shown: [Plot, boolean][] = [
      [this._util, any && store.has('util')],
      [this._heat, many && store.has('util')],
      [this._memory, any && store.has('memory')],
      [this._cpu, store.has('cpu')],
      [this._host, store.has('host')]
    ];
    shown.forEach(([plot, on]) => (plot.node.hidden = !on));
    // Read all widths before anything is written: each look between two writes lays the page out anew.
    const widths = shown.map(([plot, on]) => (on ? Math.floor(plot.node.clientWidth) : 0));
    shown.forEach(([plot, on], i) => {
      if (on && widths[i]) {
        plot.paint(store, widths[i]);
      }
    });
    this._list.update(store);
    performance.measure('jp-aml-gpus', 'jp-aml-gpus');
    performance.clearMarks('jp-aml-gpus');
    performance.clearMeasures('jp-aml-gpus');
  }

  private readonly _util: FieldPlot;
  private readonly _heat: HeatPlot;
  private readonly _memory: FieldPlot;
  private readonly _cpu: HostPlot;
  private readonly _host: HostPlot;
  private readonly _list: GpuList;
  private readonly _gate: DrawGate;
  private readonly _size: ResizeObserver;
  private readonly _theme: MutationObserver;
  private _request = 0;
}
