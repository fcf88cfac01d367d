/** Logs of several processes as one text: whole lines, each marked with its rank, in the order of their arrival. */

/** Rank that stands for the logs of all processes. */
export const ALL_RANKS = -1;

/** Maximum number of processes whose logs are shown together: each takes a request of its own. */
export const MAX_RANKS_TOGETHER = 16;

/** Lines kept of each log: what is above a terminal's screen cannot change. */
const KEPT_LINES = 100;

/** What a log of a process has become, as the kernel's screen says. */
export interface IPart {
  readonly fresh: boolean;
  readonly first: number;
  readonly lines: readonly string[];
  readonly offset: number;
  readonly ended: boolean;
}

interface IRow {
  readonly text: string;
  /** The text that was shown of this line; null before. */
  shown: string | null;
  /** Whether the last part has left it as it was. */
  settled: boolean;
}

interface ILog {
  offset: number;
  ended: boolean;
  /** Number of the first row. */
  number: number;
  rows: IRow[];
}

export class RankLogs {
  /** Offset of the next request for a rank; undefined before its first part. */
  offset(rank: number): number | undefined {
    return this._logs[rank]?.offset;
  }

  /**
   * Add a part of the log of a rank; returns its new lines, marked.
   *
   * A line is new once another one follows it. If it changes later, as one of several bars does, it is shown again
   * as soon as a part leaves it as it is.
   */
  add(rank: number, part: IPart): string[] {
    const log = (this._logs[rank] ??= { offset: 0, ended: false, number: 0, rows: [] });
    log.offset = part.offset;
    log.ended = part.ended;
    this._replace(log, part);
    const { rows } = log;
    const open = part.ended && rows.length && rows[rows.length - 1].text ? 0 : 1;
    const found: string[] = [];
    for (const row of rows.slice(0, Math.max(0, rows.length - open))) {
      const changed = row.shown !== null && row.shown !== row.text && row.text !== '' && (row.settled || part.ended);
      if (row.shown === null || changed) {
        row.shown = row.text;
        found.push(`[rank ${rank}] ${row.text}`);
      }
    }
    const many = Math.max(0, rows.length - KEPT_LINES);
    rows.splice(0, many);
    log.number += many;
    return found;
  }

  /** Whether the logs of all processes are complete. */
  ended(ranks: number): boolean {
    return this._logs.length >= ranks && this._logs.every(log => log.ended);
  }

  private _replace(log: ILog, part: IPart): void {
    if (part.fresh) {
      log.number = 0;
      log.rows = [];
    }
    log.rows.forEach(row => (row.settled = true));
    const old = log.rows.splice(Math.max(0, part.first - log.number));
    part.lines.slice(Math.max(0, log.number - part.first)).forEach((text, i) => {
      const was = old[i];
      log.rows.push({ text, shown: was?.shown ?? null, settled: was?.text === text });
    });
  }

  private readonly _logs: ILog[] = [];
}
