"""Runs of one node are placed on the machine with the most room."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.backends import run_placement
from jupyter_amltrain.backends.run_placement import RunPlacement
from jupyter_amltrain.schema.job import JobSpec, Resources


def load(
    cpu: tuple[int, int] = (4, 4), gpu: tuple[int, int] = (0, 0), queued: int = 0, lost: int = 0
) -> dict[str, Any]:
    """What a machine says: total and free slots, and waiting runs."""
    slots: dict[str, dict[str, int]] = {
        kind: {"total": total, "free": free} for kind, (total, free) in (("cpu", cpu), ("gpu", gpu))
    }
    return {"slots": {**slots, "gpu": {**slots["gpu"], "lost": lost}}, "queued": queued}


def choose(loads: list[dict[str, Any]], gpus: int | None = 0) -> int:
    spec = JobSpec(name="r", script="pass", resources=Resources(gpus=gpus))
    return RunPlacement().choose("r-1", spec, dict(enumerate(loads)), ())


@pytest.mark.parametrize(
    ("loads", "gpus", "machine"),
    [
        ([load(), load()], 0, 0),
        ([load(cpu=(4, 3)), load()], 0, 1),
        ([load(cpu=(8, 6)), load(cpu=(2, 1))], 0, 0),  # a quarter of it is used, and a half
        ([load(cpu=(1, 0), queued=1), load(cpu=(1, 0))], 0, 1),
        ([load(gpu=(1, 0)), load(gpu=(1, 1), cpu=(4, 0))], 1, 1),  # GPU slots count, not CPU slots
        ([load(gpu=(1, 0)), load(gpu=(1, 1), cpu=(4, 3))], 0, 0),
        ([load(), load(gpu=(1, 0), queued=9)], None, 1),  # without --gpus it gets one if there is any
        ([load(gpu=(2, 2)), load(gpu=(4, 0), queued=9)], 3, 1),
        ([load(gpu=(2, 1), lost=1), load(gpu=(2, 0), queued=9)], 2, 1),
        ([load(gpu=(1, 1)), load(gpu=(2, 0))], 8, 1),  # the error names the most that there is
    ],
)
def test_machine_with_most_room_is_chosen(loads: list[dict[str, Any]], gpus: int | None, machine: int) -> None:
    assert choose(loads, gpus) == machine


def test_planned_runs_count_until_they_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JobSpec(name="r", script="pass", resources=Resources(gpus=0))
    placement, loads = RunPlacement(), {0: load(), 1: load()}
    assert [placement.choose(f"r-{number}", spec, loads, ()) for number in range(4)] == [0, 1, 0, 1]
    since = placement.planned()
    for run_id in ("r-0", "r-2"):
        placement.launched(run_id)
    assert placement.choose("r-4", spec, loads, since) == 0  # the answers may be older than the launches
    assert placement.choose("r-5", spec, loads, ()) == 0
    clock = run_placement.time.monotonic() + run_placement._PLANNED_S + 1
    monkeypatch.setattr(run_placement.time, "monotonic", lambda: clock)
    assert not placement.planned() and placement.machine_of("r-3") == 1
