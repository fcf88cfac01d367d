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
  version: number;
  ok: true;
}

export interface ICancelReply {
  accepted: boolean;
  state: string;
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
  telemetry: ITelemetrySeries;
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

export interface ILogTail {
  tail: string;
  bytes: number;
  lines_hidden: number;
  path: string;
}

/** Operation -> its payload and its reply. */
export interface IOperations {
  hello: { payload: Record<string, never>; reply: IHelloReply };
  state: { payload: Record<string, never>; reply: IStateReply };
  run: { payload: { handle: string }; reply: IRunReply };
  cancel: { payload: { handle: string }; reply: ICancelReply };
}
