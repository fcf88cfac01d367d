/** The stacks of a run as boxes, each below the one that called it, as wide as its time. */

import type { IStackBox } from '../protocol';
import { element } from '../sections/dom';

/** CSS pixels of a level. */
const LEVEL = 18;

export function drawStacks(boxes: readonly IStackBox[]): HTMLElement {
  const node = element('div', 'jp-AmlRun-stacks');
  node.hidden = boxes.length === 0;
  node.style.height = `${LEVEL * (1 + Math.max(0, ...boxes.map(({ depth }) => depth)))}px`;
  node.append(
    ...boxes.map(({ depth, left, share, label, detail }) => {
      const box = element('div', 'jp-AmlRun-stack', label);
      box.title = `${label}\n${detail}`;
      box.dataset.level = String(depth % 3);
      box.style.left = `${100 * left}%`;
      box.style.width = `${100 * share}%`;
      box.style.top = `${LEVEL * depth}px`;
      return box;
    })
  );
  return node;
}
