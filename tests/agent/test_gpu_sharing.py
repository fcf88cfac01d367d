"""Others on the GPUs of a run that uses them: told in its record, whenever they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.telemetry.gpu_processes import MAX_NOTES, SharingDetector, pids_are_reliable
from tests.fakes import driver as fake
from tests.fakes.driver import Process

from .conftest import Agent, until

GPUS = [{"index": 0}, {"index": 100, "mig": True, "parent": 0, "instance": 0}]


def row(pid: int, owner: str = "other") -> list[Any]:
    return [0, pid, owner, 1000, "python"]


def test_sharing_note_names_other_process_once() -> None:
    sharing, us = SharingDetector(GPUS), os.getpid()
    assert sharing.check([[], [row(us)]], ()) == {}
    found = sharing.check([[], [row(us)]], ())
    assert list(found) == [1] and "GPU 0 MIG 0" in found[1] and f"pid {us}" in found[1]
    assert sharing.check([[], [row(us)]], ()) == {}


def test_sharing_note_omits_own_process() -> None:
    sharing, us = SharingDetector(GPUS), os.getpid()
    assert sharing.check([[row(us)], []], ()) == {}
    assert sharing.check([[row(us)], []], {us}) == {}
    assert sharing.check([[row(us, "unknown")], []], ()) == {}


def test_sharing_notes_are_limited() -> None:
    sharing = SharingDetector([{"index": 0}] * (MAX_NOTES + 5))
    rows = [[row(os.getpid())] for _ in range(MAX_NOTES + 5)]
    sharing.check(rows, ())
    assert len(sharing.check(rows, ())) == MAX_NOTES


@pytest.mark.skipif(
    not pids_are_reliable(), reason="needs the host's PID namespace: the driver reports pids of the host"
)
def test_sharing_note_is_in_run_record(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake.needed(tmp_path, 1).use(monkeypatch)
    run = agent.gated(gpus=1)
    rank = agent.running(run, "up")["rank"]["pid"]
    driver.processes(0, [Process(rank, 1 << 30)])
    until(lambda: agent.state(run).get("truth", {}).get("verdict") == "used", "the verdict")
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as other:
        try:
            driver.processes(0, [Process(rank, 1 << 30), Process(other.pid, 4 << 30)])

            def has_note() -> bool:
                notes = [str(line.get("note")) for line in agent.telemetry(run) if isinstance(line, dict)]
                return any("others compute on GPU 0 too" in note and f"pid {other.pid}" in note for note in notes)

            until(has_note, "the note")
            truth = json.loads((agent.run_folder(run) / "telemetry" / "truth-0.json").read_text())
            assert truth["verdict"] == "used" and "others compute on GPU 0 too" in truth["detail"]
        finally:
            other.kill()
    agent.open_gate()
    assert agent.wait(run)["state"] == "completed"
