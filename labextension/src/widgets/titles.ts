/** The title of a chart says it when nothing in the shown time can be told: an empty chart would look like zero. */

import { MarkSpec } from './layout';
import { IPoints } from './reduce';

interface IModel {
  get(name: string): any;
  set_state(state: Record<string, unknown>): void;
}

/** Whether there are times, and no value at any of them. */
function untold({ x, y }: IPoints): boolean {
  return x.length > 0 && y.every(row => row.every(value => !Number.isFinite(value)));
}

export class Titles {
  /**
   * Put ``n/a`` behind the titles of figures without a value, and take it away again.
   *
   * @param figures bqplot figures
   * @param drawn what is drawn now, by mark
   */
  update(figures: readonly IModel[], drawn: ReadonlyMap<unknown, [MarkSpec, IPoints]>): void {
    for (const figure of figures) {
      const own = ((figure?.get('marks') ?? []) as unknown[])
        .map(mark => drawn.get(mark))
        .filter((found): found is [MarkSpec, IPoints] => found !== undefined && found[0].kind !== 'span');
      if (!own.length) {
        continue;
      }
      const before = this._own.get(figure) ?? String(figure.get('title') ?? '');
      this._own.set(figure, before);
      const title = own.every(([, points]) => untold(points)) ? `${before}: n/a` : before;
      if (figure.get('title') !== title) {
        figure.set_state({ title });
      }
    }
  }

  private readonly _own = new Map<IModel, string>();
}
