/** Frontend protocol. Written by `python -m tools.protocol_types`; do not edit. */

export const RUN_MIME = 'application/vnd.amltrain.run+json';
export const GROUP_MIME = 'application/vnd.amltrain.runs+json';
export const RECORD_SCHEMA = 1;
export const PROTOCOL_VERSION = 4;
export const REQUEST = 'amltrain_request';
export const EVENTS = 'amltrain_events';

export type RunState =
  | 'preparing'
  | 'queued'
  | 'running'
  | 'finalizing'
  | 'completed'
  | 'failed'
  | 'canceled'
  | 'lost';

export interface ITargetActionReply {
  version: number;
  ok: true;
  accepted: boolean;
  confirmation: string;
  errors: Record<string, string>;
  message: string;
  line: string;
}

export interface IResubmitReply {
  version: number;
  ok: true;
  handle: string;
}

export interface ICancelReply {
  version: number;
  ok: true;
  accepted: boolean;
  state: string;
}

export interface ITargetCheckReply {
  version: number;
  ok: true;
}

export interface ICodeReply {
  version: number;
  ok: true;
  diffs: Record<string, string[]>;
}

export interface IComposeReply {
  version: number;
  ok: true;
  line: string;
  values: Record<string, unknown>;
  errors: Record<string, string>;
  notes: string[];
}

export interface IConnectReply {
  version: number;
  ok: true;
  line: string;
  errors: Record<string, string>;
  note: string;
}

export interface IDashboardReply {
  version: number;
  ok: true;
  feed: string;
  reason: string;
}

export interface IDeleteReply {
  version: number;
  ok: true;
  deleted: string[];
  confirmation: string;
  unrecorded: string[];
  errors: Record<string, string>;
}

export interface IDisplayReply {
  version: number;
  ok: true;
  text: string;
  chars: number;
}

export interface IEventsReply {
  version: number;
  ok: true;
  snapshot: boolean;
  reason: string;
}

export interface IFileReply {
  version: number;
  ok: true;
  data: string;
}

export interface IFilesReply {
  version: number;
  ok: true;
  files: IRunFile[];
  hidden: number;
  folder: string;
  models: string[];
}

export interface IFollowReply {
  version: number;
  ok: true;
  known: boolean;
}

export interface IGroupReply {
  version: number;
  ok: true;
  group: IRunGroup;
  text: string;
  html: string;
}

export interface IHelloReply {
  version: number;
  ok: true;
  package: string;
  kernel_busy: boolean;
}

export interface IKindsReply {
  version: number;
  ok: true;
  kinds: ITargetKind[];
  submit: IField[];
  connect: IField[];
}

export interface ILinesReply {
  version: number;
  ok: true;
  lines: IRunLines;
  boxes: IStackBox[];
}

export interface ILogReply {
  version: number;
  ok: true;
  text: string;
  start: number;
  offset: number;
  ended: boolean;
  path: string;
  restarts: number;
  ranks: number;
  failed_rank: number | null;
  fresh: boolean;
  first: number;
  lines: string[];
  marks: [number, number][];
}

export interface IMlflowReply {
  version: number;
  ok: true;
  url: string;
  reason: string;
}

export interface IPictureReply {
  version: number;
  ok: true;
  mime: string;
  data: string;
  bytes: number;
}

export interface IPicturesReply {
  version: number;
  ok: true;
  pictures: IRunPicture[];
  hidden: number;
  displays: IRunDisplay[];
  displays_hidden: number;
}

export interface IRegisterReply {
  version: number;
  ok: true;
  text: string;
}

export interface IRunReply {
  version: number;
  ok: true;
  record: IRunRecord;
  text: string;
  html: string;
  picture: string;
  width: number;
  height: number;
  alt: string;
}

export interface ISizesReply {
  version: number;
  ok: true;
  sizes: ISizeRow[];
  currency: string;
  gpu_table_date: string;
  error: string;
}

export interface IWhereReply {
  version: number;
  ok: true;
  text: string;
}

