/** Idle-GPU banner and end-of-run GPU summary. */

import { TranslationBundle } from '@jupyterlab/translation';
import { bytes, duration, number, percent } from '../format';
import { count, list, object, text } from '../untyped';
import { IRunRecord } from '../protocol';
import { gpuName } from '../record';
import { Column, gpuLabel, table } from './charts';

/** GPUs that are listed one by one. */
const MAX_LISTED = 16;
const MIB = 1024 * 1024;

function element(tag: string, name: string, content = ''): HTMLElement {
  const node = document.createElement(tag);
  if (name) {
    node.className = `jp-AmlRun-${name}`;
  }
  node.textContent = content;
  return node;
}

type Columns = Column<Record<string, unknown>>[];

export class VerdictView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = element('div', 'unused');
    this.node.hidden = true;
  }

  readonly node: HTMLElement;

  update(record: IRunRecord): void {
    const truth = record.truth;
    const unused = truth?.verdict === 'not used';
    const key = unused ? `${truth.detail}\n${truth.cause}\n${record.done}` : '';
    this.node.hidden = !unused;
    if (this._key === key) {
      return;
    }
    this._key = key;
    if (!unused) {
      this.node.replaceChildren();
      return;
    }
    // An alert is read out when it comes, and once.
    this.node.setAttribute('role', 'alert');
    this.node.replaceChildren(
      element(
        'strong',
        'unusedTitle',
        record.done ? this._trans.__('This run did not use its GPU') : this._trans.__('This run does not use its GPU')
      ),
      element('div', '', truth.detail),
      ...(truth.cause ? [element('div', 'unusedCause', this._trans.__('Likely cause: %1', truth.cause))] : [])
    );
  }

  private _key = '';
}

export class SummaryView {
  constructor(private readonly _trans: TranslationBundle) {
    this.node = element('div', 'summary');
    this.node.hidden = true;
  }

  readonly node: HTMLElement;

  update(record: IRunRecord): void {
    const key = JSON.stringify([record.summary, record.truth?.verdict]);
    if (this._key === key) {
      return;
    }
    this._key = key;
    const gpus = list(record.summary.gpus).map(object);
    const hint = text(record.summary.hint);
    const unknown = record.truth?.verdict === 'cannot tell' ? record.truth.detail : '';
    this.node.hidden = !gpus.length && !hint && !unknown;
    const parts: HTMLElement[] = [];
    if (gpus.length) {
      parts.push(this._table(gpus, record));
    }
    if (gpus.length > MAX_LISTED) {
      parts.push(element('div', 'gpuSource', this._trans.__('and %1 more', gpus.length - MAX_LISTED)));
    }
    if (hint) {
      parts.push(element('div', 'hint', hint));
    }
    if (unknown) {
      parts.push(element('div', 'gpuSource', this._trans.__('Cannot tell whether the GPU was used: %1', unknown)));
    }
    this.node.replaceChildren(...parts);
  }

  private _table(gpus: Record<string, unknown>[], record: IRunRecord): HTMLElement {
    const trans = this._trans;
    const na = trans.__('n/a');
    const put = (x: unknown, format: (value: number) => string): string => {
      const value = count(x);
      return value === null ? na : format(value);
    };
    const size = (value: number) => bytes(value * MIB);
    const several = new Set(gpus.map(gpu => count(gpu.node) ?? 0)).size > 1;
    const columns: Columns = [
      [
        trans.__('GPU'),
        gpu => {
          const [node, index] = [count(gpu.node) ?? 0, count(gpu.index) ?? 0];
          const label = record.gpu ? gpuLabel(record.gpu, node, index) : gpuName(index);
          return [several && !label.startsWith('n') ? `n${node}` : '', label.replace('GPU ', ''), text(gpu.name)].join(' ').trim();
        }
      ],
      [trans.__('utilization'), gpu => put(gpu.util_mean, percent)],
      [trans.__('median, 95th'), gpu => `${put(gpu.util_p50, percent)}, ${put(gpu.util_p95, percent)}`],
      ...(gpus.some(gpu => count(gpu.sm_activity_mean) !== null)
        ? ([[trans.__('SM activity'), gpu => put(gpu.sm_activity_mean, percent)]] as Columns)
        : []),
      [trans.__('idle'), gpu => put(gpu.idle_share, share => percent(100 * share))],
      [
        trans.__('memory peak'),
        gpu => {
          const peak = put(gpu.memory_peak, size);
          return count(gpu.memory_total) === null ? peak : trans.__('%1 of %2', peak, put(gpu.memory_total, size));
        }
      ],
      [trans.__('memory mean'), gpu => put(gpu.memory_mean, size)],
      [
        trans.__('energy'),
        gpu => {
          const energy = put(gpu.energy_wh, value => `${number(value)} Wh`);
          // Else it is the driver's counter, or a record of an earlier version.
          return text(gpu.energy_source) === 'power' ? trans.__('%1 (estimated from power samples)', energy) : energy;
        }
      ],
      [trans.__('power'), gpu => put(gpu.power_mean, value => `${Math.round(value)} W`)],
      [trans.__('first use after'), gpu => put(gpu.first_use, duration)],
      ...(gpus.some(gpu => (count(gpu.throttled_power_s) ?? 0) >= 0.5 || (count(gpu.throttled_heat_s) ?? 0) >= 0.5)
        ? ([
            [
              trans.__('throttled by power, heat'),
              gpu => `${put(gpu.throttled_power_s, duration)}, ${put(gpu.throttled_heat_s, duration)}`
            ]
          ] as Columns)
        : [])
    ];
    if (gpus.some(gpu => count(gpu.torch_reserved_peak) !== null)) {
      columns.push([
        trans.__('PyTorch peak'),
        gpu => trans.__('%1 allocated, %2 reserved', put(gpu.torch_allocated_peak, size), put(gpu.torch_reserved_peak, size))
      ]);
    }
    const errors = (gpu: Record<string, unknown>) => gpuErrors(gpu, trans);
    if (gpus.some(gpu => errors(gpu))) {
      columns.push([trans.__('errors'), errors]);
    }
    return table(columns, gpus.slice(0, MAX_LISTED));
  }

  private _key = '';
}

/** Xid numbers and memory errors of a GPU of a summary; empty for none. */
function gpuErrors(gpu: Record<string, unknown>, trans: TranslationBundle): string {
  const counted: [string, unknown][] = [
    [trans.__('uncorrectable memory errors: %1'), gpu.ecc_uncorrectable],
    [trans.__('correctable memory errors: %1'), gpu.ecc_correctable],
    [trans.__('replaced memory rows: %1'), gpu.rows_remapped],
    [trans.__('memory rows not replaced: %1'), gpu.remap_failures],
    [trans.__('retired memory pages: %1'), gpu.pages_retired]
  ];
  const xids = text(gpu.xids);
  return [
    ...(xids ? [trans.__('Xid %1', xids)] : []),
    ...counted.filter(([, n]) => count(n)).map(([words, n]) => words.replace('%1', number(count(n)!)))
  ].join(', ');
}
