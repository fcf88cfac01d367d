from __future__ import annotations

import os
import time
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.values import FOLDER
from jupyter_amltrain.backends import transfer, tree_copy
from jupyter_amltrain.backends.tree_copy import CopyStopped, TreeCopy
from jupyter_amltrain.schema.job import JobSpec

from ..helpers import until


def test_copy_has_contents_and_modes_for_this_user_alone(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "large").write_bytes(os.urandom(3_000_001))
    files: dict[str, bytes | str] = {
        "a/b/run.sh": str(tmp_path / "run.sh"),
        "large": str(tmp_path / "large"),
        "x": b"1",
    }
    copy = TreeCopy(files, tmp_path / "copy")
    copy.run()
    to = tmp_path / "copy"
    assert (to / "large").read_bytes() == (tmp_path / "large").read_bytes() and (to / "x").read_bytes() == b"1"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (to, to / "a", to / "a" / "b" / "run.sh", to / "large")}
    assert modes == {"copy": 0o700, "a": 0o700, "run.sh": 0o700, "large": 0o600}
    assert copy.transfer.done == copy.transfer.total == 3_000_006


@pytest.mark.parametrize("kind", ["absent", "pipe", "full disk", "stopped"])
def test_failed_copy_leaves_nothing(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, bytes | str] = {"first": b"1", "second": str(tmp_path / "second")}
    copy = TreeCopy(files, tmp_path / "copy")
    if kind == "pipe":
        os.mkfifo(tmp_path / "second")
    elif kind != "absent":
        (tmp_path / "second").write_text("2")
    if kind == "full disk":
        monkeypatch.setattr(tree_copy, "_created", lambda path, mode: FileIO("/dev/full", "w"))
    elif kind == "stopped":
        copy.stop()
    with pytest.raises(CopyStopped if kind == "stopped" else OSError) as caught:
        copy.run()
    assert not (tmp_path / "copy").exists()
    if kind != "stopped":
        name = tmp_path / ("copy/first" if kind == "full disk" else "second")
        assert isinstance(caught.value, OSError) and caught.value.filename == str(name)


def test_slow_copy_shows_progress_and_is_canceled(
    api: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = TreeCopy._append

    def slowly(self: TreeCopy, *args: Any) -> None:
        time.sleep(0.1)
        append(self, *args)

    monkeypatch.setattr(TreeCopy, "_append", slowly)
    monkeypatch.setattr(transfer, "NOTICE_S", 0.2)
    source = tmp_path / "code"
    source.mkdir()
    for number in range(600):
        (source / f"part{number}.py").write_text("x" * 1000)
    folder = str(source)
    run = api.submit_spec(
        JobSpec(name="x", script_name="part0.py", source=folder, notebook_dir=folder, source_sha256="0" * 64)
    )
    until(lambda: "/s" in run.run.status.detail and "copying" in run.run.status.detail, "the copy shows its progress")
    run.cancel()
    until(lambda: run.state == "canceled", "the run is canceled")
    until(lambda: not list((home / "staging").iterdir()), "nothing stays")


def test_values_of_the_notebook_are_links_and_code_is_not(tmp_path: Path) -> None:
    value, code = tmp_path / "a.buffer", tmp_path / "script.py"
    value.write_bytes(b"value")
    code.write_bytes(b"code")
    value.chmod(0o400)
    code.chmod(0o400)
    files = {f"{FOLDER}/a.buffer": str(value), "script.py": str(code), f"trial/{FOLDER}/b": str(code)}
    TreeCopy(files, tmp_path / "run").run()
    linked = tmp_path / "run" / FOLDER / "a.buffer"
    assert linked.samefile(value) and not linked.stat().st_mode & 0o222
    assert not (tmp_path / "run" / "script.py").samefile(code)
    value.unlink()
    assert linked.read_bytes() == b"value"


def test_value_that_can_be_written_is_copied(tmp_path: Path) -> None:
    value = tmp_path / "a.npy"
    value.write_bytes(b"value")
    TreeCopy({f"{FOLDER}/a.npy": str(value)}, tmp_path / "run").run()
    assert not (tmp_path / "run" / FOLDER / "a.npy").samefile(value)
