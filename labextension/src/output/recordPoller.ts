/** The record of one run from its kernel: polled while no pushes come, written into the notebook, and Cancel. */

import { TranslationBundle } from '@jupyterlab/translation';
import { requestCancel } from '../cancel';
import { ago } from '../format';
import { KernelKind, messageOf, NoAnswer, Refused } from '../kernel/client';
import { sessionOf } from '../kernel/connection';
import { readPicture } from '../pictures';
import { IOperations, IRunRecord, IRunReply, RUN_MIME } from '../protocol';
import { normalise, summary, TERMINAL } from '../record';
import { LOAD_COMMAND } from '../tokens';
import { IForms, readForms } from './forms';
import { asShown, IRunHost } from './notebook';

/** Milliseconds. */
const POLL_INTERVAL_MS = 1000;
const SILENCE_TIMEOUT_MS = 2000;
const PUSH_TIMEOUT_MS = 3000;
const MAX_POLL_INTERVAL_MS = 10000;

/** Bytes of the log of a step or trial that are shown. */
const MAX_CHILD_LOG_BYTES = 64 * 1024;

/** Questions about an ended run whose record or picture is not complete. */
const MAX_FINAL_POLLS = 4;

export class RecordPoller {
  /**
   * @param _revision revision of the record that live charts have; null where there are none
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
  /** The user has clicked Cancel. */
  cancelRequested = false;
  /** What is kept has a picture for readers without us. */
  hasPicture = false;
  /** What the kernel says is written into the notebook. */
  writes = false;

  /**
   * Take a record that was rendered.
   *
   * An opened notebook renders its saved records: only a second rendering, or a record created just
   * now, shows that a user is watching the run.
   */
  take(record: IRunRecord, old: IRunRecord | null): void {
    const now = Date.now();
    const fresh = old !== null || Math.abs(now / 1000 - record.seen_at) < SILENCE_TIMEOUT_MS / 1000;
    if (old !== null && old.handle !== record.handle) {
      this.cancelRequested = false;
    }
    this._seenRevision = this._revision();
    if (fresh) {
      this._setLive(now);
    } else {
      this.source = 'saved';
    }
  }

  /** The run has ended, but its MLflow record or its picture has not come yet. */
  isIncomplete(record: IRunRecord | null): boolean {
    if (!record || !record.done || record.kind !== 'run' || this._finalPolls >= MAX_FINAL_POLLS) {
      return false;
    }
    return this._host.kernel !== null && (record.tracking.state === 'pending' || !this.hasPicture);
  }

  /** Whether it is time to poll. */
  isDue(finished: boolean): boolean {
    const now = Date.now();
    // Live charts hear of changes: without one there is nothing to poll for.
    const revision = this._revision();
    const silent = now - this.received > (revision === null ? SILENCE_TIMEOUT_MS : PUSH_TIMEOUT_MS);
    const news = revision === null || revision !== this._seenRevision || finished;
    return silent && news && now >= this._pausedUntil && !this._polling;
  }

  /** Ask soon: something was done. */
  pollSoon(): void {
    this._interval = POLL_INTERVAL_MS;
    this._pausedUntil = 0;
  }

  /**
   * Ask the kernel for the record.
   *
   * @returns the record to draw; null when there is none, or when it was written into the notebook,
   * which renders it here again
   */
  async poll(record: IRunRecord, finished: boolean): Promise<IRunRecord | null> {
    this._polling = true;
    try {
      return await this._poll(record, finished);
    } finally {
      this._polling = false;
    }
  }

  /** Ask for the end of the run; `changed` is called when there is something else to draw. */
  async cancel(record: IRunRecord | null, changed: () => void): Promise<void> {
    const { kernel } = this._host;
    if (!record || !kernel || this.cancelRequested) {
      return;
    }
    this.cancelRequested = true;
    this.failure = '';
    changed();
    const { errors } = await requestCancel(this._trans, sessionOf(kernel), [record]);
    if (errors.length === 0) {
      this.pollSoon();
    } else {
      this.cancelRequested = false;
      this.failure = errors.join(' ');
    }
    changed();
  }

  /** A request for the user; rejects with a sentence. */
  async ask<K extends keyof IOperations>(op: K, payload: IOperations[K]['payload']): Promise<IOperations[K]['reply']> {
    const { kernel } = this._host;
    if (!kernel) {
      throw new Error(this._trans.__('No kernel is running.'));
    }
    try {
      return await sessionOf(kernel).request(op, payload);
    } catch (error) {
      throw error instanceof NoAnswer ? new Error(this._trans.__('The kernel is not responding. Try again later.')) : error;
    }
  }

  /** The last lines of the log of a step or trial, with codes of colors. */
  async childLog(handle: string, child: string): Promise<string[]> {
    const { kernel } = this._host;
    const where = this._trans.__('Read the log with: %1', `%aml_runs logs ${handle} --step ${child}`);
    if (!kernel) {
      throw new Error(this._trans.__('No kernel is running. %1', where));
    }
    try {
      const reply = await sessionOf(kernel).request('log', { handle, child, rank: 0, offset: -MAX_CHILD_LOG_BYTES, limit: MAX_CHILD_LOG_BYTES, screen: 'output', earlier: 0 });
      // A kernel with an older package sends text.
      return reply.lines ?? reply.text.split('\n');
    } catch (error) {
      throw error instanceof NoAnswer ? new Error(this._trans.__('The kernel is not responding. %1', where)) : error;
    }
  }

