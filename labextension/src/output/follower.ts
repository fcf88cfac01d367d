/** Reports to the kernel whether a feed is visible and which samples are missing. */

import type { IOperations } from '../protocol';
import { IFeed } from '../widgets/feeds';

/** Milliseconds: a glance at another tab is not worth two messages. */
const HIDDEN_TIMEOUT_MS = 4000;
const RETRY_INTERVAL_MS = 2000;

/** The part of `Client` that is needed here. */
export interface IAsk {
  request(op: 'follow', payload: IOperations['follow']['payload']): Promise<IOperations['follow']['reply']>;
}

/** A viewer of the feed. */
export interface IFollowing {
  lost(): void;
}

export class Follower {
  constructor(
    private readonly _feed: IFeed,
    private readonly _client: IAsk
  ) {
    _feed.onGap = () => this._gap();
    _feed.onView = view => {
      this._view = view;
      // Other series follow; request their past values at once.
      this._requests = 0;
      this._send(this._anybody);
    };
    _feed.onLost(() => {
      clearTimeout(this._timer);
      this._removed = true;
    });
  }

  join(who: IFollowing): void {
    this._shown.set(who, true);
    this._update();
  }

  leave(who: IFollowing): void {
    this._shown.delete(who);
    this._update();
  }

  tell(who: IFollowing, shown: boolean): void {
    if (this._shown.get(who) !== shown) {
      this._shown.set(who, shown);
      this._update();
    }
  }

  private get _anybody(): boolean {
    return [...this._shown.values()].some(Boolean);
  }

  private _update(): void {
    clearTimeout(this._timer);
    this._timer = undefined;
    if (this._anybody === this._notified || this._removed) {
      return;
    }
    if (this._anybody) {
      this._send(true);
    } else {
      this._timer = setTimeout(() => this._send(false), HIDDEN_TIMEOUT_MS);
    }
  }

  /** Ticks are missing: the answer comes on the feed. */
  private _gap(): void {
    const now = Date.now();
    if (this._notified && now - this._requests > RETRY_INTERVAL_MS) {
      this._requests = now;
      this._send(true);
    }
  }

  private _send(shown: boolean): void {
    if (this._removed) {
      return;
    }
    this._notified = shown;
    const payload = { feed: this._feed.feedId, shown, seen: shown ? this._feed.seen : [], view: this._view };
    this._client.request('follow', payload).then(
      ({ known }) => {
        if (!known) {
          this._removed = true;
          [...this._shown.keys()].forEach(who => who.lost());
        }
      },
      () => {
        // No reply: a feed that continues without it detects the gap and repeats the request.
      }
    );
  }

  private readonly _shown = new Map<IFollowing, boolean>();
  private _timer: ReturnType<typeof setTimeout> | undefined;
  /** chosen charts of the GPUs; empty for those that the kernel has made */
  private _view = '';
  /** A feed begins by sending. */
  private _notified = true;
  private _requests = 0;
  private _removed = false;
}

const followers = new WeakMap<IFeed, Follower>();

/** The only follower of a feed, shared by all its views. */
export function followerOf(feed: IFeed, client: IAsk): Follower {
  let follower = followers.get(feed);
  if (!follower) {
    followers.set(feed, (follower = new Follower(feed, client)));
  }
  return follower;
}
