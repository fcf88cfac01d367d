/**
 * Feeds of this page by their id.
 *
 * Nothing here imports the widget library: outputs must load where it is absent.
 */

import { Widget } from '@lumino/widgets';

/** Somewhere on the page that shows a feed's charts. */
export interface ISite extends Widget {
  /** inside the visible part of the page */
  readonly onScreen: boolean;
}

/** What a host needs to know of a `StreamFeedModel`. */
export interface IFeed {
  readonly feedId: string;
  readonly ended: boolean;
  /** grows when the kernel knows more of the run than its ticks */
  readonly revision: number;
  /** the ticks that come next, by node */
  readonly seen: number[];
  /** ticks are missing: a view with a kernel should request them */
  onGap: (() => void) | null;
  /** the reader has chosen other charts, which the kernel has to make */
  onView: ((view: string) => void) | null;
  /** the models are gone: kernel restarted, feed closed */
  onLost(callback: () => void): void;
  /** a new view of the charts */
  createSite(): Promise<ISite>;
}

const feeds = new Map<string, IFeed>();
const waiting = new Map<string, Set<(feed: IFeed) => void>>();
let registered = false;

/** The widget library is there and knows our models. */
export function available(): boolean {
  return registered;
}

export function setAvailable(): void {
  registered = true;
}

export function addFeed(feed: IFeed): void {
  feeds.set(feed.feedId, feed);
  waiting.get(feed.feedId)?.forEach(resolve => resolve(feed));
  waiting.delete(feed.feedId);
}

export function removeFeed(feed: IFeed): void {
  if (feeds.get(feed.feedId) === feed) {
    feeds.delete(feed.feedId);
  }
}

/** The feed of this id, or null when its model has not come within `ms` milliseconds. */
export function waitForFeed(id: string, ms: number): Promise<IFeed | null> {
  const found = feeds.get(id);
  if (found) {
    return Promise.resolve(found);
  }
  return new Promise(resolve => {
    const all = waiting.get(id) ?? new Set();
    waiting.set(id, all);
    const come = (feed: IFeed) => {
      clearTimeout(timer);
      resolve(feed);
    };
    const timer = setTimeout(() => {
      all.delete(come);
      resolve(null);
    }, ms);
    all.add(come);
  });
}
