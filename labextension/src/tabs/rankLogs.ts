/** Logs of several processes as one text: whole lines, each marked with its rank, in the order of their arrival. */

import { collapse, openEnd } from './logText';

/** Rank that stands for the logs of all processes. */
export const ALL_RANKS = -1;

/** Maximum number of processes whose logs are shown together: each takes a request of its own. */
export const MAX_RANKS_TOGETHER = 16;

export interface IPart {
  readonly text: string;
  readonly offset: number;
  readonly ended: boolean;
}

export class RankLogs {
  /** Offset of the next request for a rank; undefined before its first part. */
  offset(rank: number): number | undefined {
    return this._logs[rank]?.offset;
  }

  /** Add a part of the log of a rank; returns its complete lines, marked. */
  add(rank: number, part: IPart): string {
    const log = (this._logs[rank] ??= { offset: 0, open: '', ended: false });
    if (part.offset < log.offset) {
      // The job has emptied its log.
      log.open = '';
    }
    const lines = (log.open + part.text).split('\n');
    log.open = part.ended ? '' : openEnd(lines.pop() as string);
    if (part.ended && lines[lines.length - 1] === '') {
      lines.pop();
    }
    log.offset = part.offset;
    log.ended = part.ended;
    return lines.map(line => `[rank ${rank}] ${collapse(line)}\n`).join('');
  }

  /** Whether the logs of all processes are complete. */
  ended(ranks: number): boolean {
    return this._logs.length >= ranks && this._logs.every(log => log.ended);
  }

  private readonly _logs: { offset: number; open: string; ended: boolean }[] = [];
}
