"""The backend and the transport over a real SSH connection."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.ssh import SshBackend
from jupyter_amltrain.backends.ssh_transport import SshTransport
from jupyter_amltrain.backends.transport import Transport
from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs.snapshot import Snapshot, take_snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec, Resources
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import new_run_id
from tools.openssh import Sshd

from ..contracts.backend import BackendContract
from ..contracts.transport import TransportContract


def target_of(sshd: Sshd, **more: Any) -> SshTarget:
    fields = {
        "name": "box",
        "host": "127.0.0.1",
        "port": sshd.port,
        "identity_file": str(sshd.key),
        "python": sys.executable,
        "accept_host_key": sshd.fingerprint,
        **more,
    }
    return SshTarget(**fields)


@pytest.fixture
def loop(home: Path) -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.fixture
def backend(loop: LoopThread, home: Path, sshd: Sshd) -> Iterator[SshBackend]:
    made = SshBackend(target_of(sshd), loop, StateRoot(home))
    loop.call(made.check(), 60)  # as attach does
    yield made
    loop.call(made.close())


def job(name: str, text: str, **more: Any) -> tuple[JobSpec, Snapshot]:
    spec = JobSpec(name=name, script=text, resources=Resources(gpus=0), **more)
    return spec, take_snapshot(spec.script_name, text, root=Path.cwd())


@pytest.mark.thorough
class TestSshBackend(BackendContract):
    def short(self) -> tuple[JobSpec, Snapshot]:
        return job("short", "print('one line')\nprint('and the end')\n")

    def long(self) -> tuple[JobSpec, Snapshot]:
        return job("long", "import time\nprint('here')\ntime.sleep(600)\n")


@pytest.mark.thorough
class TestSshTransport(TransportContract):
    @pytest.fixture
    def transport(self, backend: SshBackend) -> Transport:
        return backend._ssh

    @pytest.fixture
    def there(self, remote_home: Path) -> Path:
        return remote_home


def ended(loop: LoopThread, backend: SshBackend, made: tuple[JobSpec, Snapshot], **more: Any) -> Any:
    plan = loop.call(backend.plan(*made, new_run_id(made[0].name)), 60)
    run = loop.call(backend.launch(plan, more.get("environ", {}), more.get("secrets", {})), 60)
    loop.call(TestSshBackend()._until_ended(backend, run.run_id), 60)
    return run


@pytest.mark.thorough
def test_job_gets_login_environment_and_not_that_of_kernel(
    loop: LoopThread, backend: SshBackend, remote_home: Path, home: Path
) -> None:
    code = "import json, os\nprint(json.dumps([dict(os.environ), os.getcwd()]))\n"
    made = job("env", code, env={"DEPTH": "3"}, secrets=("TOKEN",))
    run = ended(
        loop, backend, made, environ={"KERNEL_ONLY": "secret of the kernel", "LANG": "C"}, secrets={"TOKEN": "tok-1"}
    )
    environ, folder = json.loads(loop.call(backend.read(run.run_id, "log", 0)).data)
    assert "KERNEL_ONLY" not in environ and environ["LANG"] == "C" and environ["DEPTH"] == "3"
    assert environ["TOKEN"] == "tok-1" and folder == f"{remote_home}/runs/{run.run_id}/source"
    for root in (remote_home, home):  # no secret in any file, on either side
        for file in root.rglob("*"):
            if file.is_file() and not file.name.startswith("rank-"):
                assert b"tok-1" not in file.read_bytes() and b"secret of the kernel" not in file.read_bytes(), file


def test_missing_import_is_named_before_anything_is_sent(
    loop: LoopThread, backend: SshBackend, remote_home: Path
) -> None:
    with pytest.raises(PreflightError) as caught:
        loop.call(backend.plan(*job("bad", "import os\nimport no_such_module_x\n"), "bad-22222"), 60)
    assert caught.value.details["modules"] == ["no_such_module_x"] and "pip install no_such_module_x" in str(
        caught.value
    )
    assert not list((remote_home / "runs").iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false", "/etc/passwd"])
def test_unusable_interpreter_is_named(loop: LoopThread, backend: SshBackend, python: str) -> None:
    made = job("bad", "import numpy\n", python=python)
    with pytest.raises(PreflightError) as caught:
        loop.call(backend.plan(*made, "bad-22222"), 60)
    assert caught.value.code == "interpreter.unusable" and python in str(caught.value) and "\n" not in str(caught.value)


def test_only_changed_files_travel(loop: LoopThread, backend: SshBackend, home: Path, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    source.mkdir()
    for i in range(20):
        (source / f"m{i}.py").write_text(f"x = {i}\n" * 2000)
    (source / "train.py").write_text("print('first')")
    sent: list[int] = []
    request = backend._ssh.connection.request

    async def counted(op: str, data: bytes = b"", *rest: Any, **fields: Any) -> Any:
        if op in ("stage", "append"):
            sent.append(len(data))
        return await request(op, data, *rest, **fields)

    backend._ssh.connection.request = counted  # type: ignore[method-assign]

    def submit() -> str:
        spec = JobSpec(name="tree", script_name="train.py", source=str(source), resources=Resources(gpus=0))
        made = spec, take_snapshot("train.py", "", root=tmp_path, source=source)
        run = ended(loop, backend, made)
        return str(loop.call(backend.read(run.run_id, "log", 0)).data.decode())

    assert submit() == "first\n" and len(sent) == 1 and sent[0] > 200_000
    sent.clear()
    (source / "train.py").write_text("print('second')")
    assert submit() == "second\n" and sent == [len("print('second')")]
    # Another kernel has to ask, and sends nothing that is there.
    sent.clear()
    backend._ssh._sent.clear()
    (source / "big").write_bytes(os.urandom(5 << 20))
    assert submit() == "second\n" and sum(sent) < (5 << 20) + 1000


@pytest.mark.thorough
def test_attached_target_stores_what_machine_says(backend: SshBackend, remote_home: Path) -> None:
    assert isinstance(backend.target, SshTarget) and isinstance(backend._transport, SshTransport)
    assert backend.target.workdir == str(remote_home) and backend.target.python == sys.executable
