"""Machines that restart, have another time, are full, or are used by two kernels; logins by password and by a jump."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from jupyter_amltrain.backends.ssh import SshBackend
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, RunLost
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.state_dir import StateRoot
from tests.conftest import end_all
from tests.helpers import until
from tools.openssh import Sshd, machine_environ

from .test_ssh_backend import target_of
from .test_ssh_runs import TRAIN, attach

ENDLESS = "import time\nprint('up', flush=True)\ntime.sleep(600)"


@pytest.mark.thorough
def test_restart_of_machine_marks_run_lost_and_next_run_starts(api: Any, sshd: Sshd, remote_home: Path) -> None:
    attach(api, sshd)
    run = api.submit(ENDLESS, target="box", gpus=0, name="boot")
    until(lambda: "up" in run.logs(), "it runs")
    sshd.stop()
    end_all(remote_home)
    state = remote_home / "runs" / run.run_id / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "boot": "an earlier boot"}))
    sshd.start()
    with pytest.raises(RunLost, match="restarted"):
        run.wait(120)
    assert run.logs() == "up\n"
    assert api.submit("print('next')", target="box", gpus=0).wait(60).logs() == "next\n"


@pytest.mark.thorough
def test_restart_of_machine_continues_run_at_its_checkpoint(api: Any, sshd: Sshd, remote_home: Path) -> None:
    attach(api, sshd)
    code = (
        "import os, time\nplace = os.environ['AML_CHECKPOINT_DIR'] + '/step'\n"
        "if os.path.exists(place): print('from', open(place).read()); raise SystemExit\n"
        "open(place, 'w').write('7')\n"
    )
    run = api.submit(code + ENDLESS, target="box", gpus=0, max_restarts=1, name="boot")
    until(lambda: "up" in run.logs(), "it runs")
    sshd.stop()
    end_all(remote_home)
    slots = [path for path in remote_home.parent.rglob("slots/*.json") if run.run_id in path.read_text()]
    for file in [remote_home / "runs" / run.run_id / "state.json", *slots]:
        file.write_text(json.dumps({**json.loads(file.read_text()), "boot": "an earlier boot"}))
    assert slots
    sshd.start()
    run.wait(120)
    assert run.status.attempt == 2 and "from 7" in run.logs()


@pytest.mark.thorough
def test_machine_with_wrong_clock_runs_and_measures(
    api: Any, tmp_path: Path, remote_home: Path, home: Path, monkeypatch: pytest.MonkeyPatch, sshd: Sshd
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 3600\n")
    late = Sshd(tmp_path / "late", {**sshd._environ, "PYTHONPATH": str(site)})
    try:
        attach(api, late)
        begin = time.monotonic()
        run = api.submit(TRAIN.format(steps=5), target="box", gpus=0).wait(60)
        record = run.record()
        assert sum(phase.seconds or 0.0 for phase in record.phases) < time.monotonic() - begin + 1
        assert run.logs().count("step ") == 5 and len(run.telemetry()) > 3
        assert [step for step, *_ in run.metrics()["loss"]] == list(range(5)) or run.metrics()["loss"]
    finally:
        late.stop()


@pytest.mark.thorough
def test_second_kernel_lists_reads_and_cancels(api: Any, sshd: Sshd, home: Path) -> None:
    attach(api, sshd)
    run = api.submit(ENDLESS, target="box", gpus=0, name="shared")
    until(lambda: "up" in run.logs(), "it runs")
    code = (
        "from jupyter_amltrain import api\n"
        f"other = api.attach({run.handle!r})\n"
        "print(other.state, other.logs().strip(), [row.handle for row in api.runs()])\n"
        "mine = api.submit('print(7)', target='box', gpus=0).wait(60)\n"
        "print(mine.logs().strip())\n"
        "other.cancel()\n"
        "api.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "running up" in done.stdout and run.handle in done.stdout and "7" in done.stdout
    until(lambda: run.state == "canceled", "canceled by the other kernel", 60)
    assert len(api.runs()) == 2


@pytest.mark.thorough
def test_deleted_target_with_live_run_says_that_it_stays(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    run = api.submit(ENDLESS, target="box", gpus=0, name="stays")
    until(lambda: "up" in run.logs(), "it runs")
    result = api.act("delete", "box", confirmed=False)
    assert run.handle.split("/")[1] in str(result) or "run" in str(result).lower(), result
    assert not api.act("delete", "box", confirmed=True).errors
    until(lambda: "box" not in [row.name for row in api.targets()], "deleted")
    api.controller().loop.call(
        api.controller().target_manager.operations.finished("box", 30.0)
    )  # its connection ends after it
    attach(api, sshd)
    again = api.attach(run.handle)
    assert again.state == "running" and again.logs() == "up\n"
    again.cancel()
    until(lambda: again.state == "canceled", "canceled")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("needs the right to mount a file system")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    end_all(folder)
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_full_disk_there_is_one_sentence(api: Any, sshd: Sshd, full_disk: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "main.py").write_text("print('never')")
    (tree / "weights.bin").write_bytes(os.urandom(4 << 20))
    fields = {**attach_values(sshd), "workdir": str(full_disk / "state")}
    assert not api.act("attach", "box", kind="ssh", values=fields, confirmed=True).errors
    with pytest.raises(AmlTrainError) as caught:
        api.submit(Path("main.py"), source=str(tree), target="box", gpus=0).wait(60)
    text = str(caught.value)
    assert "No space left" in text and "\n" not in text, text
    assert not list((full_disk / "state" / "runs").glob("*"))


def attach_values(sshd: Sshd) -> dict[str, Any]:
    fields = target_of(sshd)
    return {name: getattr(fields, name) for name in ("host", "port", "identity_file", "python", "accept_host_key")}


@pytest.mark.thorough
def test_user_without_home_is_told_to_name_a_folder(sshd: Sshd, tmp_path: Path, home: Path, loop: LoopThread) -> None:
    environ = {name: value for name, value in sshd._environ.items() if name != "AMLTRAIN_HOME"}
    bare = Sshd(tmp_path / "bare", {**environ, "XDG_STATE_HOME": "/proc/nowhere"})
    try:
        text = refused(loop, home, target_of(bare))
        assert "--workdir" in text
        assert loop.call(_checked(loop, home, target_of(bare, workdir=str(tmp_path / "work"))), 60).reachable
    finally:
        bare.stop()


# ---- logins


@pytest.fixture
def loop(home: Path) -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


async def _checked(loop: LoopThread, home: Path, target: SshTarget) -> Any:
    backend = SshBackend(target, loop, StateRoot(home))
    try:
        return await backend.check()
    finally:
        await backend.close()


def refused(loop: LoopThread, home: Path, target: SshTarget) -> str:
    with pytest.raises(AmlTrainError) as caught:
        loop.call(_checked(loop, home, target), 60)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400, text
    return text


class PasswordServer(asyncssh.SSHServer):
    """Accepts one user by password alone."""

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return password == "right"


@pytest.fixture
def password_machine(loop: LoopThread, tmp_path: Path, sshd: Sshd) -> Iterator[Callable[..., SshTarget]]:
    """Fields of a target on a machine that accepts the password ``right``."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    environ = {**os.environ, **machine_environ(tmp_path / "password")}

    async def run(process: Any) -> None:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_shell(
            process.command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ
        )
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        process.exit(await child.wait())

    async def begin() -> Any:
        return await asyncssh.listen(
            "127.0.0.1", 0, server_factory=PasswordServer, server_host_keys=[key], process_factory=run, encoding=None
        )

    server = loop.call(begin(), 30)
    port = server.sockets[0].getsockname()[1]

    def target(**more: Any) -> SshTarget:
        fields = {"accept_host_key": key.get_fingerprint(), "password_from": "BOX_PASSWORD", **more}
        return SshTarget(name="box", host="127.0.0.1", port=port, user="somebody", python=sys.executable, **fields)

    yield target
    loop.call(_close(server), 10)
    end_all(tmp_path / "password")


