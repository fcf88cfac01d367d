"""Logins that fail: one sentence each, with what to type next, and no secret."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.ssh import SshBackend
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, CommandError, TargetError, TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.state_dir import StateRoot
from tools.openssh import Sshd, free_port, make_key

from .test_ssh_backend import target_of

Check = Callable[..., Any]


@pytest.fixture
def loop(home: Path) -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.fixture
def check(loop: LoopThread, sshd: Sshd, home: Path) -> Check:
    def run(**fields: Any) -> Any:
        backend = SshBackend(target_of(sshd, **fields), loop, StateRoot(home))
        try:
            return loop.call(backend.check(), 60)
        finally:
            loop.call(backend.close())

    return run


def refused(check: Check, kind: type[AmlTrainError], code: str, **fields: Any) -> str:
    with pytest.raises(kind) as caught:
        check(**fields)
    text = str(caught.value)
    assert caught.value.code == code and "\n" not in text and len(text) < 400, text
    return text


def test_unknown_host_key_is_shown_and_can_be_accepted(check: Check, sshd: Sshd) -> None:
    text = refused(check, AuthenticationError, "ssh.host_key", accept_host_key="")
    assert f"--accept-host-key {sshd.fingerprint}" in text
    assert check(accept_host_key=sshd.fingerprint).reachable


def test_changed_host_key_is_refused(check: Check) -> None:
    refused(check, AuthenticationError, "ssh.host_key_changed", accept_host_key="SHA256:" + "A" * 43)


@pytest.mark.thorough
def test_key_in_known_hosts_needs_no_fingerprint(check: Check, sshd: Sshd) -> None:
    public = (sshd.folder / "host.pub").read_text().split()[:2]
    (Path.home() / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {' '.join(public)}\n")
    assert check(accept_host_key="").reachable


def test_other_key_in_known_hosts_is_refused(check: Check, sshd: Sshd, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
    (Path.home() / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {' '.join(other)}\n")
    for accepted in ("", sshd.fingerprint):
        refused(check, AuthenticationError, "ssh.host_key_changed", accept_host_key=accepted)


@pytest.mark.thorough
def test_alias_of_ssh_config_is_enough(check: Check, sshd: Sshd) -> None:
    lines = ["Host gpubox", "  HostName 127.0.0.1", f"  Port {sshd.port}", f"  IdentityFile {sshd.key}"]
    (Path.home() / ".ssh" / "config").write_text("\n".join(lines) + "\n")
    assert check(host="gpubox", port=0, identity_file="").reachable


def test_broken_ssh_config_is_named(check: Check) -> None:
    (Path.home() / ".ssh" / "config").write_text('Host "unclosed\n')
    assert ".ssh/config" in refused(check, CommandError, "ssh.config")


@pytest.mark.thorough
def test_key_with_passphrase_needs_its_variable(
    check: Check, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = make_key(tmp_path / "locked", "open sesame")
    with (sshd.folder / "authorized").open("a") as file:
        file.write((tmp_path / "locked.pub").read_text())
    fields = {"identity_file": str(locked)}
    assert "--passphrase-from" in refused(check, AuthenticationError, "ssh.key", **fields)
    refused(check, AuthenticationError, "ssh.variable", **fields, passphrase_from="NOT_SET")
    monkeypatch.setenv("KEY_WORD", "wrong words")
    text = refused(check, AuthenticationError, "ssh.key", **fields, passphrase_from="KEY_WORD")
    assert "wrong words" not in text
    monkeypatch.setenv("KEY_WORD", "open sesame")
    assert check(**fields, passphrase_from="KEY_WORD").reachable


def test_wrong_key_is_refused_login(check: Check, tmp_path: Path) -> None:
    refused(check, AuthenticationError, "ssh.login", identity_file=str(make_key(tmp_path / "stranger")))


@pytest.mark.parametrize("content", [None, b"not a key", b"", "folder"])
def test_unusable_key_file_is_named(check: Check, tmp_path: Path, content: bytes | str | None) -> None:
    file = tmp_path / "key"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "folder":
        file.mkdir()
    assert str(file) in refused(check, AuthenticationError, "ssh.key", identity_file=str(file))


def test_port_without_server_is_unreachable(check: Check) -> None:
    assert "refused" in refused(check, TargetUnreachable, "ssh.unreachable", port=free_port())


def test_unknown_host_is_unreachable(check: Check) -> None:
    refused(check, TargetUnreachable, "ssh.unreachable", host="no-such-host.invalid")


@pytest.mark.thorough
def test_service_that_is_not_ssh_is_unreachable(check: Check) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        refused(check, TargetUnreachable, "ssh.unreachable", port=server.getsockname()[1])


def login_program(sshd: Sshd, text: str) -> None:
    """Make every session run a script instead of the user's shell; ``$SSH_ORIGINAL_COMMAND`` is what was asked for."""
    script = sshd.folder / "login.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    key = (sshd.folder / "user.pub").read_text()
    (sshd.folder / "authorized").write_text(f'command="{script}" {key}')


@pytest.mark.thorough
def test_banner_of_login_shell_is_skipped(check: Check, sshd: Sshd) -> None:
    login_program(sshd, "echo 'Welcome! 3 updates.'; printf 'no newline'; eval \"$SSH_ORIGINAL_COMMAND\"")
    assert check().reachable


def test_machine_without_python_is_named(check: Check, sshd: Sshd) -> None:
    login_program(sshd, 'PATH=/nonexistent; eval "/bin/$SSH_ORIGINAL_COMMAND"')
    assert "Python 3.8" in refused(check, TargetError, "ssh.no_python")


def test_old_python_is_named(check: Check, sshd: Sshd) -> None:
    folder = sshd.folder / "bin"
    folder.mkdir()
    old = "import sys; sys.version_info = (3, 7, 9)"
    (folder / "python3").write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -u -c "{old}\n$1"\n')
    (folder / "python3").chmod(0o755)
    login_program(sshd, f'PATH={folder}:$PATH; eval "$SSH_ORIGINAL_COMMAND"')
    assert "3.7" in refused(check, TargetError, "ssh.python")


def test_folder_that_cannot_be_written_is_named(check: Check, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = refused(check, TargetError, "ssh.not_writable", workdir=str(tmp_path / "file" / "below"))
    assert "--workdir" in text


@pytest.mark.thorough
def test_login_shell_that_ends_at_once_is_named(check: Check, sshd: Sshd) -> None:
    login_program(sshd, "echo 'This account is not available.'; exit 1")
    assert "not available" in refused(check, TargetError, "ssh.agent")


@pytest.mark.thorough
def test_agent_file_with_other_content_is_replaced(check: Check, remote_home: Path) -> None:
    check()
    (file,) = (remote_home / "agent").glob("*.pyz")
    content = file.read_bytes()
    file.write_bytes(b"print('not the agent')")
    assert check().reachable and file.read_bytes() == content