export interface IErrorReply {
  version: number;
  ok: false;
  error: string;
  code: string;
  field: string;
  details: Record<string, unknown>;
}

export interface IStateSnapshot {
  type: 'snapshot';
  seq: number;
  current: string;
  targets: ITargetRow[];
  runs: IRunRow[];
  more: number;
  workspaces: IWorkspaceRow[];
  trouble: string;
  version: number;
}

export interface IChanges {
  type: 'changes';
  seq: number;
  runs: IRunRow[];
  gone: string[];
  targets: ITargetRow[] | null;
  workspaces: IWorkspaceRow[] | null;
  current: string | null;
  trouble: string | null;
  renew: boolean;
}

export interface IGpus {
  type: 'gpus';
  seq: number;
  source: string;
  first: boolean;
  labels: string[];
  nodes: number[];
  names: string[];
  memory: (number | null)[];
  lost: number[];
  cpus: number | null;
  host_memory: number | null;
  period: number;
  note: string;
  ended: boolean;
}

export interface INotice {
  type: 'notice';
  seq: number;
  level: string;
  text: string;
  target: string;
}

export interface IMeter {
  type: 'meter';
  seq: number;
  target: string;
  gpus: number;
  util: number | null;
  renew: boolean;
}

export interface IBeat {
  type: 'beat';
  seq: number;
  renew: boolean;
}

export interface IRunFile {
  path: string;
  size: number;
  modified: number;
}

export interface IRunGroup {
  schema: number;
  handles: string[];
  rows: IGroupRow[];
  hidden: number;
  columns: IGroupColumn[];
  same: Record<string, unknown>;
  curve: string;
  verdict: string[];
  done: boolean;
  seen_at: number;
}

export interface ITargetKind {
  kind: string;
  verb: string;
  title: string;
  help: string;
  fields: IField[];
}

export interface IField {
  name: string;
  flag: string;
  kind: string;
  help: string;
  default: unknown;
  required: boolean;
  choices: string[];
  metavar: string;
  advanced: boolean;
  label: string;
  group: string;
  not_for: string[];
  needs_gpus: boolean;
  choose: string;
  joined: boolean;
}

export interface IRunLines {
  sentence: string;
  span: string;
  table: ITable;
  marks: ILineMark[];
}

export interface IStackBox {
  depth: number;
  left: number;
  share: number;
  label: string;
  detail: string;
}

export interface IRunPicture {
  path: string;
  name: string;
  kind: string;
  width: number;
  height: number;
  bytes: number;
  time: number;
  title: string;
  thumbnail: string;
}

export interface IRunDisplay {
  number: number;
  version: number;
  line: number;
  blocks: number[][];
  data: Record<string, unknown>;
  sizes: Record<string, Record<string, number>>;
  partial: boolean;
  picture: string;
  title: string;
}

export interface IRunRecord {
  schema: number;
  handle: string;
  run_id: string;
  name: string;
  target: string;
  experiment: string;
  state: RunState;
  detail: string;
  reason: string | null;
  exit_code: number | null;
  done: boolean;
  cancel_requested: boolean;
  reachable: boolean;
  created: number;
  seen_at: number;
  phases: IPhase[];
  params: Record<string, unknown>;
  tags: Record<string, string>;
  metrics: Record<string, IMetricSeries>;
  metrics_hidden: number;
  telemetry: ITelemetrySeries;
  gpu: IGpuTelemetry | null;
  truth: IGpuTruth | null;
  summary: Record<string, unknown>;
  kind: string;
  view: string;
  window: number;
  log: ILogTail;
  outputs: Record<string, unknown>;
  models: string[];
  error: string | null;
  excerpt: ICodeExcerpt | null;
  frames: IFrameTable[];
  tracking: Record<string, string>;
  source_sha256: string;
  notes: string[];
  taken: ITaken;
  doors: IRunLink[];
  children: IChildRun[];
  children_hidden: number;
  parent: string;
  pokes: IPoke[];
  attempt: number;
  scaling: IMeasurement | null;
  sweep: ISweepBoard | null;
  pictures: IRunPicture[];
  pictures_hidden: number;
  displays: IRunDisplay[];
  displays_hidden: number;
  lines: IRunLines | null;
  graph: IRunGraph | null;
  charts: IChartSet;
  tables: ITable[];
}

