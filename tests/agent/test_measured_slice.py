"""A job that is only measured ends some seconds or steps after its first metric."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.agent.supervise.measured_slice import MeasuredSlice, check
from tests.agent import local_service
from tests.agent.local_service import Job, ended

no_leftovers = local_service.no_leftovers

LIMITS = {"seconds": 5.0, "steps": 0, "start_s": 60.0}


class Log:
    """A journal that grows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rank-0.jsonl"

    def point(self, key: str, step: int | None = None, batch: bool = False) -> None:
        row = {"key": key, "value": 1.0, "timestamp": 1, "step": step}
        record = {"op": "runs/log-batch", "b": {"metrics": [row]}} if batch else {"op": "runs/log-metric", "b": row}
        self.text(json.dumps(record) + "\n")

    def text(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)


def test_time_begins_with_first_metric_that_is_logged_again(tmp_path: Path) -> None:
    log = Log(tmp_path)
    one = MeasuredSlice(str(log.path), LIMITS)
    assert not one.due(10.0, 0.0)  # no file
    log.point("size")
    assert not one.due(11.0, 0.0)
    log.point("loss", 0)
    assert not one.due(20.0, 0.0)
    log.point("loss", 1, batch=True)
    assert not one.due(24.9, 0.0) and "5 s" in one.due(25.0, 0.0)


def test_steps_count_from_first_step(tmp_path: Path) -> None:
    log = Log(tmp_path)
    one = MeasuredSlice(str(log.path), {**LIMITS, "steps": 20})
    log.point("loss", 100)
    log.point("loss", 119)
    assert not one.due(1.0, 0.0)
    log.point("loss", 120)
    assert "20 steps" in one.due(1.0, 0.0)


def test_job_without_metric_ends_after_its_start_limit(tmp_path: Path) -> None:
    one = MeasuredSlice(str(tmp_path / "none"), LIMITS)
    assert not one.due(59.9, 0.0) and "no metric" in one.due(60.0, 0.0)


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    log = Log(tmp_path)
    one = MeasuredSlice(str(log.path), LIMITS)
    log.text(
        'nonsense\n[1]\n{"op": "runs/log-metric", "b": 3}\n{"op": "runs/log-batch", "b": {"metrics": [1]}}\n\xff\n'
    )
    log.text('{"op": "runs/log-metric", "b": {"key": "loss", "step": Infinity}}\n')
    log.point("loss", 0)
    log.text('{"op": "runs/log-met')  # a line in two reads
    assert not one.due(1.0, 0.0)
    log.text('ric", "b": {"key": "loss", "step": 1}}\n')
    assert not one.due(2.0, 0.0) and one.due(6.0, 0.0)


@pytest.mark.parametrize(
    "limits", [{}, {"seconds": 5}, {"seconds": "5", "start_s": 1}, {"seconds": -1, "start_s": 1}, {**LIMITS, "x": 1}]
)
def test_invalid_limits_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(AgentError):
        check(limits)


#: Rank 0 writes the lines of a sink; rank 1 fails when rank 0 has gone, as in a collective.
RANKS = """
import json, os, time
path = "logs/amltrain/metrics/rank-0.jsonl"
if os.environ["RANK"] == "0":
    open("pid", "w").write(str(os.getpid()))
    for step in range(10**6):
        with open(path, "a") as file:
            file.write(json.dumps({"seq": step, "op": "runs/log-metric", "b": {"key": "loss", "step": step}}) + "\\n")
        time.sleep(0.02)
while not os.path.exists("pid") or not open("pid").read():
    time.sleep(0.01)
while True:
    os.kill(int(open("pid").read()), 0)
    time.sleep(0.01)
"""


@pytest.mark.thorough
def test_processes_of_a_service_end_together_and_complete(tmp_path: Path, zipapp: Path) -> None:
    limits = {"seconds": 600.0, "steps": 40, "start_s": 600.0}
    job = Job(tmp_path, zipapp, RANKS, slice=limits, tracking={"run_id": "", "mode": "direct"})
    ranks = [job.start(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), NODE_RANK="0") for rank in range(2)]
    assert [code for code, _, _ in ended(ranks)] == [0, 0]
    state = job.json("state.json")
    assert (state["state"], state["reason"]) == ("completed", "slice")
