"""The graph of a pipeline as it is drawn: places of boxes and lines, states, times, the longest way."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jupyter_amltrain.pipelines.plan import DATA, PlannedStep, levels
from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns
from jupyter_amltrain.schema.run_graph import MAX_NODES, GraphEdge, GraphNode, RunGraph
from jupyter_amltrain.text import counted, seconds_text, shorten

#: CSS pixels: a box, the space between two columns and between two rows, and around all.
BOX_WIDTH, BOX_HEIGHT, COLUMN_SPACE, ROW_SPACE, MARGIN = 156.0, 44.0, 48.0, 16.0, 8.0
#: Lines of the text.
_MAX_LINES = 60
#: Order of states in the summary.
_STATES = ("completed", "running", "preparing", "queued", "finalizing", "waiting", "failed", "lost", "canceled",
           "skipped")  # fmt: skip


def graph_of(steps: Sequence[PlannedStep], children: ChildRuns, now: float | None = None) -> RunGraph:
    """Return the graph.

    Parameters
    ----------
    steps
        Each after those that it needs.
    children
        Rows of the steps; those of parts are counted only.
    now
        Unix seconds, for the times of steps that run.
    """
    now = time.time() if now is None else now
    rows = {row.name: row for row in children.runs}
    known = {step.name: rows.get(step.name, ChildRun(id=step.name, name=step.name, state="waiting")) for step in steps}
    parts = _parts(children.runs)
    way = critical_way(steps, known, now)
    texts = {name: _text(row, parts.get(name, ()), now) for name, row in known.items()}
    lines = [_line(step, known[step.name], texts[step.name], step.name in way) for step in steps[:_MAX_LINES]]
    if len(steps) > _MAX_LINES:
        lines.append(f"and {len(steps) - _MAX_LINES} more")
    graph = RunGraph(lines=tuple(lines), sentence=_sentence(known, way, now), message=children.message)
    if len(steps) > MAX_NODES:
        return graph
    places = _places(steps)
    nodes = tuple(
        GraphNode(
            title=shorten(step.name, 20), x=places[step.name,][0], y=places[step.name,][1], text=texts[step.name],
            hint=_hint(step, known[step.name], texts[step.name]), state=known[step.name].state,
            reused=known[step.name].reused, critical=step.name in way, handle=known[step.name].handle,
        )
        for step in steps
    )  # fmt: skip
    return RunGraph(
        width=max(node.x for node in nodes) + BOX_WIDTH + MARGIN,
        height=max(y for _, y in places.values()) + BOX_HEIGHT + MARGIN,
        box_width=BOX_WIDTH,
        box_height=BOX_HEIGHT,
        nodes=nodes,
        edges=tuple(_edges(steps, places, way)),
        lines=graph.lines,
        sentence=graph.sentence,
        message=graph.message,
    )


def critical_way(steps: Sequence[PlannedStep], rows: Mapping[str, ChildRun], now: float) -> tuple[str, ...]:
    """Return the steps on the longest way in time, the first one first; steps without a time are not on it."""
    best: dict[str, tuple[float, tuple[str, ...]]] = {}
    for step in steps:
        took = _seconds(rows[step.name], now)
        before = max((best[name] for name in step.needs if name in best), default=(0.0, ()))
        best[step.name] = (before[0] + took, (*before[1], step.name) if took else before[1])
    longest = max(best.values(), default=(0.0, ()))
    return longest[1] if longest[0] else ()


def _seconds(row: ChildRun, now: float) -> float:
    if row.reused or row.started is None:
        return 0.0
    return max(0.0, (now if row.ended is None else row.ended) - row.started)


def _parts(rows: Sequence[ChildRun]) -> dict[str, list[ChildRun]]:
    found: dict[str, list[ChildRun]] = {}
    for row in rows:
        owner, colon, _ = row.name.partition(":")
        if colon:
            found.setdefault(owner, []).append(row)
    return found


def _text(row: ChildRun, parts: Sequence[ChildRun], now: float) -> str:
    """Return the line below the name of a step."""
    if row.reused:
        return "reused"
    took = _seconds(row, now)
    words = row.state + (f" {seconds_text(took)}" if took else "")
    done = sum(part.state == "completed" for part in parts)
    return f"{words}, {done}/{len(parts)}" if parts else words


def _hint(step: PlannedStep, row: ChildRun, text: str) -> str:
    parts = [f"{step.name} on {step.target}: {text}", row.detail.rstrip("."), row.handle]
    return ". ".join(filter(None, parts))


def _line(step: PlannedStep, row: ChildRun, text: str, is_critical: bool) -> str:
    sources = ", ".join(step.needs)
    more = row.detail if row.state not in ("completed", "running") and row.detail else ""
    source = f"from {sources}" if sources else ""
    reused = f"the result of {row.handle}" if row.reused else ""
    words = [text, source, "on the longest way" if is_critical else "", reused, shorten(more, 80) if more else ""]
    return f"{step.name}: {', '.join(filter(None, words))}"


def _sentence(rows: Mapping[str, ChildRun], way: Sequence[str], now: float) -> str:
    """Return ``4 steps: 2 completed, 1 reused, 1 running; longest way prep -> train 8.1 s``."""
    counts: dict[str, int] = {}
    for row in rows.values():
        state = "reused" if row.reused else row.state
        counts[state] = counts.get(state, 0) + 1
    order = {state: at for at, state in enumerate(("completed", "reused", *_STATES[1:]))}
    listed = ", ".join(f"{counts[state]} {state}" for state in sorted(counts, key=lambda one: order.get(one, 99)))
    text = f"{counted(len(rows), 'step')}: {listed}"
    if len(way) > 1:
        total = seconds_text(sum(_seconds(rows[name], now) for name in way))
        shown = " -> ".join(way if len(way) <= 6 else [*way[:3], "...", *way[-2:]])
        text += f"; longest way {shown}: {total}"
    return f"{text}."


class _Place(NamedTuple):
    """Where a box is, or where a line crosses a column in which it has no box.

    Attributes
    ----------
    key
        Name of the step; of a line its two steps and the column.
    before
        Keys that it is drawn close to.
    """

    key: tuple[str, ...]
    before: tuple[tuple[str, ...], ...]


def _places(steps: Sequence[PlannedStep]) -> dict[tuple[str, ...], tuple[float, float]]:
    """Return the left upper corners of the boxes, and of the gaps for lines: a column for each level."""
    columns: dict[int, list[_Place]] = {}
    level = levels(steps)
    for step in steps:
        before = []
        for source in step.needs:
            last: tuple[str, ...] = (source,)
            for column in range(level[source] + 1, level[step.name]):
                gap = _Place((source, step.name, str(column)), (last,))
                columns.setdefault(column, []).append(gap)
                last = gap.key
            before.append(last)
        columns.setdefault(level[step.name], []).append(_Place((step.name,), tuple(before)))
    tallest = max(map(len, columns.values()))
    at: dict[tuple[str, ...], float] = {}
    for number in sorted(columns):
        column_places = columns[number]
        middle = {
            place.key: sum(at[key] for key in place.before) / len(place.before) if place.before else i
            for i, place in enumerate(column_places)
        }
        column_places.sort(key=lambda place: middle[place.key])
        offset = (tallest - len(column_places)) / 2
        at.update({place.key: offset + i for i, place in enumerate(column_places)})
    return {
        place.key: (
            MARGIN + number * (BOX_WIDTH + COLUMN_SPACE),
            MARGIN + at[place.key] * (BOX_HEIGHT + ROW_SPACE),
        )
        for number, column_places in columns.items()
        for place in column_places
    }


def _edges(
    steps: Sequence[PlannedStep], places: Mapping[tuple[str, ...], tuple[float, float]], way: Sequence[str]
) -> list[GraphEdge]:
    follows = set(zip(way, way[1:], strict=False))
    found = []
    for step in steps:
        for source in step.needs:
            gaps = sorted(place for key, place in places.items() if key[:2] == (source, step.name))
            taken = [
                f"{link.output} ({'files' if link.kind == DATA else 'value'})"
                for link in step.links.values()
                if link.step == source
            ]
            hint = f"{source} -> {step.name}" + (f": {', '.join(taken)}" if taken else "")
            path = _path([places[source,], *gaps, places[step.name,]])
            found.append(GraphEdge(path=path, hint=hint, critical=(source, step.name) in follows))
    return found


def _path(corners: Sequence[tuple[float, float]]) -> str:
    """Return a line from box to box, through the gaps between them."""
    bend = COLUMN_SPACE * 0.6
    x, y = corners[0][0] + BOX_WIDTH, corners[0][1] + BOX_HEIGHT / 2
    parts = [f"M{x:g} {y:g}"]
    for left, top in corners[1:]:
        to = top + BOX_HEIGHT / 2
        parts.append(f"C{x + bend:g} {y:g} {left - bend:g} {to:g} {left:g} {to:g}")
        x, y = left + BOX_WIDTH, to
        parts.append(f"H{x:g}")
    return "".join(parts[:-1])