export interface ISizeRow {
  name: string;
  gpus: number;
  gpu: string;
  gpu_memory: number | null;
  cpus: number | null;
  memory: number | null;
  price: number | null;
  price_low: number | null;
  fit: number | null;
  fit_low: number | null;
  retirement: string;
  retired: boolean;
}

export interface ITargetRow {
  name: string;
  kind: string;
  title: string;
  current: boolean;
  state: string;
  detail: string;
  size: string;
  nodes: number | null;
  max_nodes: number | null;
  cpus: number | null;
  memory: number | null;
  gpus: number | null;
  gpu_name: string;
  gpu_rows: [string, string][];
  gpus_text: string;
  price: number | null;
  price_node: number | null;
  currency: string;
  quota: string;
  stops: string;
  running: number;
  queued: number;
  checked_at: number;
  fields: Record<string, unknown>;
  acts: ITargetAction[];
  work: IOperation | null;
}

export interface IRunRow {
  handle: string;
  name: string;
  target: string;
  experiment: string;
  state: RunState;
  detail: string;
  reason: string;
  exit_code: number | null;
  error: string;
  created: number;
  started: number | null;
  ended: number | null;
  phase: string;
  phase_start: number | null;
  cancel_requested: boolean;
  reachable: boolean;
  gpus: number;
  metric: string;
  value: number | string | null;
  metrics: Record<string, number>;
  spark: number[];
  verdict: string;
  attention: string;
  log_bytes: number;
  known: boolean;
  again: boolean;
  tracking: string;
  params: Record<string, string>;
  links: IRunLink[];
  children: IChildRun[];
  children_hidden: number;
  parent: string;
  attempt: number;
}

export interface IWorkspaceRow {
  name: string;
  current: boolean;
  workspace: string;
  resource_group: string;
  subscription: string;
  location: string;
  user: string;
  targets: string[];
  studio_url: string;
}

export interface IGroupRow {
  handle: string;
  name: string;
  state: RunState;
  reason: string;
  error: string;
  reachable: boolean;
  cancel_requested: boolean;
  created: number;
  started: number | null;
  ended: number | null;
  values: string[];
  best: number[];
  curve: number[];
}

export interface IGroupColumn {
  name: string;
  kind: string;
  goal: string;
}

export interface ITable {
  key: string;
  columns: IColumn[];
  rows: string[][];
  more: number;
}

export interface ILineMark {
  line: number;
  share: number;
  total: number;
  work: number;
  row: number;
}

export interface IPhase {
  name: string;
  start: number;
  end: number | null;
  seconds: number | null;
}

export interface IMetricSeries {
  step: number[];
  value: (number | null)[];
  seconds: number[];
  last: number | string | null;
  n: number;
  rank: number;
  source: string;
}

export interface ITelemetrySeries {
  t: number[];
  cpu: (number | null)[];
  memory: (number | null)[];
  memory_total: number | null;
  cpus: number | null;
  age: number | null;
}

export interface IGpuTelemetry {
  t: number[];
  gpus: IGpuSeries[];
  util: IGpuBand | null;
  memory: IGpuBand | null;
  power: IGpuBand | null;
  heat: IGpuHeat | null;
  nodes: string[];
  processes: IGpuProcess[];
  source: string;
  age: number | null;
  note: string;
  now: Record<string, unknown>[];
}

export interface IGpuTruth {
  verdict: string;
  detail: string;
  cause: string;
}

export interface ILogTail {
  tail: string;
  bytes: number;
  lines_hidden: number;
  path: string;
}

export interface ICodeExcerpt {
  first: number;
  lines: string[];
  line: number;
}

