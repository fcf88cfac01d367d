/** Live charts in an output: requests them from the kernel, shows them and releases them. */

import type { Kernel } from '@jupyterlab/services';
import { NoAnswer, Refused } from '../kernel/client';
import { sessionOf } from '../kernel/connection';
import { available, IFeed, ISite, waitForFeed } from '../widgets/feeds';
import { Follower, followerOf } from './follower';

/** Names this load of the page: after a reload the kernel creates new widgets. */
const PAGE = Array.from(crypto.getRandomValues(new Uint32Array(3)), x => x.toString(36)).join('');

/** Milliseconds. */
const RETRY_INTERVAL_MS = 1000;
const SLOW_RETRY_INTERVAL_MS = 10000;
const MODEL_TIMEOUT_MS = 15000;

/** Questions about one dashboard that is being made: each makes the kernel's status flicker. */
const MAX_FAST_ATTEMPTS = 60;

/** The output that shows the charts. */
export interface IHost {
  readonly kernel: Kernel.IKernelConnection | null;
  /** the notebook's tab is in front and the output is part of it */
  readonly isVisible: boolean;
  /** in the visible part of the page */
  readonly onScreen: boolean;
  /** show these charts, or none */
  place(site: ISite | null): void;
}

export class DashboardHost {
  constructor(private readonly _host: IHost) {
    this._onVisibility = () => this._tellShown();
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  /** Why there are no live charts, in the kernel's words; else empty. */
  why = '';

  get shown(): boolean {
    return this._site !== null;
  }

  /** Latest record fields from a live feed; null without a feed. */
  get revision(): number | null {
    return this._site !== null && this._feed !== null ? this._feed.revision : null;
  }

  /**
   * Live charts of this run are wanted, or none.
   *
   * @param window seconds that they show at first; 0 for all
   */
  want(handle: string | null, window = 600): void {
    this._window = window;
    if (handle !== this._handle) {
      this.release();
      this._handle = handle;
      this._forget();
    }
  }

  /** Retry although the kernel has declined. */
  retry(): void {
    this._forget();
    this.tick();
  }

  /** To be called once a second while charts are wanted. */
  tick(): void {
    this._tellShown();
    const { kernel } = this._host;
    if (this._site !== null && this._kernel !== kernel) {
      this.release();
    }
    if (kernel !== this._refusedBy) {
      this._refusedBy = null;
    }
    const unseen = !this._host.isVisible || !this._host.onScreen || document.hidden;
    const no = this._handle === null || this._site !== null || this._refusedBy !== null || this._busy;
    if (!kernel || no || unseen || !available() || Date.now() < this._pausedUntil) {
      return;
    }
    this._busy = true;
    void this._open(kernel, this._handle as string, ++this._attempt).finally(() => (this._busy = false));
  }

  /** Back to the charts of the record. */
  release(): void {
    this._attempt += 1;
    this._follower?.leave(this);
    this._follower = null;
    const site = this._site;
    this._site = null;
    if (site) {
      this._host.place(null);
      site.dispose();
    }
  }

  dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._handle = null;
    this.release();
  }

  private async _open(kernel: Kernel.IKernelConnection, handle: string, attempt: number): Promise<void> {
    const session = sessionOf(kernel);
    if ((await session.kind()) !== 'ready') {
      this._pausedUntil = Date.now() + 2 * RETRY_INTERVAL_MS;
      return;
    }
    try {
      const { feed, reason } = await session.request('dashboard', { handle, page: PAGE, window: this._window });
      if (reason) {
        this._refuse(kernel, reason);
      } else if (!feed) {
        // It is being made.
        this._attempts += 1;
        this._pausedUntil = Date.now() + (this._attempts < MAX_FAST_ATTEMPTS ? RETRY_INTERVAL_MS : SLOW_RETRY_INTERVAL_MS);
      } else {
        const found = await waitForFeed(feed, MODEL_TIMEOUT_MS);
        if (!found) {
          throw new Error(`the widgets of feed ${feed} did not arrive`);
        }
        await this._show(found, kernel, attempt);
      }
    } catch (error) {
      if (!(error instanceof NoAnswer || error instanceof Refused)) {
        console.warn('jupyter-amltrain: live charts failed, the record is drawn instead', error);
      }
      this._failed += 1;
      this._pausedUntil = Date.now() + SLOW_RETRY_INTERVAL_MS;
      if (this._failed >= 3 || error instanceof Refused) {
        this._refuse(kernel, error instanceof Error ? error.message : String(error));
      }
    }
  }

  private async _show(feed: IFeed, kernel: Kernel.IKernelConnection, attempt: number): Promise<void> {
    const site = await feed.createSite();
    if (attempt !== this._attempt || this._handle === null) {
      // Meanwhile the output was cleared, or shows another run.
      site.dispose();
      return;
    }
    this._forget();
    this._site = site;
    this._feed = feed;
    this._kernel = kernel;
    this._follower = followerOf(feed, sessionOf(kernel));
    this._follower.join(this);
    this._host.place(site);
    this._tellShown();
    feed.onLost(() => this.lost(site));
  }

  /** The models are gone: the kernel has restarted or has closed the feed. */
  lost(site: ISite | null = this._site): void {
    if (site === this._site && site !== null) {
      this.release();
      this._pausedUntil = Date.now() + 2 * RETRY_INTERVAL_MS;
    }
  }

  private _refuse(kernel: Kernel.IKernelConnection, why: string): void {
    this.why = why;
    this._refusedBy = kernel;
  }

  private _forget(): void {
    [this._failed, this._attempts, this._pausedUntil] = [0, 0, 0];
    this._refusedBy = null;
    this.why = '';
  }

  private _tellShown(): void {
    this._follower?.tell(this, this._host.isVisible && !document.hidden);
  }

  private readonly _onVisibility: () => void;
  private _handle: string | null = null;
  private _window = 600;
  private _site: ISite | null = null;
  private _feed: IFeed | null = null;
  private _kernel: Kernel.IKernelConnection | null = null;
  private _follower: Follower | null = null;
  private _refusedBy: Kernel.IKernelConnection | null = null;
  private _attempt = 0;
  private _attempts = 0;
  private _failed = 0;
  private _pausedUntil = 0;
  private _busy = false;
}
