"""A slow line, killed processes, a machine without what is asked for, and what a listener learns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.backends.ssh_connection import SshConnection
from jupyter_amltrain.errors import AmlTrainError, RunLost, TargetUnreachable
from jupyter_amltrain.schema.ssh_target import SshTarget
from tests.conftest import end_all
from tests.helpers import until
from tools.openssh import Sshd

from .proxy import Proxy
from .test_ssh_machines import ENDLESS, attach_values
from .test_ssh_runs import TRAIN, attach

SECRET = "hunter2-never-in-clear"


@pytest.fixture
def proxy(sshd: Sshd) -> Iterator[Proxy]:
    made = Proxy(sshd.port, keeps_bytes=True)
    yield made
    made.thaw()
    made.close()


def logins(sshd: Sshd) -> int:
    """Number of logins that the server has accepted."""
    return (sshd.folder / "log").read_text().count("Accepted publickey")


@pytest.mark.thorough
def test_line_with_latency_of_300_ms_has_everything(api: Any, sshd: Sshd, proxy: Proxy) -> None:
    proxy.delay = 0.15
    attach(api, sshd, port=proxy.port)
    run = api.submit(TRAIN.format(steps=20), target="box", name="far", out=["answer"], gpus=0).wait(120)
    assert run.result("answer") == 42 and run.logs().count("step ") == 20
    assert len(run.metrics()["loss"]) == 20 and len(run.telemetry()) > 3
    assert run.files()["outputs/model.joblib"].read() == b"m" * 2_500_000


@pytest.mark.thorough
def test_kernel_uses_one_connection_for_all_runs(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    runs = [api.submit(f"print({number})", target="box", gpus=0) for number in range(3)]
    assert [run.wait(60).logs() for run in runs] == ["0\n", "1\n", "2\n"]
    assert api.targets() and api.runs() and runs[0].files() is not None
    assert logins(sshd) == 1


@pytest.mark.thorough
def test_connection_that_is_dropped_while_it_opens_is_tried_again(api: Any, sshd: Sshd, proxy: Proxy) -> None:
    proxy.drops = 1  # as by sshd's MaxStartups
    attach(api, sshd, port=proxy.port)
    assert api.submit("print(1)", target="box", gpus=0).wait(60).logs() == "1\n"


async def dispatcher(api: Any) -> int:
    """Pid of the dispatcher there."""
    return int((await api.controller().backend("box")._ssh.call("info", {}))["pid"])


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["connection", "dispatcher"])
def test_killed_process_there_does_not_harm_run(api: Any, sshd: Sshd, victim: str) -> None:
    attach(api, sshd)
    run = api.submit(TRAIN.format(steps=40), target="box", name="kill", out=["answer"], gpus=0)
    until(lambda: "step 3" in run.logs(), "it runs")
    if victim == "connection":  # the agent's server and the login above it
        assert sshd.process is not None
        doomed = psutil.Process(sshd.process.pid).children(recursive=True)
    else:
        doomed = [psutil.Process(api.controller().loop.call(dispatcher(api), 30))]
    assert doomed
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert run.wait(120).result("answer") == 42 and run.logs().count("step ") == 40
    assert api.submit("print('next')", target="box", gpus=0).wait(60).logs() == "next\n"


@pytest.mark.thorough
def test_killed_supervision_there_marks_run_lost(api: Any, sshd: Sshd, remote_home: Path) -> None:
    attach(api, sshd)
    run = api.submit(ENDLESS, target="box", name="gone", gpus=0)
    until(lambda: "up" in run.logs(), "it runs")
    end_all(remote_home)
    with pytest.raises(RunLost):
        run.wait(120)
    assert run.logs() == "up\n"


@pytest.mark.thorough
def test_gpu_of_machine_without_driver_is_one_sentence(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    with pytest.raises(AmlTrainError) as caught:
        api.submit("print(1)", target="box", gpus=1).wait(60)
    text = str(caught.value)
    assert "driver" in text and "\n" not in text, text


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "read-only"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("needs the right to mount a file system")
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m,ro", "tmpfs", str(folder)]
    if subprocess.run(argv, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_read_only_disk_there_is_one_sentence(api: Any, sshd: Sshd, read_only: Path) -> None:
    fields = {**attach_values(sshd), "workdir": str(read_only / "state")}
    assert not api.act("attach", "box", kind="ssh", values=fields, confirmed=True).errors
    controller = api.controller()
    with pytest.raises(AmlTrainError) as caught:
        controller.loop.call(controller.target_manager.operations.finished("box", 60.0), 90)
    text = str(caught.value)
    assert "Read-only" in text and "--workdir" in text and "\n" not in text, text


@pytest.mark.thorough
def test_secrets_are_in_no_command_line_and_not_in_clear_on_the_wire(
    api: Any, sshd: Sshd, proxy: Proxy, home: Path, remote_home: Path
) -> None:
    attach(api, sshd, port=proxy.port)
    code = "import os, time\nprint(len(os.environ['TOKEN']), flush=True)\ntime.sleep(600)"
    run = api.submit(code, target="box", gpus=0, secrets={"TOKEN": SECRET})
    until(lambda: run.logs() == f"{len(SECRET)}\n", "it runs with the secret")
    lines = [b" ".join(part) for part in command_lines()]
    assert any(b"amltrain" in line for line in lines) and not any(SECRET.encode() in line for line in lines)
    run.cancel()
    until(lambda: run.state == "canceled", "canceled")
    assert len(proxy.heard) > 10_000 and SECRET.encode() not in proxy.heard
    for root in (home, remote_home, sshd.folder):
        for file in root.rglob("*"):
            assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def command_lines() -> list[list[bytes]]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found.append(Path("/proc", name, "cmdline").read_bytes().split(b"\0"))
    return found


@pytest.mark.thorough
def test_attempts_to_connect_have_growing_pauses(home: Path) -> None:
    """Requests in a row do not hammer a machine that refuses them; those in between get the last error."""
    from jupyter_amltrain.loop import LoopThread

    loop, tries = LoopThread("test-loop"), []
    connection = SshConnection(SshTarget(name="box", host="127.0.0.1", port=1), loop, home)
    real = connection._open

    async def counted() -> None:
        tries.append(time.monotonic())
        await real()

    async def insist() -> None:
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            with pytest.raises(TargetUnreachable):
                await connection.connect()
            await asyncio.sleep(0.02)

    connection._open = counted  # type: ignore[method-assign]
    try:
        loop.call(insist(), 60)
    finally:
        loop.call(connection.close(), 10)
        loop.close()
    pauses = [after - before for before, after in zip(tries, tries[1:], strict=False)]
    assert 2 <= len(tries) <= 6 and pauses[0] >= 0.35 and all(pause >= 0.35 * 2**i for i, pause in enumerate(pauses))


@pytest.mark.thorough
def test_connection_lost_while_a_request_waits_for_space_is_unreachable(api: Any, sshd: Sshd) -> None:
    import asyncssh

    attach(api, sshd)
    own = api.controller()

    async def request() -> None:
        connection: SshConnection = own.backend("box")._ssh.connection
        await connection.request("ping")

        async def drain() -> None:
            raise asyncssh.ConnectionLost("the line is cut")

        assert connection._process is not None
        connection._process.stdin.drain = drain  # type: ignore[method-assign]
        await connection.request("ping")

    with pytest.raises(TargetUnreachable) as caught:
        own.loop.call(request(), 60)
    assert caught.value.code == "ssh.lost"
