"""Cancel where no file can be made: no free inode, a read-only state root, a folder that is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import Agent, alive, until

STEADY = 60.0
LONG = "import time\nprint('up')\ntime.sleep(600)"


def mount(*words: str) -> None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("needs root and Linux: mounts a file system")
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")


@pytest.fixture
def small_home(agent: Agent) -> Iterator[Path]:
    """A state root with few inodes on a file system of its own."""
    home = Path(agent.home)
    home.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m,nr_inodes=300", "amltrain-test", str(home))
    try:
        yield home
    finally:
        with contextlib.suppress(Exception):
            for run in agent.good("list")["runs"]:
                agent("cancel", run=run["run"])
        for pid in agent.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while os.path.ismount(home):
            subprocess.run(["umount", "-l", str(home)], check=True)


def no_inode(home: Path) -> Callable[[], None]:
    filler = home / "filler"
    filler.mkdir()
    with contextlib.suppress(OSError):
        for number in range(10_000):
            (filler / str(number)).touch()
    with pytest.raises(OSError, match="No space"):
        (home / "one-more").touch()

    def free() -> None:
        for path in filler.iterdir():
            path.unlink()

    return free


def read_only(home: Path) -> Callable[[], None]:
    # A view over the first one. The dispatcher writes through the view as soon as it is there, and
    # a mount with a file open for writing cannot become read-only: ask until none is.
    mount("--bind", str(home), str(home))
    remount = ["mount", "-o", "remount,bind,ro", str(home)]
    until(lambda: subprocess.run(remount, capture_output=True, check=False).returncode == 0, "a quiet moment", STEADY)
    with pytest.raises(OSError, match="Read-only"):
        (home / "one-more").touch()
    return lambda: subprocess.run(["umount", "-l", str(home)], check=True) and None


HOW = {"no-inode": no_inode, "read-only": read_only}


@pytest.mark.parametrize("how", HOW)
def test_cancel_without_cancel_file_ends_job(agent: Agent, small_home: Path, how: str) -> None:
    run = agent.submit(LONG)
    rank = agent.running(run, "up")["rank"]["pid"]
    restore = HOW[how](small_home)
    agent.good("cancel", run=run)
    until(lambda: not alive(rank), "the job's end", STEADY)
    restore()
    state = agent.wait(run, STEADY)
    assert (state["state"], state["reason"]) == ("canceled", "canceled"), state
    until(lambda: not agent.left(), "the last process", STEADY)


@pytest.mark.thorough
@pytest.mark.parametrize("how", HOW)
def test_cancel_of_waiting_run_without_file_prevents_start(agent: Agent, small_home: Path, how: str) -> None:
    busy = [agent.submit(LONG) for _ in range(2)]
    for run in busy:
        agent.running(run, "up")
    waiting = agent.submit("print('ran')")
    restore = HOW[how](small_home)
    agent.good("cancel", run=waiting)
    for run in busy:
        agent.good("cancel", run=run)
    restore()
    assert agent.wait(waiting, STEADY)["state"] == "canceled"
    assert agent.log(waiting) == ""
    for run in busy:
        assert agent.wait(run, STEADY)["state"] == "canceled"


def test_cancel_without_reachable_owner_is_error(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_amltrain.agent import calls
    from jupyter_amltrain.agent.supervise import run_state

    run = agent.submit(LONG)
    agent.running(run, "up")

    def full(here: object, run: str) -> object:
        return calls.not_writable("x", OSError(28, "No space left on device"))

    monkeypatch.setattr(calls, "_create_cancel_file", full)
    monkeypatch.setattr(run_state, "supervisors", lambda record, state: [])
    assert agent("cancel", run=run)["error"]["type"] == "StateError"
    monkeypatch.undo()
    agent.good("cancel", run=run)
    assert agent.wait(run)["state"] == "canceled"


def test_submit_without_free_inode_is_refused(agent: Agent, small_home: Path) -> None:
    agent.good("ping")
    restore = no_inode(small_home)
    answer = agent("submit", run="x", argv=["/bin/true"], environ={})
    assert answer["error"]["type"] == "StateError" and "\n" not in answer["error"]["message"], answer
    restore()
    assert agent.wait(agent.submit("pass"), STEADY)["state"] == "completed"