export interface IFrameTable {
  title: string;
  code: string;
  named: number;
  folded: boolean;
  table: ITable;
}

export interface ITaken {
  line: string;
  items: string[];
}

export interface IRunLink {
  kind: string;
  title: string;
  url: string;
  hint: string;
}

export interface IChildRun {
  id: string;
  name: string;
  kind: string;
  state: string;
  detail: string;
  metric: string;
  value: number | null;
  best: boolean;
  created: number | null;
  started: number | null;
  ended: number | null;
  url: string;
  number: number | null;
  params: Record<string, unknown>;
  handle: string;
  early: boolean;
  reused: boolean;
  steps: number[];
  values: (number | null)[];
}

export interface IPoke {
  time: number;
  who: string;
  rank: number;
  step: number | null;
  text: string;
  error: string;
}

export interface IMeasurement {
  slice: IScalingSlice;
  rate: number | null;
  counted: string;
  metric: string;
  error: number;
  points: number;
  whole: boolean;
  problem: string;
}

export interface ISweepBoard {
  metric: string;
  goal: string;
  sampler: string;
  policy: string;
  space: Record<string, string>;
  max_trials: number | null;
  max_concurrent: number;
  own: boolean;
  number: number[];
  state: string[];
  value: (number | null)[];
  seconds: (number | null)[];
  handle: string[];
  params: Record<string, unknown[]>;
  nulls: Record<string, number[]>;
  early: number[];
  reason: Record<string, string>;
  curves: ITrialCurve[];
  best: number | null;
  importance: Record<string, number>;
  hidden: number;
  message: string;
  axes: ITrialAxis[];
  levels: number[];
  counts_text: string;
  best_text: string;
  goal_text: string;
}

export interface IRunGraph {
  width: number;
  height: number;
  box_width: number;
  box_height: number;
  nodes: IGraphNode[];
  edges: IGraphEdge[];
  lines: string[];
  sentence: string;
  message: string;
}

export interface IChartSet {
  charts: IChart[];
  gpus: ILegendEntry[];
  gpus_text: string;
  start: number;
  time: IAxis | null;
  phases: IPhaseShade[];
  marks: IChartMark[];
}

export interface ITargetAction {
  verb: string;
  confirmation: string;
  disabled_reason: string;
  fields: IField[];
}

export interface IOperation {
  verb: string;
  since: number;
  detail: string;
  error: string;
}

export interface IColumn {
  title: string;
  number: boolean;
  help: string;
}

export interface IGpuSeries {
  node: number;
  index: number;
  label: string;
  name: string;
  uuid: string;
  memory_total: number | null;
  power_limit: number | null;
  util: (number | null)[];
  peak: (number | null)[];
  memory: (number | null)[];
  power: (number | null)[];
  lost: boolean;
  sm_activity: (number | null)[];
}

export interface IGpuBand {
  mean: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
}

export interface IGpuHeat {
  labels: string[];
  columns: number;
  cells: string;
}

export interface IGpuProcess {
  node: number;
  index: number;
  pid: number;
  owner: string;
  memory: number | null;
  name: string;
  label: string;
  user: string;
  sm: number | null;
}

export interface IScalingSlice {
  group: string;
  unit: string;
  width: number;
  widths: number[];
  seconds: number;
  steps: number;
  start_s: number;
  price: number | null;
  currency: string;
}

export interface ITrialCurve {
  trial: number;
  step: number[];
  value: (number | null)[];
}

export interface ITrialAxis {
  name: string;
  title: string;
  kind: string;
  low: number;
  high: number;
  ticks: number[];
  labels: string[];
  categories: unknown[];
}

export interface IGraphNode {
  title: string;
  x: number;
  y: number;
  text: string;
  hint: string;
  state: string;
  reused: boolean;
  critical: boolean;
  handle: string;
}

export interface IGraphEdge {
  path: string;
  hint: string;
  critical: boolean;
}

