"""The stacks of a run as boxes: each line below the one that called it, as wide as its time."""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_amltrain.inside.line_files import ProcessLines
from jupyter_amltrain.inside.line_report import LineReader, part_of_window, start_of
from jupyter_amltrain.schema.run_lines import StackBox
from jupyter_amltrain.text import printable, seconds_text, shorten

#: Boxes of a picture, boxes above one another, and the least part of the time of a box.
MAX_BOXES, MAX_DEPTH, MIN_SHARE = 150, 24, 0.005

_Key = tuple[str, int, str]


class _Line:
    """A line as one caller has called it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.below: dict[_Key, _Line] = {}
        self.text = ""


def stack_boxes(
    processes: Iterable[ProcessLines],
    reader: LineReader,
    *,
    start: float = 0.0,
    end: float | None = None,
    rank: int | None = None,
) -> tuple[StackBox, ...]:
    """Return the boxes of the main threads of a run, callers first; times as for `report_of`."""
    whole = list(processes)
    zero = start_of(whole)
    root = _Line()
    for process in whole:
        if process.name or (rank is not None and process.rank != rank):
            continue
        paths: dict[int, list[_Line]] = {0: [root]}
        for number, node in process.nodes.items():
            if not number:
                continue
            above = paths[node.parent]
            key = reader.file(node.file), reader.line(node.file, node.line), node.function
            if len(above) > MAX_DEPTH:
                paths[number] = above
                continue
            line = above[-1].below.setdefault(key, _Line())
            line.text = line.text or reader.text(node.file, node.line)
            paths[number] = [*above, line]
        for window in process.windows:
            part = part_of_window(window, zero + start, None if end is None else zero + end)
            for sample in window.samples if part else ():
                if sample.thread == 0:
                    for line in paths[sample.node]:
                        line.seconds += sample.wall * part
    return _placed(root)


def _placed(root: _Line) -> tuple[StackBox, ...]:
    """Return the boxes below a line, level by level; of each caller the longest first."""
    boxes: list[StackBox] = []
    level: list[tuple[_Line, float]] = [(root, 0.0)]
    for depth in range(MAX_DEPTH):
        found: list[tuple[_Line, float]] = []
        for caller, left in level:
            for key, line in sorted(caller.below.items(), key=lambda one: -one[1].seconds):
                share = line.seconds / root.seconds if root.seconds > 0 else 0.0
                if share < MIN_SHARE or len(boxes) == MAX_BOXES:
                    break
                boxes.append(_box(key, line, depth, left, share))
                found.append((line, left))
                left += share
        level = found
    return tuple(boxes)


def _box(key: _Key, line: _Line, depth: int, left: float, share: float) -> StackBox:
    file, number, function = key
    where = f"{file}:{number}" if file else f"line {number}"
    name = "" if function.startswith("<") else f"{function}: "
    return StackBox(
        depth=depth,
        left=round(left, 4),
        share=round(min(1.0, share), 4),
        label=printable(shorten(f"{name}{line.text or where}", 80)),
        detail=printable(f"{where}, {100 * share:.0f} %, {seconds_text(line.seconds)}"),
    )
