/** The record of one run from its kernel: polled while no pushes come, written into the notebook, and Cancel. */

import { TranslationBundle } from '@jupyterlab/translation';
import { requestCancel } from '../cancel';
import { ago } from '../format';
import { KernelKind, messageOf, NoAnswer, Refused } from '../kernel/client';
import { sessionOf } from '../kernel/connection';
import { IRunRecord, IRunReply, RUN_MIME } from '../protocol';
import { normalise, summary, TERMINAL } from '../record';
import { LOAD_COMMAND } from '../tokens';
import { asShown, IRunHost } from './notebook';

/** Milliseconds. */
const TICK = 1000;
const SILENCE = 2000;
const TOLD = 3000;
const LONGEST_PAUSE = 10000;

/** Bytes of the log of a step or trial that are shown. */
const CHILD_LOG = 64 * 1024;

/** Questions about an ended run whose record or picture is not complete. */
const LAST_QUESTIONS = 4;

export class RunTalk {
  /**
   * @param _revision what live charts have told of the record; null where there are none
   */
  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _host: IRunHost,
    private readonly _revision: () => number | null
  ) {}

  /** Where the record that is drawn comes from. */
  source: Source = 'saved';
  /** Milliseconds since 1970 when it came. */
  received = 0;
  /** One line about a request that failed, or empty. */
  failure = '';
  /** A person has clicked Cancel. */
  clicked = false;
  /** What is kept has a picture for readers without us. */
  pictured = false;
  /** What the kernel says is written into the notebook. */
  keeps = false;

  /**
   * A record was handed to us.
   *
   * A notebook that opens renders what was saved: only a second rendering, or a record made just
   * now, comes from somebody who watches the run.
   */
  handed(record: IRunRecord, old: IRunRecord | null): void {
    const now = Date.now();
    const fresh = old !== null || Math.abs(now / 1000 - record.seen_at) < SILENCE / 1000;
    if (old !== null && old.handle !== record.handle) {
      this.clicked = false;
    }
    this._told = this._revision();
    if (fresh) {
      this._heard(now);
    } else {
      this.source = 'saved';
    }
  }

  /** The run has ended, but its MLflow record or its picture has not come yet. */
  unsettled(record: IRunRecord | null): boolean {
    if (!record || !record.done || record.kind !== 'run' || this._lastQuestions >= LAST_QUESTIONS) {
      return false;
    }
    return this._host.kernel !== null && (record.tracking.state === 'pending' || !this.pictured);
  }

  /** Whether it is time to ask. */
  due(finished: boolean): boolean {
    const now = Date.now();
    // Live charts hear of the run: without their word there is nothing to ask for.
    const revision = this._revision();
    const silent = now - this.received > (revision === null ? SILENCE : TOLD);
    const news = revision === null || revision !== this._told || finished;
    return silent && news && now >= this._pausedUntil && !this._asking;
  }

  /** Ask soon: something was done. */
  hurry(): void {
    this._pause = TICK;
    this._pausedUntil = 0;
  }

  /**
   * Ask the kernel for the record.
   *
   * @returns the record to draw; null when there is none, or when it was written into the notebook,
   * which renders it here again
   */
  async ask(record: IRunRecord, finished: boolean): Promise<IRunRecord | null> {
    this._asking = true;
    try {
      return await this._ask(record, finished);
    } finally {
      this._asking = false;
    }
  }

  /** Ask for the end of the run; `changed` is called when there is something else to draw. */
  async cancel(record: IRunRecord | null, changed: () => void): Promise<void> {
    const { kernel } = this._host;
    if (!record || !kernel || this.clicked) {
      return;
    }
    this.clicked = true;
    this.failure = '';
    changed();
    const { errors } = await requestCancel(this._trans, sessionOf(kernel), [record]);
    if (errors.length === 0) {
      this.hurry();
    } else {
      this.clicked = false;
      this.failure = errors.join(' ');
    }
    changed();
  }

  /** The end of the log of a step or trial. */
  async childLog(handle: string, child: string): Promise<string> {
    const { kernel } = this._host;
    const where = this._trans.__('Its log: %1', `%aml_runs logs ${handle} --step ${child}`);
    if (!kernel) {
      throw new Error(this._trans.__('No kernel is running. %1', where));
    }
    try {
      const reply = await sessionOf(kernel).request('log', { handle, child, offset: -CHILD_LOG, limit: CHILD_LOG });
      return reply.text;
    } catch (error) {
      throw error instanceof NoAnswer ? new Error(this._trans.__('The kernel does not answer. %1', where)) : error;
    }
  }

  private async _ask(record: IRunRecord, finished: boolean): Promise<IRunRecord | null> {
    const { kernel } = this._host;
    if (!kernel) {
      this.source = 'saved';
      return null;
    }
    const session = sessionOf(kernel);
    const kind = await session.kind();
    if (kind !== 'ready') {
      this.source = kind;
      this._pausedUntil = finished ? Date.now() + LONGEST_PAUSE : this._pausedUntil;
      return null;
    }
    this._lastQuestions += record.done ? 1 : 0;
    const revision = this._revision();
    try {
      const reply = await session.request('run', { handle: record.handle });
      const fresh = asShown(record, normalise(reply.record));
      if (fresh.handle !== record.handle) {
        throw new Refused(this._trans.__('The kernel answered about another run.'));
      }
      this._told = revision;
      this._heard(Date.now());
      const bundle = { 'text/plain': summary(fresh), [RUN_MIME]: reply.record, ...pictureOf(reply) };
      const size = reply.picture ? { 'image/png': { width: reply.width, height: reply.height } } : {};
      if (changed(record, fresh) || (reply.picture && !this.pictured)) {
        this._pause = TICK;
        if (this.keeps && this._host.write(record.handle, bundle, size)) {
          return null;
        }
      } else {
        // A run that waits in a queue says the same for hours: every question makes the kernel busy.
        this._pause = Math.min(2 * this._pause, LONGEST_PAUSE);
        this._pausedUntil = Date.now() + this._pause;
      }
      return fresh;
    } catch (error) {
      if (error instanceof NoAnswer) {
        this.source = 'not-responding';
      } else {
        this.source = 'unknown-run';
        this.failure = messageOf(error);
        this._pausedUntil = Date.now() + LONGEST_PAUSE;
      }
      return null;
    }
  }

  private _heard(now: number): void {
    this.received = now;
    this.source = 'live';
    this.failure = this.clicked ? this.failure : '';
  }

  private _told: number | null = null;
  private _pausedUntil = 0;
  private _pause = TICK;
  private _asking = false;
  private _lastQuestions = 0;
}

