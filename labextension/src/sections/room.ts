/** Room for a section that has more to show for a while: a form, the details of a row. */

import { AccordionPanel, Widget } from '@lumino/widgets';

export class Room {
  /** `_needed`: CSS pixels that everything in the section takes. */
  constructor(
    private readonly _section: Widget,
    private readonly _needed: () => number
  ) {}

  /**
   * Grow so far that everything in the section is seen, or with 0 give back what was taken.
   *
   * `most`: of the height of all sections together, so that the others stay usable. What a person has moved since is left as it is.
   */
  want(most: number): void {
    const { parent } = this._section;
    const at = parent instanceof AccordionPanel ? parent.widgets.indexOf(this._section) : -1;
    if (!(parent instanceof AccordionPanel) || at < 0 || !this._section.isVisible) {
      return;
    }
    const now = parent.relativeSizes();
    if (!most) {
      if (this._before && alike(now, this._given)) {
        parent.setRelativeSizes([...this._before]);
      }
      this._before = null;
      return;
    }
    const heights = parent.widgets.map(widget => (widget.isVisible ? widget.node.offsetHeight : 0));
    const all = heights.reduce((sum, height) => sum + height, 0);
    const wanted = this._needed();
    const needed = Math.min(wanted / all, most);
    const rest = 1 - now[at];
    if (!all || !rest || wanted <= heights[at] + 1 || needed <= now[at]) {
      return;
    }
    const given = now.map((share, i) => (i === at ? needed : (share / rest) * (1 - needed)));
    if (!this._before || !alike(now, this._given)) {
      this._before = now;
    }
    parent.setRelativeSizes(given);
    // Least heights of the others may make something else of it.
    requestAnimationFrame(() => void (this._given = parent.relativeSizes()));
  }

  private _before: readonly number[] | null = null;
  private _given: readonly number[] = [];
}

/** The same sizes, up to rounding to pixels. */
function alike(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((share, i) => Math.abs(share - b[i]) < 0.01);
}