export interface IChart {
  key: string;
  title: string;
  note: string;
  value: string;
  whole: string;
  unit: string;
  x: (string | number)[];
  steps: IAxis | null;
  y: IAxis | null;
  series: IChartSeries[];
  band: (string | number)[];
  levels: ILevel[];
  height: number;
}

export interface ILegendEntry {
  label: string;
  help: string;
}

export interface IAxis {
  min: number;
  max: number;
  ticks: number[];
  labels: string[];
}

export interface IPhaseShade {
  name: string;
  start: number;
  end: number;
}

export interface IChartMark {
  time: number;
  step: number | null;
  label: string;
}

export interface IChartSeries {
  data: (string | number)[];
  label: string;
  color: number;
  style: string;
}

export interface ILevel {
  value: number;
  label: string;
}

/** Type and default of the fields of what a notebook saves; see `complete`. */
export const SHAPES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  IRunRecord: { schema: 'number=1', handle: 'string', run_id: 'string', name: 'string', target: 'string', experiment: 'string', state: 'string', detail: 'string', reason: 'string | null', exit_code: 'number | null', done: 'boolean', cancel_requested: 'boolean', reachable: 'boolean=true', created: 'number', seen_at: 'number', phases: 'IPhase[]', params: 'Record<string, unknown>', tags: 'Record<string, string>', metrics: 'Record<string, IMetricSeries>', metrics_hidden: 'number', telemetry: 'ITelemetrySeries', gpu: 'IGpuTelemetry | null', truth: 'IGpuTruth | null', summary: 'Record<string, unknown>', kind: 'string="run"', view: 'string="run"', window: 'number=600.0', log: 'ILogTail', outputs: 'Record<string, unknown>', models: 'string[]', error: 'string | null', excerpt: 'ICodeExcerpt | null', frames: 'IFrameTable[]', tracking: 'Record<string, string>', source_sha256: 'string', notes: 'string[]', taken: 'ITaken', doors: 'IRunLink[]', children: 'IChildRun[]', children_hidden: 'number', parent: 'string', pokes: 'IPoke[]', attempt: 'number=1', scaling: 'IMeasurement | null', sweep: 'ISweepBoard | null', pictures: 'IRunPicture[]', pictures_hidden: 'number', displays: 'IRunDisplay[]', displays_hidden: 'number', lines: 'IRunLines | null', graph: 'IRunGraph | null', charts: 'IChartSet', tables: 'ITable[]' },
  IRunGroup: { schema: 'number=1', handles: 'string[]', rows: 'IGroupRow[]', hidden: 'number', columns: 'IGroupColumn[]', same: 'Record<string, unknown>', curve: 'string', verdict: 'string[]', done: 'boolean', seen_at: 'number' },
  IPhase: { name: 'string', start: 'number', end: 'number | null', seconds: 'number | null' },
  IMetricSeries: { step: 'number[]', value: '(number | null)[]', seconds: 'number[]', last: 'number | string | null', n: 'number', rank: 'number', source: 'string' },
  ITelemetrySeries: { t: 'number[]', cpu: '(number | null)[]', memory: '(number | null)[]', memory_total: 'number | null', cpus: 'number | null', age: 'number | null' },
  IGpuTelemetry: { t: 'number[]', gpus: 'IGpuSeries[]', util: 'IGpuBand | null', memory: 'IGpuBand | null', power: 'IGpuBand | null', heat: 'IGpuHeat | null', nodes: 'string[]', processes: 'IGpuProcess[]', source: 'string', age: 'number | null', note: 'string', now: 'Record<string, unknown>[]' },
  IGpuTruth: { verdict: 'string', detail: 'string', cause: 'string' },
  ILogTail: { tail: 'string', bytes: 'number', lines_hidden: 'number', path: 'string' },
  ICodeExcerpt: { first: 'number', lines: 'string[]', line: 'number' },
  IFrameTable: { title: 'string', code: 'string', named: 'number', folded: 'boolean', table: 'ITable' },
  ITaken: { line: 'string', items: 'string[]' },
  IRunLink: { kind: 'string', title: 'string', url: 'string', hint: 'string' },
  IChildRun: { id: 'string', name: 'string', kind: 'string="step"', state: 'string', detail: 'string', metric: 'string', value: 'number | null', best: 'boolean', created: 'number | null', started: 'number | null', ended: 'number | null', url: 'string', number: 'number | null', params: 'Record<string, unknown>', handle: 'string', early: 'boolean', reused: 'boolean', steps: 'number[]', values: '(number | null)[]' },
  IPoke: { time: 'number', who: 'string', rank: 'number', step: 'number | null', text: 'string', error: 'string' },
  IMeasurement: { slice: 'IScalingSlice', rate: 'number | null', counted: 'string', metric: 'string', error: 'number', points: 'number', whole: 'boolean', problem: 'string="none"' },
  ISweepBoard: { metric: 'string', goal: 'string', sampler: 'string', policy: 'string', space: 'Record<string, string>', max_trials: 'number | null', max_concurrent: 'number=1', own: 'boolean', number: 'number[]', state: 'string[]', value: '(number | null)[]', seconds: '(number | null)[]', handle: 'string[]', params: 'Record<string, unknown[]>', nulls: 'Record<string, number[]>', early: 'number[]', reason: 'Record<string, string>', curves: 'ITrialCurve[]', best: 'number | null', importance: 'Record<string, number>', hidden: 'number', message: 'string', axes: 'ITrialAxis[]', levels: 'number[]', counts_text: 'string', best_text: 'string', goal_text: 'string' },
  IRunPicture: { path: 'string', name: 'string', kind: 'string="artifact"', width: 'number', height: 'number', bytes: 'number', time: 'number', title: 'string', thumbnail: 'string' },
  IRunDisplay: { number: 'number', version: 'number', line: 'number=-1', blocks: 'number[][]', data: 'Record<string, unknown>', sizes: 'Record<string, Record<string, number>>', partial: 'boolean', picture: 'string', title: 'string' },
  IRunLines: { sentence: 'string', span: 'string', table: 'ITable', marks: 'ILineMark[]' },
  IRunGraph: { width: 'number', height: 'number', box_width: 'number', box_height: 'number', nodes: 'IGraphNode[]', edges: 'IGraphEdge[]', lines: 'string[]', sentence: 'string', message: 'string' },
  IChartSet: { charts: 'IChart[]', gpus: 'ILegendEntry[]', gpus_text: 'string', start: 'number', time: 'IAxis | null', phases: 'IPhaseShade[]', marks: 'IChartMark[]' },
  ITable: { key: 'string', columns: 'IColumn[]', rows: 'string[][]', more: 'number' },
  IGroupRow: { handle: 'string', name: 'string', state: 'string', reason: 'string', error: 'string', reachable: 'boolean=true', cancel_requested: 'boolean', created: 'number', started: 'number | null', ended: 'number | null', values: 'string[]', best: 'number[]', curve: 'number[]' },
  IGroupColumn: { name: 'string', kind: 'string', goal: 'string' },
  IGpuSeries: { node: 'number', index: 'number', label: 'string', name: 'string', uuid: 'string', memory_total: 'number | null', power_limit: 'number | null', util: '(number | null)[]', peak: '(number | null)[]', memory: '(number | null)[]', power: '(number | null)[]', lost: 'boolean', sm_activity: '(number | null)[]' },
  IGpuBand: { mean: '(number | null)[]', low: '(number | null)[]', high: '(number | null)[]' },
  IGpuHeat: { labels: 'string[]', columns: 'number', cells: 'string' },
  IGpuProcess: { node: 'number', index: 'number', pid: 'number', owner: 'string', memory: 'number | null', name: 'string', label: 'string', user: 'string', sm: 'number | null' },
  IScalingSlice: { group: 'string', unit: 'string="processes"', width: 'number', widths: 'number[]', seconds: 'number', steps: 'number', start_s: 'number', price: 'number | null', currency: 'string' },
  ITrialCurve: { trial: 'number', step: 'number[]', value: '(number | null)[]' },
  ITrialAxis: { name: 'string', title: 'string', kind: 'string="linear"', low: 'number', high: 'number=1.0', ticks: 'number[]', labels: 'string[]', categories: 'unknown[]' },
  ILineMark: { line: 'number', share: 'number', total: 'number', work: 'number', row: 'number' },
  IGraphNode: { title: 'string', x: 'number', y: 'number', text: 'string', hint: 'string', state: 'string', reused: 'boolean', critical: 'boolean', handle: 'string' },
  IGraphEdge: { path: 'string', hint: 'string', critical: 'boolean' },
  IChart: { key: 'string', title: 'string', note: 'string', value: 'string', whole: 'string', unit: 'string', x: '(string | number)[]', steps: 'IAxis | null', y: 'IAxis | null', series: 'IChartSeries[]', band: '(string | number)[]', levels: 'ILevel[]', height: 'number=132' },
  ILegendEntry: { label: 'string', help: 'string' },
  IAxis: { min: 'number', max: 'number', ticks: 'number[]', labels: 'string[]' },
  IPhaseShade: { name: 'string', start: 'number', end: 'number' },
  IChartMark: { time: 'number', step: 'number | null', label: 'string' },
  IColumn: { title: 'string', number: 'boolean', help: 'string' },
  IChartSeries: { data: '(string | number)[]', label: 'string', color: 'number', style: 'string' },
  ILevel: { value: 'number', label: 'string' },
};

