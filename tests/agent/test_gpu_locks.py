"""Locks of GPUs between queues and between users of one machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.queue import gpu_locks
from tests.fakes import driver as fake
from tests.fakes.driver import SwitchableDriver
from tests.other_user import OTHER_UID, needs_root

from .conftest import Agent, until

pytestmark = pytest.mark.skipif(not gpu_locks.available(), reason="needs Linux: GPU locks are abstract Unix sockets")

#: Takes the lock of argv[1] with or without listening, and keeps it.
SQUAT = """
lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
lock.bind(chr(0) + sys.argv[1])
if sys.argv[2] == "listen":
    lock.listen(1)
print("squats", flush=True)
time.sleep(600)
"""


def name_of(uuid: str) -> str:
    return gpu_locks._name(uuid)[1:]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SwitchableDriver:
    return fake.needed(tmp_path, 1).use(monkeypatch)


@pytest.fixture
def other(agent: Agent, tmp_path: Path) -> Agent:
    """A second queue on the same machine."""
    folder = tmp_path / "other"
    folder.mkdir()
    return Agent(folder, Path(agent.zipapp))


@pytest.fixture
def squat() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that has a lock, as another user where that is possible."""
    started = []

    def start(uuid: str, uid: int, listen: bool = True) -> subprocess.Popen[str]:
        become = f"import socket, sys, time, os\nos.setgroups([]); os.setresgid({uid}, {uid}, {uid})\n"
        become += f"os.setresuid({uid}, {uid}, {uid})\n" if uid else ""
        how = "listen" if listen else "mute"
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", become + SQUAT, name_of(uuid), how], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "squats\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


# -- the lock ------------------------------------------------------------------------


def test_gpu_lock_is_exclusive_and_reports_uid() -> None:
    lock = gpu_locks.take_lock("GPU-a")
    assert lock is not None and gpu_locks.take_lock("GPU-a") is None
    assert gpu_locks.holder_uid("GPU-a") == os.getuid()
    assert gpu_locks.holder_uid("GPU-b") is None
    gpu_locks.close_locks([lock])
    assert gpu_locks.holder_uid("GPU-a") is None
    again = gpu_locks.take_lock("GPU-a")
    assert again is not None
    gpu_locks.close_locks([again])


def test_gpu_lock_with_many_queries_reports_uid() -> None:
    lock = gpu_locks.take_lock("GPU-a")
    assert lock is not None
    try:
        found = {gpu_locks.holder_uid("GPU-a") for _ in range(3 * gpu_locks.BACKLOG)}
        assert found == {os.getuid(), gpu_locks.UNKNOWN}  # the backlog is full
        gpu_locks._held.append(lock)
        while gpu_locks.holder_uid("GPU-a") == gpu_locks.UNKNOWN:
            gpu_locks.accept_probes()
        assert gpu_locks.holder_uid("GPU-a") == os.getuid()
    finally:
        gpu_locks._held.clear()
        gpu_locks.close_locks([lock])


def test_gpu_lock_without_answer_keeps_known_uid() -> None:
    locks = gpu_locks.Locks()
    lock = gpu_locks.take_lock("GPU-a")
    assert lock is not None
    try:
        for _ in range(2 * gpu_locks.BACKLOG):
            assert locks.take(["GPU-a"], 1) is None
        assert locks.others == {"GPU-a": os.getuid()}
    finally:
        gpu_locks.close_locks([lock])


def test_gpu_locks_are_passed_through_socket() -> None:
    here, there = socket.socketpair()
    lock = gpu_locks.take_lock("GPU-a")
    assert lock is not None
    data = bytes(range(256)) * 10
    assert gpu_locks.send_with_locks(here.fileno(), data, [lock]) == len(data)
    gpu_locks.close_locks([lock])
    assert gpu_locks.take_lock("GPU-a") is None  # on its way
    try:
        assert gpu_locks.receive_with_locks(there.fileno(), 1 << 16) == data
        assert gpu_locks.take_lock("GPU-a") is None
        assert len(gpu_locks._held) == 1 and not os.get_inheritable(gpu_locks._held[0])
    finally:
        gpu_locks.close_locks(gpu_locks._held)
        gpu_locks._held.clear()
        here.close(), there.close()
    assert gpu_locks.holder_uid("GPU-a") is None


