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
  /** View of the dashboard with a chart of it, and the chart's title; empty: no chart of its own. */
  readonly view: string;
  readonly chart: string;
  /** Column in whose chart it is a thin second line, and what follows the GPU's name in the legend. */
  readonly beside: string;
  readonly legend: string;
  /** Heading in the dashboard's table, and what it means. */
  readonly heading: string;
  readonly meaning: string;
}

/** A view of the dashboard. */
export interface IGpuView {
  readonly name: string;
  readonly label: string;
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
    range: [0, 100],
    view: 'use',
    chart: 'GPU utilization (%)',
    beside: '',
    legend: '',
    heading: 'utilization',
    meaning: 'Share of the time in which any kernel ran. One small kernel makes it 100 %.'
  },
  {
    name: 'peak',
    unit: '%',
    label: 'GPU utilization, peak',
    kind: 'tick',
    reducer: 'max',
    range: [0, 100],
    view: '',
    chart: '',
    beside: 'util',
    legend: ' peak',
    heading: '',
    meaning: ''
  },
  {
    name: 'memory',
    unit: 'MiB',
    label: 'GPU memory',
    kind: 'tick',
    reducer: 'max',
    range: [0, null],
    view: 'use',
    chart: 'GPU memory',
    beside: '',
    legend: '',
    heading: 'memory',
    meaning: ''
  },
  {
    name: 'power',
    unit: 'W',
    label: 'GPU power',
    kind: 'tick',
    reducer: 'mean',
    range: [0, null],
    view: 'use',
    chart: 'GPU power (W)',
    beside: '',
    legend: '',
    heading: 'power',
    meaning: ''
  },
  {
    name: 'temperature',
    unit: '°C',
    label: 'Temperature',
    kind: 'tick',
    reducer: 'mean',
    range: [0, null],
    view: 'clocks',
    chart: 'Temperature (°C)',
    beside: '',
    legend: '',
    heading: 'temperature',
    meaning: ''
  },
  {
    name: 'sm_clock',
    unit: 'MHz',
    label: 'SM clock',
    kind: 'tick',
    reducer: 'mean',
    range: [0, null],
    view: 'clocks',
    chart: 'SM clock (MHz)',
    beside: '',
    legend: '',
    heading: 'SM clock',
    meaning: ''
  },
  {
    name: 'sm_activity',
    unit: '%',
    label: 'SM activity',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100],
    view: 'activity',
    chart: 'SM activity (%)',
    beside: '',
    legend: ' SM activity',
    heading: 'SM activity',
    meaning: 'Share of the streaming multiprocessors that were working, averaged over time.'
  },
  {
    name: 'tensor_activity',
    unit: '%',
    label: 'Tensor core activity',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100],
    view: 'activity',
    chart: 'Tensor core activity (%)',
    beside: '',
    legend: '',
    heading: 'tensor',
    meaning: 'Share of the time in which the tensor cores worked: mixed-precision matrix products.'
  },
  {
    name: 'dram_bandwidth',
    unit: '%',
    label: 'DRAM bandwidth',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100],
    view: 'activity',
    chart: 'DRAM bandwidth (%)',
    beside: '',
    legend: '',
    heading: 'DRAM',
    meaning: 'Share of the memory bandwidth that was used. Near 80 % the memory is the limit.'
  },
  {
    name: 'memory_busy',
    unit: '%',
    label: 'Memory controller busy',
    kind: 'figure',
    reducer: 'mean',
    range: [0, 100],
    view: 'activity',
    chart: 'Memory controller busy (%)',
    beside: '',
    legend: '',
    heading: 'memory busy',
    meaning: 'Share of the time in which the memory was read or written, however little.'
  },
  {
    name: 'pcie_rx',
    unit: 'MiB/s',
    label: 'PCIe to the GPU',
    kind: 'figure',
    reducer: 'mean',
    range: [0, null],
    view: 'transfers',
    chart: 'PCIe to the GPU, thin: from it (MiB/s)',
    beside: '',
    legend: ' in',
    heading: 'PCIe in, out',
    meaning: 'Data that came over PCIe from the host, and went to it.'
  },
  {
    name: 'pcie_tx',
    unit: 'MiB/s',
    label: 'PCIe from the GPU',
    kind: 'figure',
    reducer: 'mean',
    range: [0, null],
    view: '',
    chart: '',
    beside: 'pcie_rx',
    legend: ' out',
    heading: 'PCIe in, out',
    meaning: ''
  },
  {
    name: 'nvlink_rx',
    unit: 'MiB/s',
    label: 'NVLink to the GPU',
    kind: 'figure',
    reducer: 'mean',
    range: [0, null],
    view: 'transfers',
    chart: 'NVLink to the GPU, thin: from it (MiB/s)',
    beside: '',
    legend: ' in',
    heading: 'NVLink in, out',
    meaning: 'Data that came from other GPUs over NVLink, and went to them.'
  },
  {
    name: 'nvlink_tx',
    unit: 'MiB/s',
    label: 'NVLink from the GPU',
    kind: 'figure',
    reducer: 'mean',
    range: [0, null],
    view: '',
    chart: '',
    beside: 'nvlink_rx',
    legend: ' out',
    heading: 'NVLink in, out',
    meaning: ''
  },
  {
    name: 'throttled_power',
    unit: '%',
    label: 'Throttled by power',
    kind: 'figure',
    reducer: 'sum',
    range: [0, 100],
    view: '',
    chart: '',
    beside: 'throttled_heat',
    legend: ' power',
    heading: '',
    meaning: ''
  },
  {
    name: 'throttled_heat',
    unit: '%',
    label: 'Throttled by heat',
    kind: 'figure',
    reducer: 'sum',
    range: [0, 100],
    view: 'clocks',
    chart: 'Throttled by heat, thin: by power (% of time)',
    beside: '',
    legend: ' heat',
    heading: '',
    meaning: ''
  },
  {
    name: 'mem_clock',
    unit: 'MHz',
    label: 'Memory clock',
    kind: 'slow',
    reducer: 'last',
    range: [0, null],
    view: '',
    chart: '',
    beside: '',
    legend: '',
    heading: 'memory clock',
    meaning: ''
  },
  {
    name: 'throttle',
    unit: 'bits',
    label: 'Throttle reasons',
    kind: 'slow',
    reducer: 'last',
    range: [0, null],
    view: '',
    chart: '',
    beside: '',
    legend: '',
    heading: 'throttled by',
    meaning: 'What keeps the clocks below their highest value now.'
  },
  {
    name: 'ecc',
    unit: 'errors',
    label: 'ECC errors',
    kind: 'slow',
    reducer: 'last',
    range: [0, null],
    view: '',
    chart: '',
    beside: '',
    legend: '',
    heading: 'ECC errors',
    meaning: ''
  },
  {
    name: 'power_limit',
    unit: 'W',
    label: 'Power limit',
    kind: 'slow',
    reducer: 'last',
    range: [0, null],
    view: '',
    chart: '',
    beside: '',
    legend: '',
    heading: '',
    meaning: ''
  },
  {
    name: 'mine',
    unit: 'MiB',
    label: 'Memory of the run',
    kind: 'slow',
    reducer: 'last',
    range: [0, null],
    view: '',
    chart: '',
    beside: '',
    legend: '',
    heading: '',
    meaning: ''
  },
  {
    name: 'others',
    unit: 'MiB',
    label: 'Memory of other processes',
    kind: 'slow',
    reducer: 'last',
    range: [0, null],
    view: '',
    chart: '',
    beside: '',
    legend: '',
    heading: '',
    meaning: ''
  }
];

/** Views of a dashboard in their order. */
export const GPU_VIEWS: readonly IGpuView[] = [
  { name: 'use', label: 'Utilization, memory, power' },
  { name: 'activity', label: 'SM, tensor cores, DRAM' },
  { name: 'clocks', label: 'Temperature, clocks, throttling' },
  { name: 'transfers', label: 'PCIe, NVLink' }
];
