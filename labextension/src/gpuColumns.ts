/** The table of GPU columns. Written by `python -m tools.gpu_columns_types`; do not edit. */

export type GpuColumnKind = 'tick' | 'figure' | 'slow';
export type GpuReducer = 'min' | 'mean' | 'max' | 'last' | 'sum';

/** One metric of a GPU; see `jupyter_amltrain/agent/telemetry/gpu_columns.py`. */
export interface IGpuColumn {
  readonly name: string;
  /** As a chart writes it: `%`, `MiB`, `W`... */
  readonly unit: string;
  readonly label: string;
  /** In each tick, every few seconds, or only when it changes: a slow value has no history. */
  readonly kind: GpuColumnKind;
  /** How a stretch of time becomes one number. `sum` is for shares of time: a chart shows their mean. */
  readonly reducer: GpuReducer;
  /** Ends of its scale; `null`: the scale follows the data. */
  readonly range: readonly [number, number | null];
}

/** Columns with a history. */
export type GpuSeriesName =
  | 'util'
  | 'peak'
  | 'memory'
  | 'power'
  | 'temperature'
  | 'sm_clock'
  | 'sm_activity'
  | 'sm_occupancy'
  | 'tensor_activity'
  | 'dram_bandwidth'
  | 'memory_busy'
  | 'pcie_rx'
  | 'pcie_tx'
  | 'nvlink_rx'
  | 'nvlink_tx'
  | 'throttled_power'
  | 'throttled_heat';

export const GPU_COLUMNS: readonly IGpuColumn[] = [
  {
    name: 'util',
    unit: '%',
    label: 'GPU utilization',
    kind: 'tick',
    reducer: 'mean',
    range: [0, 100]
  },
  {
    name: 'peak',
    unit: '%',
    label: 'GPU utilization, peak',
    kind: 'tick',
    reducer: 'max',
    range: [0, 100]
  },
  {
    name: 'memory',
    unit: 'MiB',
    label: 'GPU memory',
    kind: 'tick',
    reducer: 'max',
    range: [0, null]
  },
  {
    name: 'power',
    unit: 'W',
    label: 'GPU power',
    kind: 'tick',
    reducer: 'mean',
    range: [0, null]
  },
  {
    name: 'temperature',
    unit: '°C',
    label: 'Temperature',
    kind: 'tick',
    reducer: 'mean',
    range: [0, null]
  },
  {
    name: 'sm_clock',
    unit: 'MHz',
    label: 'SM clock',
    kind: 'tick',
    reducer: 'mean',
    range: [0, null]
  },
  {
    name: 'sm_activity',
    unit: '%',
    label: 'SM activity',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100]
  },
  {
    name: 'sm_occupancy',
    unit: '%',
    label: 'SM occupancy',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100]
  },
  {
    name: 'tensor_activity',
    unit: '%',
    label: 'Tensor core activity',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100]
  },
  {
    name: 'dram_bandwidth',
    unit: '%',
    label: 'DRAM bandwidth',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100]
  },
  {
    name: 'memory_busy',
    unit: '%',
    label: 'Memory controller busy',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100]
  },
  {
    name: 'pcie_rx',
    unit: 'MiB/s',
    label: 'PCIe to the GPU',
    kind: 'figure',
    reducer: 'mean',
    range: [0, null]
  },
  {
    name: 'pcie_tx',
    unit: 'MiB/s',
    label: 'PCIe from the GPU',
    kind: 'figure',
    reducer: 'mean',
    range: [0, null]
  },
  {
    name: 'nvlink_rx',
    unit: 'MiB/s',
    label: 'NVLink to the GPU',
    kind: 'figure',
    reducer: 'mean',
    range: [0, null]
  },
  {
    name: 'nvlink_tx',
    unit: 'MiB/s',
    label: 'NVLink from the GPU',
    kind: 'figure',
    reducer: 'mean',
    range: [0, null]
  },
  {
    name: 'throttled_power',
    unit: '%',
    label: 'Throttled by power',
    kind: 'figure',
    reducer: 'sum',
    range: [0, 100]
  },
  {
    name: 'throttled_heat',
    unit: '%',
    label: 'Throttled by heat',
    kind: 'figure',
    reducer: 'sum',
    range: [0, 100]
  },
  {
    name: 'mem_clock',
    unit: 'MHz',
    label: 'Memory clock',
    kind: 'slow',
    reducer: 'last',
    range: [0, null]
  },
  {
    name: 'throttle',
    unit: 'bits',
    label: 'Throttle reasons',
    kind: 'slow',
    reducer: 'last',
    range: [0, null]
  },
  {
    name: 'ecc',
    unit: 'errors',
    label: 'ECC errors',
    kind: 'slow',
    reducer: 'last',
    range: [0, null]
  },
  {
    name: 'power_limit',
    unit: 'W',
    label: 'Power limit',
    kind: 'slow',
    reducer: 'last',
    range: [0, null]
  },
  {
    name: 'mine',
    unit: 'MiB',
    label: 'Memory of the run',
    kind: 'slow',
    reducer: 'last',
    range: [0, null]
  },
  {
    name: 'others',
    unit: 'MiB',
    label: 'Memory of other processes',
    kind: 'slow',
    reducer: 'last',
    range: [0, null]
  }
];