# -- two queues ----------------------------------------------------------------------


@pytest.mark.thorough
def test_two_queues_never_share_gpu(agent: Agent, other: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(2)
    first, second = agent.gated(gpus=1), other.gated(gpus=1)
    assert agent.running(first, "up")["devices"] == [driver.uuid(0)]
    assert other.running(second, "up")["devices"] == [driver.uuid(1)]
    third = agent.submit("print('ran')", gpus=2)
    detail = until(lambda: agent.state(third)["detail"], "the reason")
    assert first in detail
    agent.open_gate()
    agent.wait(first)
    until(lambda: "GPU 1 is reserved by" in agent.state(third)["detail"], "the reason that remains")
    other.open_gate()
    assert agent.wait(third)["state"] == "completed"


def test_gpu_lock_outlives_dispatcher_until_run_end(agent: Agent, driver: SwitchableDriver) -> None:
    uuid = driver.uuid(0)
    run = agent.gated(gpus=1)
    state = agent.running(run, "up")
    agent.kill_dispatcher()
    assert gpu_locks.holder_uid(uuid) == os.getuid()
    os.kill(state["guardian"]["pid"], signal.SIGKILL)
    until(lambda: "guardian was killed" in (agent.run_folder(run) / "log" / "agent.txt").read_text(), "the note")
    assert gpu_locks.holder_uid(uuid) == os.getuid()
    # Nobody but the two has it: neither the job nor the sampler.
    os.kill(state["rank"]["pid"], signal.SIGSTOP)
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: gpu_locks.holder_uid(uuid) is None, "the lock's end")
    os.kill(state["rank"]["pid"], signal.SIGKILL)


def test_guardian_keeps_lock_of_killed_supervisor(agent: Agent, driver: SwitchableDriver) -> None:
    run = agent.gated("import signal; signal.pause()", gpus=1)
    state = agent.running(run, "up")
    os.kill(state["guardian"]["pid"], signal.SIGSTOP)
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    assert gpu_locks.holder_uid(driver.uuid(0)) == os.getuid()
    os.kill(state["guardian"]["pid"], signal.SIGCONT)
    assert agent.wait(run)["state"] == "lost"
    until(lambda: gpu_locks.holder_uid(driver.uuid(0)) is None, "the lock's end")


def test_large_job_receives_gpu_lock(agent: Agent, driver: SwitchableDriver) -> None:
    """More than a socket holds at once."""
    environ = {**os.environ, **{f"LARGE_{k}": "x" * 100_000 for k in range(20)}}
    run = agent.gated(gpus=1, environ=environ)
    agent.running(run, "up")
    assert gpu_locks.holder_uid(driver.uuid(0)) == os.getuid()
    agent.open_gate()
    assert agent.wait(run)["state"] == "completed"


# -- squatted locks --------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("uid", "listen", "reason"),
    [
        pytest.param(OTHER_UID, True, f"uid {OTHER_UID}", marks=needs_root),
        pytest.param(OTHER_UID, False, "unknown user", marks=needs_root),
        pytest.param(0, True, "another queue of this user", marks=needs_root),
    ],
)
def test_foreign_gpu_lock_is_reported_until_free(
    agent: Agent, driver: SwitchableDriver, squat: Callable[..., Any], uid: int, listen: bool, reason: str
) -> None:
    process = squat(driver.uuid(0), uid, listen)
    run = agent.submit("print('ran')", gpus=1)
    detail = until(lambda: agent.state(run)["detail"], "the reason")
    assert "GPU 0 is reserved by" in detail and reason in detail and "--share-gpus" in detail
    process.kill()
    assert agent.wait(run)["state"] == "completed"


