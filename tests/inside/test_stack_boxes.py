"""The stacks of a run as boxes."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from jupyter_amltrain.inside.line_files import ProcessLines, processes_of
from jupyter_amltrain.inside.line_report import LineReader
from jupyter_amltrain.inside.stack_boxes import MAX_BOXES, MAX_DEPTH, stack_boxes
from jupyter_amltrain.schema.job import JobSpec

CELL = "for x in loader:\n    step(x)\n    print(x)\n    work(x)"
READER = LineReader(JobSpec(name="x", script=f"#\n{CELL}", script_name="cell.py", cell=CELL))


def process(nodes: list[list[Any]], samples: list[list[Any]], *, rank: int = 0, name: str = "") -> list[ProcessLines]:
    rows: list[Any] = [["h", 1, 7, rank, 1000.0, name, "/x/cell.py", 1], ["f", 0, "/x/source/cell.py"]]
    rows += [["n", *node] for node in nodes]
    rows += [["w", 1000.0, 1050.0, samples], ["w", 1050.0, 1100.0, samples[:1]]]
    return processes_of("".join(f"{json.dumps(row)}\n" for row in rows).encode())


NODES = [[1, 0, 0, 3, "<module>"], [2, 1, 0, 5, "step"], [3, 1, 0, 4, "step"]]


def test_box_is_below_its_caller_and_as_wide_as_its_time() -> None:
    found = stack_boxes(process(NODES, [[0, 2, "", 40_000, 0, 0], [0, 3, "", 20_000, 0, 0]]), READER)
    assert [(box.depth, box.left, box.share) for box in found] == [(0, 0, 1), (1, 0, 0.8), (1, 0.8, 0.2)]
    assert "step(x)" in found[0].label and "work(x)" in found[1].label and "line 5" in found[1].detail


def test_range_of_time_and_rank_are_chosen() -> None:
    both = [*process(NODES, [[0, 2, "", 50_000, 0, 0]]), *process(NODES, [[0, 3, "", 50_000, 0, 0]], rank=1)]
    assert [box.share for box in stack_boxes(both, READER)] == [1, 0.5, 0.5]
    (_, below) = stack_boxes(both, READER, rank=1)
    assert "line 4" in below.detail
    (_, below) = stack_boxes(process(NODES, [[0, 2, "", 9_000, 0, 0], [0, 3, "", 50_000, 0, 0]]), READER, start=60)
    assert "line 5" in below.detail


def test_workers_and_other_threads_are_left_out() -> None:
    samples = [[0, 2, "", 1_000, 0, 0], [1, 3, "", 50_000, 0, 0]]
    found = stack_boxes([*process(NODES, samples), *process(NODES, [[0, 3, "", 9_000, 0, 0]], name="worker")], READER)
    assert len(found) == 2


def test_deep_wide_and_damaged_stacks_are_bounded() -> None:
    deep = [[at, at - 1, 0, at, "\ud800"] for at in range(1, 900)]
    wide = [[at, 899, 0, at, "f"] for at in range(900, 1400)]
    samples = [[0, at, "", 10, 0, 0] for at in (0, *range(880, 1300))]
    found = stack_boxes(process([*deep, *wide, [0, 1, 0, 1, "x"]], samples), READER)
    assert 0 < len(found) <= MAX_BOXES and max(box.depth for box in found) < MAX_DEPTH
    assert msgspec.json.encode(found)
