"""A real agent in folders of its own, of which nothing outlives the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.calls import call
from jupyter_amltrain.agent.processes import process_table
from jupyter_amltrain.backends.agent_zipapp import build
from tests.helpers import DEADLINE
from tests.helpers import until as until

TERMINAL = {"completed", "failed", "canceled", "lost"}


def processes_of(text: str) -> set[int]:
    """Pids that hold `text` in their command line or environment; zombies do not count."""
    wanted = os.fsencode(text)
    found = set()
    for pid, row in process_table().items():
        if pid == os.getpid() or row.state in "ZX":
            continue
        try:
            held = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if wanted in held:
            found.add(pid)
    return found


class Agent:
    """Calls of an agent whose home and queue are this test's own."""

    def __init__(self, folder: Path, zipapp: Path) -> None:
        self.folder = folder
        self.home = str(folder / "home")
        self.queue = str(folder / "queue")
        self.zipapp = str(zipapp)
        self.gate = folder / "gate-of-jobs"
        self.count = 0

    def __call__(self, op: str, **payload: Any) -> dict[str, Any]:
        return call(op, payload, self.home, self.queue, self.zipapp)

    def good(self, op: str, **payload: Any) -> dict[str, Any]:
        answer = self(op, **payload)
        assert "error" not in answer, answer
        return answer

    def submit(self, code: str, run: str = "", **payload: Any) -> str:
        """Submit Python code; the run id."""
        self.count += 1
        run = run or f"run-{self.count}"
        payload.setdefault("environ", dict(os.environ))
        payload.setdefault("argv", [sys.executable, "-S", "-u", "-c", code])
        self.good("submit", run=run, **payload)
        return run

    def gated(self, code: str = "", **payload: Any) -> str:
        """Submit a job that prints ``up``, runs until :meth:`open_gate`, then does `code`; the run id."""
        wait = f"import os, time\nprint('up')\nwhile not os.path.exists({str(self.gate)!r}): time.sleep(0.01)\n"
        return self.submit(wait + code, **payload)

    def open_gate(self) -> None:
        """Let the gated jobs go on."""
        self.gate.touch()

    def state(self, run: str) -> dict[str, Any]:
        answer = self.good("poll", run_ids=[run])
        assert not answer["errors"], answer
        return answer["runs"].get(run, {})

    def wait(self, run: str, deadline: float = DEADLINE) -> dict[str, Any]:
        """The final state."""
        return until(
            lambda: state if (state := self.state(run)).get("state") in TERMINAL else None,
            f"the end of {run}: {self.state(run)}",
            deadline,
        )

    def running(self, run: str, text: str = "") -> dict[str, Any]:
        """The state once the job runs and its log holds `text`."""
        until(lambda: self.state(run).get("rank") and text in self.log(run), f"{run} to run")
        return self.state(run)

    def run_folder(self, run: str) -> Path:
        return Path(self.home, "runs", run)

    def log(self, run: str) -> str:
        path = self.run_folder(run) / "log" / "rank-0.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def telemetry(self, run: str) -> list[Any]:
        path = self.run_folder(run) / "telemetry" / "node-0.jsonl"
        data = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def ticks(self, run: str) -> list[list[Any]]:
        """Rows of samples; objects between them are notes about what changed."""
        return [line for line in self.telemetry(run) if isinstance(line, list)]

    def dispatcher(self) -> int:
        return int(self.good("ping")["pid"])

    def kill_dispatcher(self) -> int:
        pid = self.dispatcher()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "the dispatcher's end")
        return pid

    def left(self) -> set[int]:
        """Processes of runs: marked ones, and our forked ones except the dispatcher's own."""
        return processes_of(self.home + "/runs")


@contextlib.contextmanager
def stranger(code: str = "import time; time.sleep(600)") -> Iterator[int]:
    """The pid of a Python process that is not a descendant of this process: its parent has left."""
    start = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
    words = [sys.executable, "-S", "-c", start, sys.executable, "-S", "-c", code]
    pid = int(subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    row = process_table().get(pid)
    return row is not None and row.state not in "ZX"


@pytest.fixture(scope="session")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def agent(tmp_path: Path, zipapp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setenv("AMLTRAIN_DISPATCHER_IDLE", "60")
    monkeypatch.setenv("AMLTRAIN_GRACE", "5")
    monkeypatch.setenv("AMLTRAIN_CPU_SLOTS", "2")
    monkeypatch.setenv("AMLTRAIN_SAMPLE_PERIOD", "0.1")
    monkeypatch.setenv("AMLTRAIN_GPU_SLOW_PERIOD", "0.5")
    monkeypatch.delenv("AMLTRAIN_RUN", raising=False)
    made = Agent(tmp_path, zipapp)
    try:
        yield made
    finally:
        for _ in range(100):
            left = processes_of(str(tmp_path))
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)
