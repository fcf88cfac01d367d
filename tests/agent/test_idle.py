"""Whether a machine may be stopped, as a line of cron asks it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent import idle
from tests.helpers import until


def answer(home: Path, seconds: float) -> tuple[int, str]:
    """Exit code and text of ``agent.pyz idle HOME SECONDS``."""
    argv = [sys.executable, "-m", "jupyter_amltrain.agent", "idle", str(home), str(seconds)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


@pytest.mark.thorough
def test_machine_with_run_is_not_idle(api: Any, home: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    assert answer(home, 1) == (0, "idle\n")
    run = api.submit(f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.05)\n", gpus=0)
    until(lambda: run.state == "running", "the run")
    code, text = answer(home, 0)
    assert code == 1 and run.run_id in text
    assert answer(tmp_path / "another", 0)[0] == 1  # another state root of the same user
    gate.touch()
    run.wait(60)
    assert answer(home, 3600)[0] == 1 and answer(home, 0) == (0, "idle\n")


@pytest.mark.thorough
@pytest.mark.parametrize("text", ['{"schema": 1, "sta', "[]", ""])
def test_run_that_cannot_be_read_keeps_machine_on(api: Any, home: Path, text: str) -> None:
    run = api.submit("x = 1", gpus=0).wait(60)
    file = home / "runs" / run.run_id / "state.json"
    assert json.loads(file.read_text())["state"] == "completed"
    file.write_text(text)
    assert answer(home, 3600)[0] == 1


def test_machine_that_has_just_started_is_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_uptime", lambda: 30.0)
    assert idle.busy_reason(str(tmp_path), 60.0) and not idle.busy_reason(str(tmp_path), 20.0)
    assert idle.main([str(tmp_path), "never"]) == 1
