"""Runs of one node on a target of two machines over SSH, which have one CPU slot each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.ssh_nodes import NodesBackend
from jupyter_amltrain.errors import CommandError, TargetUnreachable
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.state_dir import StateRoot
from tests.helpers import DEADLINE, api_of, until
from tests.sweeps.test_driver import QUADRATIC
from tools.openssh import Sshd

from ..contracts.backend import BackendContract
from .proxy import Proxy
from .test_ssh_backend import job
from .test_ssh_nodes import WAIT_S, attach, configure

#: Logs a line a tenth of a second until the file GATE exists.
UNTIL = """
import os, time
print("up", flush=True)
while not os.path.exists({gate!r}):
    time.sleep(0.1)
    print("tick", flush=True)
with open(os.environ["AML_OUTPUT_DIR"] + "/note.txt", "w") as file:
    file.write("from here")
answer = 42
"""


@pytest.fixture(scope="module")
def proxies(servers: list[Sshd]) -> Iterator[list[Proxy]]:
    """Links to the machines."""
    made = [Proxy(server.port) for server in servers]
    yield made
    for one in made:
        one.thaw()
        one.close()


@pytest.fixture(scope="module")
def api(folder: Path, homes: list[Path], servers: list[Sshd], proxies: list[Proxy]) -> Iterator[Any]:
    """The API with the target ``gpus`` of both machines, which are reached through proxies."""
    links = zip(homes, servers, proxies, strict=True)
    configure(folder, {home.name: (server, proxy.port) for home, server, proxy in links})
    with api_of(folder, HOME=str(folder / "user"), SSH_AUTH_SOCK="") as module:
        attach(module, servers)
        yield module


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """File that lets all runs of the test end."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def submit(api: Any, gate: Path, name: str = "one", **more: Any) -> Any:
    return api.submit(UNTIL.format(gate=str(gate)), target="gpus", gpus=0, name=name, **more)


def machine_of(homes: list[Path], run: Any) -> int:
    (machine,) = (number for number, home in enumerate(homes) if (home / "runs" / run.run_id).exists())
    return machine


def pair(api: Any, homes: list[Path], gate: Path, **more: Any) -> list[Any]:
    """Two runs that run, by their machines."""
    runs = [submit(api, gate, **more) for _ in range(2)]
    for run in runs:
        until(lambda run=run: "up" in run.logs(), "it runs")
    assert [machine_of(homes, run) for run in runs] == [0, 1]
    return runs


@pytest.mark.thorough
def test_runs_are_spread_over_machines_by_their_load(api: Any, homes: list[Path], gate: Path) -> None:
    running = pair(api, homes, gate)
    # Submitted at the same time: each counts the others, which their machines do not know yet.
    waiting = [submit(api, gate, "waits") for _ in range(4)]
    until(lambda: all(run.state == "queued" for run in waiting), "they wait")
    assert sorted(machine_of(homes, run) for run in waiting) == [0, 0, 1, 1]
    gate.touch()
    for run in (*running, *waiting):
        assert run.wait(WAIT_S).state == "completed" and run.handle.startswith("gpus/")


@pytest.mark.thorough
def test_run_on_second_machine_is_followed_by_another_kernel(api: Any, homes: list[Path], gate: Path) -> None:
    handle = pair(api, homes, gate, out=["answer"])[1].handle
    api.close()  # the next controller does not know where the runs are
    run = api.attach(handle)
    until(lambda: "tick" in run.logs(), "its log")
    assert {row.handle for row in api.runs("gpus")} >= {handle}
    with pytest.raises(CommandError):
        run.delete()
    gate.touch()
    assert run.wait(WAIT_S).result("answer") == 42 and run.logs().startswith("up\ntick\n")
    assert run.files()["outputs/note.txt"].read() == b"from here"
    assert run.log_path.startswith("second:")
    run.delete()
    assert not (homes[1] / "runs" / run.run_id).exists()
    assert handle not in {row.handle for row in api.runs("gpus")}


@pytest.mark.thorough
def test_cancel_by_another_kernel_reaches_second_machine(api: Any, homes: list[Path], gate: Path) -> None:
    runs = pair(api, homes, gate)
    api.close()
    run = api.attach(runs[1].handle)
    run.cancel()
    until(lambda: run.status.state.terminal, "the end")
    assert run.state == "canceled" and api.attach(runs[0].handle).state == "running"


@pytest.mark.thorough
def test_run_of_several_nodes_is_listed_once(api: Any, homes: list[Path]) -> None:
    code = "import time\nprint('up', flush=True)\ntime.sleep(2)\n"  # longer than a sample
    fields = {"nodes": 2, "processes": 1, "distribution": "tensorflow", "gpus": 0}
    run = api.submit(code, target="gpus", name="both", **fields).wait(WAIT_S)
    assert all((home / "runs" / run.run_id).exists() for home in homes)
    api.close()
    assert [row.handle for row in api.runs("gpus")].count(run.handle) == 1
    again = api.attach(run.handle)
    assert again.logs(rank=1) == "up\n" and sorted(again.telemetry()["node"].unique()) == [0, 1]
    again.delete()
    until(lambda: not any((home / "runs" / run.run_id).exists() for home in homes), "its folders")


@pytest.mark.thorough
def test_sweep_uses_both_machines(api: Any, homes: list[Path]) -> None:
    values = {"goal": "minimize loss", "params": {"x": "choice(1, 2, 4, 5)"}, "sampler": "grid", "gpus": 0}
    sweep = api.sweep(
        "import time\ntime.sleep(2)\n" + QUADRATIC, target="gpus", name="grid", max_concurrent=2, **values
    )
    children = sweep.wait(3 * DEADLINE).children()
    assert [(child.params["x"], child.value) for child in children] == [(x, (x - 2) ** 2) for x in (1, 2, 4, 5)]
    trials = [api.attach(child.handle) for child in children]
    assert {machine_of(homes, trial) for trial in trials} == {0, 1}


