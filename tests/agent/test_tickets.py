"""Who may say that a waiting or running job is lost, and jobs whose files cannot be read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent import json_dir, processes
from jupyter_amltrain.agent.calls import call
from jupyter_amltrain.agent.queue import dispatcher, tickets
from jupyter_amltrain.agent.supervise.helpers import protected_pids

from .conftest import Agent, alive, until


def gated(agent: Agent, word: str = "up") -> str:
    """Code that prints `word`, and ends once `agent.folder / "gate"` is there."""
    gate = str(agent.folder / "gate")
    return f"import os, time\nprint({word!r})\nwhile not os.path.exists({gate!r}): time.sleep(0.01)\n"


def busy(agent: Agent) -> list[str]:
    """Take both slots until the gate opens."""
    runs = [agent.submit(gated(agent)) for _ in range(2)]
    for run in runs:
        agent.running(run, "up")
    return runs


def age(path: Path) -> None:
    """Make a state so old that a missing ticket is no matter of milliseconds."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "changed": 0}))


def dispatcher_log(agent: Agent) -> str:
    return Path(agent.queue, "dispatcher.txt").read_text()


def test_other_queue_keeps_waiting_run(agent: Agent) -> None:
    busy(agent)
    run = agent.submit("print('ran')")
    age(agent.run_folder(run) / "state.json")
    answer = call("poll", {"run_ids": [run]}, agent.home, str(agent.folder / "other"), agent.zipapp)
    assert answer["runs"][run]["state"] == "queued"
    assert f"AMLTRAIN_QUEUE={os.path.realpath(agent.queue)}" in answer["runs"][run]["detail"]
    (agent.folder / "gate").touch()
    assert agent.wait(run)["state"] == "completed" and agent.log(run) == "ran\n"


def test_linked_queue_is_same_queue(agent: Agent) -> None:
    link = agent.folder / "link"
    link.symlink_to(agent.folder, target_is_directory=True)
    own, agent.queue = agent.queue, str(link / "queue")
    busy(agent)
    run = agent.submit("pass")
    agent.queue = own
    agent.kill_dispatcher()
    shutil.rmtree(own)
    age(agent.run_folder(run) / "state.json")
    assert agent.state(run)["state"] == "lost"


def test_ended_run_in_queue_never_starts(agent: Agent) -> None:
    busy(agent)
    run = agent.submit("print('ran')")
    path = agent.run_folder(run) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "lost", "reason": "lost"}))
    (agent.folder / "gate").touch()
    assert agent.wait(agent.submit("pass"))["state"] == "completed"
    until(lambda: not list(Path(agent.queue, "tickets").iterdir()), "the dropped ticket")
    assert agent.state(run)["state"] == "lost" and agent.log(run) == ""