@needs_root
def test_foreign_gpu_lock_with_sharing_is_overridden(
    agent: Agent, driver: SwitchableDriver, squat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMLTRAIN_SHARE_GPUS", "1")
    driver.set_gpus(2)
    squat(driver.uuid(0), OTHER_UID)
    first = agent.gated(gpus=1)
    assert agent.running(first, "up")["devices"] == [driver.uuid(1)]  # nobody's comes first
    second = agent.submit("print('ran')", gpus=1)
    state = agent.wait(second)
    assert state["devices"] == [driver.uuid(0)]
    assert any(f"uid {OTHER_UID}" in note for note in state["notes"])


# -- two users -------------------------------------------------------------------------


class OtherUser:
    """An agent of a second Unix user, with a home and a queue of his own."""

    def __init__(self, python: str, agent: Agent, shared: Path, environ: dict[str, str]) -> None:
        self.zipapp = shared / "agent.pyz"
        shutil.copy(agent.zipapp, self.zipapp)
        self.zipapp.chmod(0o644)
        self.folder = shared / "his"
        self.folder.mkdir(0o700)
        os.chown(self.folder, OTHER_UID, OTHER_UID)
        self.python = python
        self.environ = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8", **environ}

    def __call__(self, op: str, **payload: Any) -> dict[str, Any]:
        done = subprocess.run(
            [self.python, "-I", str(self.zipapp), "call", op, f"{self.folder}/home", f"{self.folder}/queue"],
            input=json.dumps(payload), env=self.environ, capture_output=True, text=True, timeout=90,
            cwd="/", user=OTHER_UID, group=OTHER_UID, extra_groups=[], umask=0o77,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        assert "error" not in answer, answer
        return answer

    def submit(self, run: str, code: str) -> None:
        self("submit", run=run, gpus=1, environ=self.environ, argv=[self.python, "-S", "-u", "-c", code])

    def state(self, run: str) -> dict[str, Any]:
        return self("poll", run_ids=[run])["runs"][run]


def usable_python() -> str:
    """An interpreter that another user may execute."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path):
            try:
                done = subprocess.run([path, "-I", "-c", "pass"], user=OTHER_UID, group=OTHER_UID, extra_groups=[])
            except OSError:
                continue
            if done.returncode == 0:
                return path
    pytest.skip("needs a Python that another user may execute")


@pytest.fixture
def user(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherUser]:
    python = usable_python()
    shared = Path(tempfile.mkdtemp(prefix="amltrain-users-", dir="/var/tmp"))
    shared.chmod(0o755)
    driver = fake.needed(shared, 1)
    library = driver.libraries / "libnvidia-ml.so.1"
    copied = shared / "lib" / library.name
    copied.parent.mkdir(0o755)
    shutil.copy(library, copied)
    for path in (driver.folder, driver.state, copied):
        path.chmod(0o755)
    environ = {
        **driver.environment(), "LD_LIBRARY_PATH": str(copied.parent), "AMLTRAIN_DISPATCHER_IDLE": "60",
        "AMLTRAIN_SAMPLE_PERIOD": "0.1", "AMLTRAIN_GRACE": "2",
        "AMLTRAIN_GPU_LOCK_SCOPE": os.environ["AMLTRAIN_GPU_LOCK_SCOPE"],
    }  # fmt: skip
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    made = OtherUser(python, agent, shared, environ)
    made.driver = driver  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        end = time.monotonic() + 30
        while (left := _processes_of(OTHER_UID, str(shared))) and time.monotonic() < end:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        shutil.rmtree(shared, ignore_errors=True)


def _processes_of(uid: int, text: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                held = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
                if os.stat(f"/proc/{name}").st_uid == uid and text.encode() in held:
                    found.append(int(name))
            except OSError:
                pass
    return found


@pytest.mark.thorough
@needs_root
def test_two_users_never_share_gpu(agent: Agent, user: OtherUser) -> None:
    his = "import os, time; open(os.environ['HOME'] + '/up', 'w').close(); time.sleep(600)"
    user.submit("his", his)
    until((user.folder / "up").exists, "his job")
    assert not json.loads(json.dumps(user.state("his")))["detail"]
    ours = agent.gated(gpus=1)
    detail = until(lambda: agent.state(ours)["detail"], "the reason")
    assert f"GPU 0 is reserved by uid {OTHER_UID}" in detail
    user("cancel", run="his")
    assert agent.running(ours, "up")["devices"]
    # And the other way round.
    user.submit("next", "print('ran')")
    reason = until(lambda: user.state("next")["detail"], "his reason")
    assert "GPU 0 is reserved by" in reason and f"uid {os.getuid()}" in reason
    agent.open_gate()
    agent.wait(ours)
    until(lambda: user.state("next")["state"] == "completed", "his next job")
