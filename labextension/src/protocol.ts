/** The wire. Written by `python -m tools.protocol_types`; do not edit. */

export const RUN_MIME = 'application/vnd.amltrain.run+json';
export const RECORD_SCHEMA = 1;
export const PROTOCOL_VERSION = 1;
export const REQUEST = 'amltrain_request';

export type RunState =
  | 'preparing'
  | 'queued'
  | 'running'
  | 'finalizing'
  | 'completed'
  | 'failed'
  | 'canceled'
  | 'lost';

export interface IHelloReply {
  package: string;
  kernel_busy: boolean;
  version: number;
  ok: true;
}

export interface IStateReply {
  runs: IRunRecord[];
  targets: Record<string, unknown>[];
  current: string;
  version: number;
  ok: true;
}

export interface IRunReply {
  record: IRunRecord;
  picture: string;
  width: number;
  height: number;
  version: number;
  ok: true;
}

export interface ICancelReply {
  accepted: boolean;
  state: string;
  version: number;
  ok: true;
}

export interface IDashboardReply {
  feed: string;
  why: string;
  version: number;
  ok: true;
}

export interface IFollowReply {
  known: boolean;
  version: number;
  ok: true;
}

export interface IErrorReply {
  error: string;
  version: number;
  ok: false;
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
  error: string | null;
  tracking: Record<string, string>;
  source_sha256: string;
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
  last: number | null;
  n: number;
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

export interface IGpuSeries {
  node: number;
  index: number;
  name: string;
  uuid: string;
  memory_total: number | null;
  power_limit: number | null;
  util: (number | null)[];
  peak: (number | null)[];
  memory: (number | null)[];
  power: (number | null)[];
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
}

/** Operation -> its payload and its reply. */
export interface IOperations {
  hello: { payload: Record<string, never>; reply: IHelloReply };
  state: { payload: Record<string, never>; reply: IStateReply };
  run: { payload: { handle: string }; reply: IRunReply };
  cancel: { payload: { handle: string }; reply: ICancelReply };
  dashboard: { payload: { handle: string; page: string; window: number }; reply: IDashboardReply };
  follow: { payload: { feed: string; shown: boolean; seen: number[] }; reply: IFollowReply };
}