@pytest.fixture
def restored(api: Any, servers: list[Sshd], proxies: list[Proxy]) -> Iterator[None]:
    """Makes both machines reachable again."""
    yield
    for server, proxy in zip(servers, proxies, strict=True):
        proxy.thaw()
        proxy.mend()
        if server.process is None:
            server.start()
    until(lambda: check(api).slots["cpu"]["total"] == 2, "both answer", 60)


def check(api: Any) -> Any:
    """What the target says now."""
    backend = on_loop(api, lambda: api.controller().backend("gpus"))
    return api.controller().loop.call(backend.check(), WAIT_S)


def on_loop(api: Any, get: Callable[[], Any]) -> Any:
    async def call() -> Any:
        return get()

    return api.controller().loop.call(call())


def ticks(run: Any) -> int:
    return int(run.logs().count("tick"))


@pytest.mark.thorough
@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("silent", [1, 0])
def test_stopped_server_leaves_runs_of_other_machine_working(
    api: Any, homes: list[Path], servers: list[Sshd], gate: Path, silent: int
) -> None:
    runs = pair(api, homes, gate)
    lost, other = runs[silent], runs[1 - silent]
    watch(api, other)
    servers[silent].stop()
    until(lambda: not lost.run.reachable, "it is noticed", 30)
    time.sleep(6.0)  # longer than a run that nobody knows may be missing
    assert lost.run.status.state == "running"
    assert other.run.reachable and other.state == "running"
    before = ticks(other)
    until(lambda: ticks(other) > before + 5, "its log goes on", 10)
    assert {row.handle for row in api.runs("gpus")} >= {lost.handle, other.handle}
    submitted = submit(api, gate, "next")
    until(lambda: submitted.state == "queued", "another run is placed", 30)
    assert machine_of(homes, submitted) == 1 - silent
    with pytest.raises(TargetUnreachable):
        lost.cancel()
    info = check(api)
    assert info.slots["cpu"]["total"] == 1 and homes[silent].name in info.detail.partition("not responding")[2]
    servers[silent].start()
    until(lambda: lost.run.reachable, "it is back", 60)
    gate.touch()
    for run in (*runs, submitted):
        assert run.wait(WAIT_S).state == "completed"


def watch(api: Any, run: Any) -> Any:
    """Show a run, so that its streams are read; return its entry."""

    on_loop(api, lambda: api.controller().change_viewers(run.handle, 1))
    return on_loop(api, lambda: api.controller().entry(run.handle))


@pytest.mark.thorough
@pytest.mark.usefixtures("restored")
def test_frozen_link_does_not_delay_runs_of_other_machine(
    api: Any, homes: list[Path], proxies: list[Proxy], gate: Path
) -> None:
    runs = pair(api, homes, gate)
    entry = watch(api, runs[0])
    proxies[1].freeze()
    longest, last, seen = 0.0, time.monotonic(), -1
    end = time.monotonic() + 75  # longer than the keep-alive and a new attempt to connect
    while time.monotonic() < end:
        if entry.log.bytes != seen:
            longest, last, seen = max(longest, time.monotonic() - last), time.monotonic(), entry.log.bytes
        time.sleep(0.05)
    assert max(longest, time.monotonic() - last) < 3.0, longest
    assert runs[1].run.status.state == "running" and not runs[1].run.reachable
    proxies[1].thaw()
    gate.touch()
    for run in runs:
        assert run.wait(WAIT_S).state == "completed"


@pytest.mark.usefixtures("restored")
def test_no_machine_that_answers_is_error_of_target(api: Any, proxies: list[Proxy], gate: Path) -> None:
    for proxy in proxies:
        proxy.cut()
    with pytest.raises(TargetUnreachable):
        submit(api, gate).wait(WAIT_S)
    with pytest.raises(TargetUnreachable):
        check(api)


def test_more_gpus_than_any_machine_has_is_refused(api: Any, gate: Path) -> None:
    with pytest.raises(Exception, match="GPU") as raised:
        api.submit("pass", target="gpus", gpus=2).wait(WAIT_S)
    assert type(raised.value).__name__ == "CapacityError"


def test_monitor_shows_both_machines(api: Any) -> None:
    monitor = api.monitor("gpus", rate=10)
    until(lambda: monitor.record().gpu is not None and len(monitor.record().gpu.nodes) == 2, "both machines")
    monitor.stop()


# ---- the contract of backends


@pytest.mark.thorough
class TestNodesBackend(BackendContract):
    @pytest.fixture
    def loop(self, api: Any) -> LoopThread:
        loop: LoopThread = api.controller().loop
        return loop

    @pytest.fixture
    def backend(self, loop: LoopThread, api: Any, servers: list[Sshd], home: Path) -> Iterator[NodesBackend]:
        keys = ",".join(server.fingerprint for server in servers)
        target = SshTarget(name="pair", host="first,second", python=sys.executable, accept_host_key=keys)
        made = NodesBackend(target, loop, StateRoot(home))
        loop.call(made.check(), WAIT_S)
        yield made
        loop.call(made.close())

    def short(self) -> tuple[JobSpec, Snapshot]:
        return job("short", "print('one line')\nprint('and the end')\n")

    def long(self) -> tuple[JobSpec, Snapshot]:
        return job("long", "import time\nprint('here')\ntime.sleep(600)\n")
