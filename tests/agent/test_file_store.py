"""Files of submits on a machine, and the spare copy of the last tree."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from jupyter_amltrain.agent import file_store

from .conftest import until


def put(path: Path, content: str, days: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    then = time.time() - 86400 * days
    os.utime(path, (then, then))


def test_sweep_keeps_files_of_recent_submits(tmp_path: Path) -> None:
    for name in ("used", "old", "new"):
        put(tmp_path / name, name, 1 if name == "new" else 100)
    put(tmp_path / ".part-x", "torn", 1)
    put(tmp_path / ".part-y", "being sent", 0)
    put(tmp_path / "manifests" / "recent", json.dumps([["main.py", "used", False]]), 2)
    put(tmp_path / "manifests" / "past", json.dumps([["main.py", "old", False]]), 90)
    file_store.FileStore(str(tmp_path)).sweep(time.time())
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".part-y", "new", "recent", "used"]


@pytest.mark.parametrize(
    "change", [{"main.py": ("a", True)}, {"main.py": ("b", False)}, {"other.py": ("a", False)}, {}]
)
def test_manifest_digest_depends_on_name_mode_and_content(change: dict[str, tuple[str, bool]]) -> None:
    base = {"main.py": ("a", False)}
    assert (
        file_store.manifest_digest(base) == file_store.manifest_digest(dict(base)) != file_store.manifest_digest(change)
    )


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for number in range(9):
        put(tmp_path / str(number), "x", number)
    file_store.prune(str(tmp_path), 5)
    assert len(list(tmp_path.iterdir())) == 9  # up to twice as many stay
    file_store.prune(str(tmp_path), 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]


def test_two_uploads_of_one_file_do_not_mix(tmp_path: Path) -> None:
    store, other = file_store.FileStore(str(tmp_path)), file_store.FileStore(str(tmp_path))
    store.append("abc", "one", 0, b"12", False)
    other.append("abc", "two", 0, b"1", False)
    store.append("abc", "one", 2, b"3", True)
    assert (tmp_path / "abc").read_bytes() == b"123"
    other.append("abc", "two", 1, b"23", True)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["abc"]
    assert (tmp_path / "abc").read_bytes() == b"123"


def test_part_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    store = file_store.FileStore(str(tmp_path))
    store.append("abc", "one", 0, b"12", False)
    with pytest.raises(ValueError, match="byte 5"):
        store.append("abc", "one", 5, b"3", True)
    assert not (tmp_path / "abc").exists()


def test_copy_onto_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, write = [3], os.write

    def limited(handle: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(handle, bytes(data)[: room[0]])
        room[0] -= count
        return count

    (tmp_path / "abc").write_bytes(b"12345")
    monkeypatch.setattr(file_store.os, "write", limited)
    with pytest.raises(OSError, match="No space"):
        file_store.copy_files(str(tmp_path), {"main.py": ("abc", False)}, {}, str(tmp_path / "run"))


Files = dict[str, str]
TREE = {f"package/module{number}.py": f"value = {number}" for number in range(9)}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> file_store.FileStore:
    monkeypatch.setattr(file_store, "SPARE_FILES", 2)
    monkeypatch.setattr(file_store, "_SPARE_DELAY_S", 0.0)
    return file_store.FileStore(str(tmp_path / "blobs"))


def stage(store: file_store.FileStore, files: Files, folder: Path, executable: tuple[str, ...] = ()) -> dict:
    """Send all files, with the whole list."""
    contents = {hashlib.sha256(text.encode()).hexdigest(): text.encode() for text in files.values()}
    rows = {name: (hashlib.sha256(text.encode()).hexdigest(), name in executable) for name, text in files.items()}
    request = {
        "sent": [[digest, len(data)] for digest, data in contents.items()],
        "base": "",
        "removed": [],
        "changed": [[name, *row] for name, row in rows.items()],
        "manifest": file_store.manifest_digest(rows),
        "folder": str(folder),
    }
    return store.stage(request, b"".join(contents.values()))


def spares(store: file_store.FileStore) -> list[Path]:
    """The spare trees that are ready."""
    return [path for path in Path(store.folder, "spare").glob("*") if not path.name.startswith(".")]


def read(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(TREE, id="the-same"),
        pytest.param({**TREE, "package/module3.py": "value = 33"}, id="changed"),
        pytest.param({**TREE, "deep/down/new.py": "1"}, id="added"),
        pytest.param({name: text for name, text in TREE.items() if "8" not in name}, id="removed"),
        pytest.param(
            {**{name: text for name, text in TREE.items() if "8" not in name}, "package/module8.py/x": "1"},
            id="file-to-folder",
        ),
    ],
)
def test_second_submit_takes_spare_tree(store: file_store.FileStore, tmp_path: Path, second: Files) -> None:
    stage(store, TREE, tmp_path / "first")
    until(lambda: len(spares(store)) == 1, "the spare tree")
    unchanged = os.stat(spares(store)[0] / "package/module0.py").st_ino
    assert stage(store, second, tmp_path / "second") == {"base": True, "missing": []}
    assert read(tmp_path / "second") == second
    assert os.stat(tmp_path / "second/package/module0.py").st_ino == unchanged
    assert read(tmp_path / "first") == TREE


def test_folder_replaced_by_file_is_copied(store: file_store.FileStore, tmp_path: Path) -> None:
    before = {**TREE, "part/inner.py": "1"}
    after = {**TREE, "part": "2"}
    stage(store, before, tmp_path / "first")
    until(lambda: len(spares(store)) == 1, "the spare tree")
    stage(store, after, tmp_path / "second")
    assert read(tmp_path / "second") == after


def test_mode_that_changes_is_applied(store: file_store.FileStore, tmp_path: Path) -> None:
    stage(store, TREE, tmp_path / "first")
    until(lambda: len(spares(store)) == 1, "the spare tree")
    stage(store, TREE, tmp_path / "second", executable=("package/module1.py",))
    modes = [os.stat(tmp_path / f"second/package/module{number}.py").st_mode & 0o777 for number in (0, 1)]
    assert modes == [0o600, 0o700]


def test_job_that_changes_its_code_changes_no_other(store: file_store.FileStore, tmp_path: Path) -> None:
    stage(store, TREE, tmp_path / "first")
    (tmp_path / "first/package/module0.py").write_text("changed by the job")
    for name in ("second", "third"):
        until(lambda: len(spares(store)) == 1, "the spare tree")
        stage(store, TREE, tmp_path / name)
        assert read(tmp_path / name) == TREE
        (tmp_path / name / "package/module0.py").write_text("changed by the job")


def test_spare_tree_serves_a_later_connection(store: file_store.FileStore, tmp_path: Path) -> None:
    stage(store, TREE, tmp_path / "first")
    until(lambda: len(spares(store)) == 1, "the spare tree")
    later = file_store.FileStore(store.folder)
    stage(later, {**TREE, "package/module3.py": "3"}, tmp_path / "second")
    assert read(tmp_path / "second") == {**TREE, "package/module3.py": "3"}


def test_other_project_leaves_spare_tree(store: file_store.FileStore, tmp_path: Path) -> None:
    stage(store, TREE, tmp_path / "first")
    until(lambda: len(spares(store)) == 1, "the spare tree")
    stage(store, {"main.py": "print(1)"}, tmp_path / "other")
    assert read(tmp_path / "other") == {"main.py": "print(1)"} and len(spares(store)) == 1


def test_two_connections_keep_one_spare_tree(store: file_store.FileStore, tmp_path: Path) -> None:
    stage(store, TREE, tmp_path / "first")
    until(lambda: len(spares(store)) == 1, "the spare tree")
    before = spares(store)
    other = {f"other/{name}": text for name, text in TREE.items()}
    stage(file_store.FileStore(store.folder), other, tmp_path / "second")
    until(lambda: spares(store) not in ([], before), "the newer spare tree")
    assert read(spares(store)[0]) == other


def test_large_tree_has_no_spare(store: file_store.FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(store, TREE, tmp_path / "first")
    until(lambda: len(spares(store)) == 1, "the spare tree")
    monkeypatch.setattr(file_store, "SPARE_BYTES", 10)
    stage(store, TREE, tmp_path / "second")
    assert not spares(store) and read(tmp_path / "second") == TREE


def test_sweep_removes_abandoned_spare_trees(store: file_store.FileStore, tmp_path: Path) -> None:
    folder = Path(store.folder, "spare")
    for name, hours in (("ready", 2), (".part-1-1", 2), (".part-2-1", 0), ("old", 24 * 31)):
        put(folder / name / "x", "x", 0)
        then = time.time() - 3600 * hours
        os.utime(folder / name, (then, then))
    store.sweep(time.time())
    assert sorted(path.name for path in folder.iterdir()) == [".part-2-1", "ready"]