  /** A whole picture of the run. */
  async picture(handle: string, path: string): Promise<string> {
    const { kernel } = this._host;
    if (!kernel) {
      throw new Error(this._trans.__('No kernel is running, so only the saved thumbnail is shown.'));
    }
    const session = sessionOf(kernel);
    if ((await session.kind()) !== 'ready') {
      throw new Error(this._trans.__('Only the saved thumbnail is shown. For the whole picture, run: %1', LOAD_COMMAND));
    }
    return readPicture(offset => session.request('picture', { handle, path, offset }));
  }

  /** A value that the script has displayed, with all its forms. */
  async display(handle: string, number: number): Promise<IForms> {
    const { kernel } = this._host;
    const session = kernel && sessionOf(kernel);
    if (!session || (await session.kind()) !== 'ready') {
      throw new Error(this._trans.__('No kernel is running.'));
    }
    return readForms(offset => session.request('display', { handle, number, offset }));
  }

  private async _poll(record: IRunRecord, finished: boolean): Promise<IRunRecord | null> {
    const { kernel } = this._host;
    if (!kernel) {
      this.source = 'saved';
      return null;
    }
    const session = sessionOf(kernel);
    const kind = await session.kind();
    if (kind !== 'ready') {
      this.source = kind;
      this._pausedUntil = finished ? Date.now() + MAX_POLL_INTERVAL_MS : this._pausedUntil;
      return null;
    }
    this._finalPolls += record.done ? 1 : 0;
    const revision = this._revision();
    try {
      const reply = await session.request('run', { handle: record.handle });
      const fresh = asShown(record, normalise(reply.record));
      if (fresh.handle !== record.handle) {
        throw new Refused(this._trans.__('The kernel returned another run.'));
      }
      this._seenRevision = revision;
      this._setLive(Date.now());
      const bundle = { 'text/plain': reply.text || summary(fresh), [RUN_MIME]: reply.record, ...pictureOf(reply) };
      const size = reply.picture ? { 'image/png': { width: reply.width, height: reply.height, alt: reply.alt } } : {};
      if (changed(record, fresh) || (reply.picture && !this.hasPicture)) {
        this._interval = POLL_INTERVAL_MS;
        if (this.writes && this._host.write(RUN_MIME, record.handle, bundle, size)) {
          return null;
        }
      } else {
        // A run that waits in a queue says the same for hours: every question makes the kernel busy.
        this._interval = Math.min(2 * this._interval, MAX_POLL_INTERVAL_MS);
        this._pausedUntil = Date.now() + this._interval;
      }
      return fresh;
    } catch (error) {
      if (error instanceof NoAnswer) {
        this.source = 'not-responding';
      } else {
        this.source = 'unknown-run';
        this.failure = messageOf(error);
        this._pausedUntil = Date.now() + MAX_POLL_INTERVAL_MS;
      }
      return null;
    }
  }

  private _setLive(now: number): void {
    this.received = now;
    this.source = 'live';
    this.failure = this.cancelRequested ? this.failure : '';
  }

  private _seenRevision: number | null = null;
  private _pausedUntil = 0;
  private _interval = POLL_INTERVAL_MS;
  private _polling = false;
  private _finalPolls = 0;
}

/** What readers without us see, which comes with the answer about an ended run. */
function pictureOf(reply: IRunReply): Record<string, string> {
  return { ...(reply.html ? { 'text/html': reply.html } : {}), ...(reply.picture ? { 'image/png': reply.picture } : {}) };
}

/** Whether a fresh record says more than the time it was made: an unchanged one must not dirty the notebook. */
function changed(old: IRunRecord, fresh: IRunRecord): boolean {
  const essence = (r: IRunRecord) =>
    JSON.stringify({ ...r, seen_at: 0, telemetry: { ...r.telemetry, age: 0 }, gpu: { ...r.gpu, age: 0 } });
  return essence(old) !== essence(fresh);
}

export type Source = 'live' | 'saved' | KernelKind | 'unknown-run';

/** Empty for a live record; `untrusted`: requests to the kernel are not allowed. */
export function notice(trans: TranslationBundle, record: IRunRecord, source: Source, untrusted = false): string {
  const age = ago(Date.now() / 1000 - record.seen_at);
  if (source === 'live' && !untrusted) {
    return record.reachable
      ? ''
      : trans.__('%1 is not responding; last seen %2 ago. The run continues.', record.target, age);
  }
  const parts = [trans.__('Last update %1 ago.', age)];
  // A monitor ends with its kernel.
  const going = TERMINAL.has(record.state) || record.kind === 'monitor' ? [] : [trans.__('The run may still be running.')];
  if (untrusted) {
    parts.push(...going, trans.__('This notebook is not trusted, so its outputs show the saved state.'));
  } else if (source === 'not-responding') {
    parts.push(trans.__('The kernel is not responding; retrying.'), ...going);
  } else if (source === 'unknown-run' || source === 'other-version') {
    parts.push(...going);
  } else {
    parts.push(...going, trans.__('To reconnect, run: %1', LOAD_COMMAND));
  }
  return parts.join(' ');
}