def test_other_pid_namespace_keeps_running_run(agent: Agent) -> None:
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a PID namespace")
    run = agent.submit(gated(agent))
    agent.running(run, "up")
    poll = subprocess.run(
        [*inside, sys.executable, "-I", "-S", agent.zipapp, "call", "poll", agent.home, agent.queue],
        input=json.dumps({"run_ids": [run]}).encode(), capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(poll.stdout)["runs"][run]["state"] == "running"
    (agent.folder / "gate").touch()
    assert agent.wait(run)["state"] == "completed"


def status_of(pid: int) -> str:
    """``/proc/<pid>/status``; its NSpid line has the pid in each namespace."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


@pytest.mark.thorough
def test_run_of_ended_container_is_lost(agent: Agent) -> None:
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a PID namespace")
    payload = {"run": "inner", "argv": [sys.executable, "-S", "-u", "-c", gated(agent)]}
    submit = [sys.executable, "-I", "-S", agent.zipapp, "call", "submit", agent.home, agent.queue]
    code = f"import subprocess, time; subprocess.run({submit!r}, input={json.dumps(payload).encode()!r}, check=True)"
    container = subprocess.Popen([*inside, sys.executable, "-c", code + "; time.sleep(600)"], stdout=subprocess.DEVNULL)
    try:
        until(lambda: agent.log("inner") == "up\n", "the job")
        until(lambda: '"rank":{' in (agent.run_folder("inner") / "state.json").read_text(), "its state")
        # Its dispatcher is killed: one of this user takes the queue over, and leaves the live run and its slot alone.
        theirs = json.loads(Path(agent.queue, "dispatcher.lock").read_text())["pid"]
        pid = next(pid for pid in processes.process_table() if f"\t{pid}\t{theirs}\n" in status_of(pid))
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "the dispatcher's end")
        assert agent.good("info")["running"] == 1
        assert agent.state("inner")["state"] == "running"
    finally:
        container.kill()
        container.wait()
    until(lambda: not agent.left(), "the container's end")
    state = agent.wait("inner")
    assert state["state"] == "lost" and "container" in state["detail"]
    until(lambda: agent.good("info")["running"] == 0, "the free slot")


def test_node_without_namespaces_is_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> str:
        raise FileNotFoundError(path)

    named = processes.pid_scope()
    processes.pid_scope.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(os, "readlink", refuse)
        assert named.split(" ")[0] == processes.pid_scope()
    processes.pid_scope.cache_clear()


def newer(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))


def torn(path: Path) -> None:
    path.write_text('{"schema": 1, "ru')


def unreadable(path: Path) -> None:
    """A file that gives an OSError to everybody, root included."""
    path.rename(path.with_suffix(".kept"))
    path.mkdir()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("damage", "words"),
    [(newer, "newer jupyter_amltrain (schema 99"), (torn, "is damaged"), (unreadable, "Is a directory")],
)
def test_unreadable_job_file_fails_only_its_run(agent: Agent, damage: Callable[[Path], None], words: str) -> None:
    busy(agent)
    broken, good = agent.submit("pass"), agent.submit("print('fine')")
    damage(agent.run_folder(broken) / "job.json")
    (agent.folder / "gate").touch()
    assert agent.wait(good)["state"] == "completed"
    state = agent.wait(broken)
    assert (state["state"], state["reason"]) == ("failed", "launch") and words in state["detail"]
    assert agent.log(broken) == "" and words in dispatcher_log(agent)
    assert broken in agent.good("list")["errors"] or damage is torn


@pytest.mark.thorough
def test_unreadable_state_file_is_set_aside(agent: Agent) -> None:
    dispatcher_pid = agent.dispatcher()
    busy(agent)
    broken, good = agent.submit("print('late')"), agent.submit("print('fine')")
    path = agent.run_folder(broken) / "state.json"
    unreadable(path)
    (agent.folder / "gate").touch()
    assert agent.wait(good)["state"] == "completed"
    until(lambda: f"run {broken} is postponed" in dispatcher_log(agent), "the dispatcher's log")
    answer = agent.good("poll", run_ids=[broken])
    assert answer["runs"] == {} and answer["errors"][broken]["type"] == "DamagedRun"
    path.rmdir()
    path.with_suffix(".kept").rename(path)
    assert agent.wait(broken)["state"] == "completed" and agent.log(broken) == "late\n"
    assert agent.dispatcher() == dispatcher_pid
    assert dispatcher_log(agent).count(f"run {broken} is postponed") == 1


@pytest.mark.thorough
def test_unreadable_queue_file_keeps_dispatcher(agent: Agent) -> None:
    agent.dispatcher()
    agent.kill_dispatcher()
    tickets = Path(agent.queue, "tickets")
    (tickets / "0000000007.json").mkdir()
    (tickets / "0000000008.json").write_text('{"schema": 99, "number": 8}')
    (tickets / "0000000009.json").write_text('{"schema": 1, "number": 9}')
    (tickets / "0000000011.json").write_text('{"schema": 1, "number": 11, "run": "half", "home": "/nowhere"}')
    Path(agent.queue, "slots", "0000000010.json").write_text('{"schema": 1, "number": 10, "run": "x", "home": "/n"}')
    run = agent.submit("print('fine')")
    assert agent.wait(run)["state"] == "completed"
    assert dispatcher_log(agent).count("skipped") == 3
    found = json_dir.NumberedJsonDir(str(tickets))
    assert found.load() == {} and found.last_number() == 9 and len(found.unreadable) == 3


def test_dispatcher_loop_error_keeps_dispatcher(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.mkdir()
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", "dispatcher_turn:raise")
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(once))
    run = agent.submit("pass")
    assert agent.wait(run)["state"] == "completed"
    assert "Traceback" in dispatcher_log(agent) and "FailpointError: dispatcher_turn" in dispatcher_log(agent)
    assert dispatcher_log(agent).count("serves") == 1


def test_dispatcher_repeated_error_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    messages: list[str] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    class Broken(dispatcher.Dispatcher):
        def __init__(self) -> None:
            self.gpus = self.scheduler = self.launcher = self.selector = _Nothing()  # type: ignore[assignment]

        def log(self, text: str) -> None:
            messages.append(text)

        def _try_leave(self) -> bool:
            return len(slept) == 8

        def _pause(self) -> float:
            raise KeyError("always")

    Broken().run()
    assert slept == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert [text for text in messages if "Traceback" in text] == messages[:1]


class _Nothing:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: ()


@pytest.mark.parametrize("who", ["x", 5, [1], {"pid": "a"}, {"start": 1}, {"pid": 2**80, "start": 1}])
def test_forged_process_ids_affect_no_other_run(tmp_path: Path, who: Any) -> None:
    """A supervisor asks at the end of its run who serves the others; the dispatcher frees what has ended."""
    folder, home = json_dir.open_queue(str(tmp_path / "queue")), str(tmp_path / "home")
    run = Path(home, "runs", "bad-1")
    run.mkdir(parents=True)
    phases = [{"name": "running", "start": 1.0, "end": None, "seconds": None}]
    state = {"schema": 1, "run": "bad-1", "state": "running", "version": 1, "phases": phases, "mark": "no-such-mark"}
    state |= {
        "supervisor": who,
        "guardian": who,
        "rank": who,
        "node": processes.pid_scope(),
        "boot": processes.boot_id(),
    }
    (run / "state.json").write_text(json.dumps(state))
    me = processes.identity(os.getpid())
    record = {"schema": 1, "number": 1, "run": "bad-1", "home": home, "devices": [], "cpu_slot": 0}
    record |= {"guardian": me, "boot": processes.boot_id(), "node": processes.pid_scope()}
    slots = json_dir.NumberedJsonDir(os.path.join(folder, "slots"))
    for supervisor in (me, None):  # None: of an older dispatcher
        slots.put(1, {**record, "supervisor": supervisor})
        assert protected_pids(folder, home, "good-1") == {os.getpid()}
    gone = {"pid": 2**22 + 1, "start": 1}
    slots.put(1, {**record, "guardian": gone, "supervisor": None})
    queue = tickets.Queue(folder)
    assert not queue.has_live_owner(record | {"guardian": gone}) and queue.owner_pids()
    queue.finish_run(record)
    assert json.loads((run / "state.json").read_text())["state"] == "lost"