/** The picture for readers without us, which comes with the answer about an ended run. */
function pictureOf(reply: IRunReply): Record<string, string> {
  return reply.picture ? { 'image/png': reply.picture } : {};
}

/** Whether a fresh record says more than the time it was made: an unchanged one must not dirty the notebook. */
function changed(old: IRunRecord, fresh: IRunRecord): boolean {
  const essence = (r: IRunRecord) =>
    JSON.stringify({ ...r, seen_at: 0, telemetry: { ...r.telemetry, age: 0 }, gpu: { ...r.gpu, age: 0 } });
  return essence(old) !== essence(fresh);
}

export type Source = 'live' | 'saved' | KernelKind | 'unknown-run';

/** Empty for a record that is live; `untrusted`: the kernel may not be asked. */
export function notice(trans: TranslationBundle, record: IRunRecord, source: Source, untrusted = false): string {
  const age = ago(Date.now() / 1000 - record.seen_at);
  if (source === 'live' && !untrusted) {
    return record.reachable
      ? ''
      : trans.__('%1 does not answer; last seen %2 ago. The run itself goes on.', record.target, age);
  }
  const over = TERMINAL.has(record.state);
  // A monitor ends with its kernel.
  const saved = over || record.kind === 'monitor' ? trans.__('As saved %1 ago', age) : trans.__('As saved %1 ago; the run itself may go on', age);
  if (untrusted) {
    return trans.__('%1. This notebook is not trusted, so the kernel is not asked about the run.', saved);
  }
  if (source === 'not-responding') {
    return trans.__('%1. The kernel does not answer now; asking again.', saved);
  }
  if (source === 'unknown-run' || source === 'other-version') {
    return trans.__('%1.', saved);
  }
  return trans.__('%1. To reconnect, run: %2', saved, LOAD_COMMAND);
}
