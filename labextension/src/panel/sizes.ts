/** How high each open section is. No DOM. */

export interface IWish {
  readonly open: boolean;
  /** Pixels below which it is of no use. */
  readonly least: number;
  /** Pixels with which it is content. */
  readonly wish: number;
  /** What is left goes to the open section that is greediest. */
  readonly greed: number;
  /** Its wish comes before those of others. */
  readonly urgent?: boolean;
}

/** Pixels for each section: the least first, then wishes as far as there is room, the rest to the greediest. */
export function divide(room: number, sections: readonly IWish[]): number[] {
  const open = sections.map(section => (section.open ? 1 : 0));
  const sum = (values: readonly number[]) => values.reduce((all, value) => all + value, 0);
  const least = sections.map((section, i) => open[i] * section.least);
  const wishes = sections.map((section, i) => open[i] * Math.max(section.wish, section.least));
  const need = sum(least);
  if (need >= room) {
    return least.map(value => (need ? (value / need) * room : 0));
  }
  const grow = (from: readonly number[], urgent: boolean) => {
    const more = wishes.map((value, i) => ((sections[i].urgent ?? false) === urgent ? value - least[i] : 0));
    const share = sum(more) > 0 ? Math.min(1, (room - sum(from)) / sum(more)) : 0;
    return from.map((value, i) => value + more[i] * share);
  };
  const sizes = grow(grow(least, true), false);
  const rest = room - sum(sizes);
  let greediest = -1;
  sections.forEach((section, i) => {
    if (section.open && (greediest < 0 || section.greed > sections[greediest].greed)) {
      greediest = i;
    }
  });
  if (greediest >= 0) {
    sizes[greediest] += rest;
  }
  return sizes;
}

/** Which sections to close, the first ones first, so that the others can be used beside the one that must be seen. */
export function tooMany(room: number, sections: readonly IWish[], must: number): number[] {
  const closed: number[] = [];
  let need = sections.reduce((all, section) => all + (section.open ? section.least : 0), 0);
  for (let i = sections.length - 1; i >= 0 && need > room; i--) {
    if (i !== must && sections[i].open) {
      closed.push(i);
      need -= sections[i].least;
    }
  }
  return closed;
}

/** What is remembered of the sections, by their names. */
export interface IKept {
  readonly closed: readonly string[];
  /** Pixels that a person has given. */
  readonly sizes: Readonly<Record<string, number>>;
}

/** What was remembered, as far as it can be used. */
export function keptOf(value: unknown): IKept | null {
  if (typeof value !== 'object' || value === null) {
    return null;
  }
  const { closed, sizes } = value as { closed?: unknown; sizes?: unknown };
  const found: Record<string, number> = {};
  if (typeof sizes === 'object' && sizes !== null) {
    for (const [name, size] of Object.entries(sizes)) {
      if (typeof size === 'number' && Number.isFinite(size) && size > 0) {
        found[name] = size;
      }
    }
  }
  return {
    closed: Array.isArray(closed) ? closed.filter((name): name is string => typeof name === 'string') : [],
    sizes: found
  };
}