/** Events on the comm. */
export type PanelEvent = IStateSnapshot | IChanges | IGpus | INotice | IMeter | IBeat;

/** Payload and reply of every operation. */
export interface IOperations {
  act: { payload: { verb: string; target: string; kind: string; values: Record<string, unknown>; dry: boolean; confirmed: boolean }; reply: ITargetActionReply };
  again: { payload: { handle: string }; reply: IResubmitReply };
  cancel: { payload: { handle: string }; reply: ICancelReply };
  check: { payload: { target: string }; reply: ITargetCheckReply };
  code: { payload: { handles: string[] }; reply: ICodeReply };
  compose: { payload: { old: string; cell: string | null; script: string; folder: string; values: Record<string, unknown> | null }; reply: IComposeReply };
  connect: { payload: { values: Record<string, unknown> }; reply: IConnectReply };
  dashboard: { payload: { handle: string; page: string; window: number }; reply: IDashboardReply };
  delete: { payload: { handles: string[]; confirmed: boolean; unrecorded: string[] }; reply: IDeleteReply };
  display: { payload: { handle: string; number: number; offset: number }; reply: IDisplayReply };
  events: { payload: { comm: string; shown: string; seq: number; gpus: string; looks: string[]; details: string[]; meter: number }; reply: IEventsReply };
  file: { payload: { handle: string; path: string; offset: number }; reply: IFileReply };
  files: { payload: { handle: string }; reply: IFilesReply };
  follow: { payload: { feed: string; shown: boolean; seen: number[]; view: string }; reply: IFollowReply };
  group: { payload: { handles: string[] }; reply: IGroupReply };
  hello: { payload: Record<string, never>; reply: IHelloReply };
  kinds: { payload: Record<string, never>; reply: IKindsReply };
  lines: { payload: { handle: string; start: number; end: number }; reply: ILinesReply };
  log: { payload: { handle: string; offset: number; limit: number; child: string; rank: number; screen: string; earlier: number }; reply: ILogReply };
  mlflow: { payload: { handle: string }; reply: IMlflowReply };
  picture: { payload: { handle: string; path: string; offset: number }; reply: IPictureReply };
  pictures: { payload: { handle: string }; reply: IPicturesReply };
  register: { payload: { handle: string; name: string; path: string }; reply: IRegisterReply };
  run: { payload: { handle: string }; reply: IRunReply };
  sizes: { payload: { kind: string; workspace: string; region: string }; reply: ISizesReply };
  stack: { payload: { handle: string }; reply: IWhereReply };
}
