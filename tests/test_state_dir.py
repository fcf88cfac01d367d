"""The state root: modes, schema, places that cannot be written, file systems without locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import StateError
from jupyter_amltrain.state_dir import StateRoot, check_schema, locked, project_store, read_json, write_json


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    return text


def test_state_root_has_private_rights(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        root = StateRoot(tmp_path / "new" / "home")
        write_json(root.targets, {"schema": 1})
        with locked(root.path / "a.lock"):
            pass
    finally:
        os.umask(old)
    assert mode(root.path) == mode(root.runs) == mode(root.staging) == mode(root.logs) == 0o700
    for path in root.path.iterdir():
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert json.loads((root.path / "schema.json").read_text()) == {"schema": 1}


def test_state_root_reopened_is_unchanged(tmp_path: Path) -> None:
    StateRoot(tmp_path / "home")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "home").iterdir()}
    StateRoot(tmp_path / "home")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "home").iterdir()} == before


@pytest.mark.parametrize("written", ['{"schema":99}', '{"schema":"1"}', "[]", "{}", "7"])
def test_state_root_of_newer_schema_is_refused(tmp_path: Path, written: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "schema.json").write_text(written)
    with pytest.raises(StateError) as caught:
        StateRoot(home)
    text = one_line(caught.value)
    assert str(home / "schema.json") in text
    if "99" in written:
        assert "schema 99" in text and "pip install -U" in text
    else:
        assert "is damaged" in text


def test_state_root_damaged_file_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "schema.json").write_text("{")
    with pytest.raises(StateError, match="schema.json"):
        StateRoot(home)
    with pytest.raises(StateError, match="Cannot read"):
        read_json(tmp_path / "absent.json")
    check_schema({"schema": 1}, tmp_path)


def test_state_root_below_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"file/home: .*Set AMLTRAIN_HOME") as caught:
        StateRoot(tmp_path / "file" / "home")
    one_line(caught.value)


def test_a_place_that_is_not_for_files() -> None:
    with pytest.raises(StateError, match="/proc/amltrain: "):
        StateRoot("/proc/amltrain")


def test_write_json_failure_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"n": 1})
    with pytest.raises(TypeError):
        write_json(path, {"n": object()})
    assert read_json(path) == {"n": 1} and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_state_root_follows_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AMLTRAIN_HOME", "~/state")
    assert StateRoot().path == tmp_path / "state"
    monkeypatch.delenv("AMLTRAIN_HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert str(StateRoot().path).startswith(str(tmp_path))
    assert project_store("/a/b") == Path("/a/b/.amltrain")


# ---- a file system that became read-only


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def test_state_root_on_read_only_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_amltrain import api
    from jupyter_amltrain.kernel.target_file import TargetFile

    monkeypatch.setenv("AMLTRAIN_QUEUE", str(tmp_path / "queue"))
    with mounted(tmp_path / "disk") as disk:
        home = disk / "home"
        monkeypatch.setenv("AMLTRAIN_HOME", str(home))
        api.close()
        root = StateRoot(home)
        c = api.controller()  # opened while the disk could be written
        try:
            read_only(disk)
            with pytest.raises(StateError, match=r"AMLTRAIN_HOME"):
                StateRoot(home)
            for call in (
                lambda: api.submit("pass"),
                lambda: api.compute("local"),
                lambda: TargetFile(root, c.targets._kinds).use("local"),
            ):
                with pytest.raises(StateError) as caught:
                    call()
                text = one_line(caught.value)
                assert str(home) in text and "ead-only" in text and "writable" in text
        finally:
            api.close()


# ---- locks

HOLD = """
import sys
from pathlib import Path
from jupyter_amltrain.state_dir import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_of_dead_process_is_released(tmp_path: Path) -> None:
    path = tmp_path / "import.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(StateError, match=r"import.lock.*locked") as caught:
            with locked(path, timeout=0.2):
                raise AssertionError("never inside")
        one_line(caught.value)
    finally:
        holder.kill()
        holder.communicate()
    with locked(path, timeout=30):
        assert mode(path) == 0o600


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_lock_without_file_system_support_uses_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def none(fd: Any, operation: int, *rest: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)  # the system call's own door
    monkeypatch.setattr(fcntl, "lockf", none)
    path = tmp_path / "targets.lock"
    with locked(path, timeout=60):
        with pytest.raises(StateError, match="locked"):
            with locked(path, timeout=0.2):
                raise AssertionError("never inside")
    with locked(path, timeout=60):
        pass
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".soft")]


@pytest.mark.parametrize(
    "written",
    [
        "{}",
        "[]",
        "null",
        "7",
        '{"targets":{}}',
        '{"schema":1,"targets":[]}',
        '{"schema":1,"targets":7}',
        '{"schema":1,"targets":{},"current":{}}',
        '{"schema":1,"targets":{},"past":[1]}',
        '{"schema":1,"targets":{"a":7}}',
        '{"schema":1,"targets":{"a":{"kind":"fake","name":7}}}',
        "[" * 20_000,
    ],
)
def test_damaged_targets_file_is_refused(tmp_path: Path, written: str) -> None:
    from jupyter_amltrain.backends.target_kinds import target_kinds
    from jupyter_amltrain.kernel.target_file import TargetFile

    root = StateRoot(tmp_path / "home")
    root.targets.write_text(written)
    targets = TargetFile(root, target_kinds())
    for ask in (targets.all, targets.read, lambda: targets.get("local"), lambda: targets.use("local")):
        with pytest.raises(StateError) as caught:
            ask()
        assert "targets.json" in one_line(caught.value) and "schema None" not in str(caught.value)


def test_deleted_working_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_amltrain import api
    from jupyter_amltrain.errors import CommandError

    monkeypatch.setenv("AMLTRAIN_HOME", str(tmp_path / "home"))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        with pytest.raises(CommandError, match="working folder was deleted"):
            api.submit("print(1)")
    finally:
        monkeypatch.chdir(tmp_path)
        api.close()


@pytest.mark.thorough
def test_import_with_warnings_as_errors_succeeds() -> None:
    import subprocess
    import sys

    code = "import jupyter_amltrain.cli, jupyter_amltrain.magics, jupyter_amltrain.output.dashboard"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