async def _close(server: Any) -> None:
    server.close()
    with contextlib.suppress(Exception):
        await asyncio.wait_for(server.wait_closed(), 2)


def test_password_of_variable_is_accepted(
    loop: LoopThread, home: Path, password_machine: Callable[..., SshTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_PASSWORD", "right")
    assert loop.call(_checked(loop, home, password_machine()), 60).reachable


def test_password_of_keyring_is_accepted(
    loop: LoopThread, home: Path, password_machine: Callable[..., SshTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    import types

    stored = {("amltrain", "BOX_PASSWORD"): "right"}
    monkeypatch.delenv("BOX_PASSWORD", raising=False)
    fake = types.SimpleNamespace(get_password=lambda service, name: stored.get((service, name)))
    monkeypatch.setitem(sys.modules, "keyring", fake)
    assert loop.call(_checked(loop, home, password_machine()), 60).reachable
    stored.clear()
    assert "BOX_PASSWORD" in refused(loop, home, password_machine())


def test_wrong_password_is_one_sentence_without_it(
    loop: LoopThread, home: Path, password_machine: Callable[..., SshTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_PASSWORD", "hunter2")
    text = refused(loop, home, password_machine())
    assert "password" in text and "hunter2" not in text


def test_machine_behind_a_jump_is_reached(loop: LoopThread, home: Path, sshd: Sshd, tmp_path: Path) -> None:
    environ = {**sshd._environ, **machine_environ(tmp_path / "inner")}
    inner = Sshd(tmp_path / "inner-sshd", environ)
    try:
        # The key of the machine in between comes from known_hosts, its login from ~/.ssh/config.
        sshd.alias(Path(os.environ["HOME"]), "between")
        assert loop.call(_checked(loop, home, target_of(inner, jump="between")), 60).reachable
        assert "nowhere" in refused(loop, home, target_of(inner, jump="nowhere.invalid"))
    finally:
        inner.stop()
        end_all(tmp_path / "inner")


def test_authentication_errors_are_of_one_class(loop: LoopThread, home: Path, sshd: Sshd, tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError):
        loop.call(_checked(loop, home, target_of(sshd, passphrase_from="NOT_SET")), 60)


@pytest.mark.thorough
def test_unknown_key_is_accepted_after_question(api: Any, sshd: Sshd) -> None:
    values = {**attach_values(sshd), "accept_host_key": ""}
    assert not api.act("attach", "box", kind="ssh", values=values, confirmed=True).errors
    manager = api.controller().target_manager
    with pytest.raises(AuthenticationError):
        api.controller().loop.call(manager.operations.finished("box", 60.0), 90)

    async def rows() -> Any:
        return manager.status.rows()

    (row,) = [row for row in api.controller().loop.call(rows()) if row.name == "box"]
    (act,) = [act for act in row.acts if act.verb == "accept"]
    assert sshd.fingerprint in act.confirmation
    question = api.act("accept", "box")
    assert sshd.fingerprint in question.confirmation and not question.accepted
    assert not api.act("accept", "box", confirmed=True).errors
    api.controller().loop.call(manager.operations.finished("box", 60.0), 90)
    assert api.submit("print(1)", target="box", gpus=0).wait(60).logs() == "1\n"
