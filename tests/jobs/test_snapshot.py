from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jupyter_amltrain.errors import SnapshotTooLarge, SubmitError
from jupyter_amltrain.jobs import snapshot
from jupyter_amltrain.jobs.snapshot import take_snapshot


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(made: snapshot.Snapshot) -> set[str]:
    return set(made.files)


# -- the script and its modules -------------------------------------------------------


def test_snapshot_of_cell_is_script_only(tmp_path: Path) -> None:
    write(tmp_path, {"other.py": "", "data.csv": "1"})
    made = take_snapshot("script.py", "import os, numpy\n", root=tmp_path)
    assert made.files == {"script.py": b"import os, numpy\n"}
    assert made.bytes == 17


def test_snapshot_includes_transitive_local_modules(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.py": "def f():\n    import b",
            "b.py": "from ns.deep import thing\nimport a",
            "ns/deep/thing.py": "from . import beside\nfrom ..up import x",
            "ns/deep/beside.py": "",
            "ns/deep/unused.py": "",
            "ns/up.py": "import pkg.sub.x as y",
            "pkg/__init__.py": "",
            "pkg/sub/x.py": "import c",
            "pkg/other.py": "",
            "pkg/notes.txt": "",
            "pkg/__pycache__/x.py": "",
            "c.py": "this is = no python",
            "unused.py": "",
            "json.py": "x = 1",
        },
    )
    made = take_snapshot("script.py", "from a import f\n'import unused'", root=tmp_path)
    assert names(made) == {
        "script.py", "a.py", "b.py", "c.py", "ns/deep/thing.py", "ns/deep/beside.py", "ns/up.py",
        "pkg/__init__.py", "pkg/other.py", "pkg/sub/x.py",
    }  # fmt: skip
    assert made.files["a.py"] == str(tmp_path / "a.py")
    assert "json.py" in names(take_snapshot("s.py", "import json", root=tmp_path))


def test_snapshot_from_import_includes_package(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "x = 1", "pkg/m.py": "", "ns/m.py": ""})
    assert len(take_snapshot("s.py", "from pkg import x", root=tmp_path).files) == 3
    assert names(take_snapshot("s.py", "from ns import m, absent", root=tmp_path)) == {
        "s.py",
        "ns/m.py",
    }


def test_snapshot_bare_folder_does_not_shadow_installed(tmp_path: Path) -> None:
    write(tmp_path, {"mlflow/notes.py": "", "email/mine.py": ""})
    made = take_snapshot("s.py", "import mlflow.notes, email.mine", root=tmp_path)
    assert names(made) == {"s.py"}


def test_snapshot_of_edited_module_is_updated(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "b.py": ""})
    assert names(take_snapshot("s.py", "import a", root=tmp_path)) == {"s.py", "a.py"}
    write(tmp_path, {"a.py": "import b"})
    assert names(take_snapshot("s.py", "import a", root=tmp_path)) == {"s.py", "a.py", "b.py"}


def test_snapshot_file_is_byte_exact(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"# coding: latin-1\nimport b\nx = '\xfc'\n")
    write(tmp_path, {"b.py": ""})
    made = take_snapshot("train.py", "", root=tmp_path)
    assert made.files["train.py"] == str(tmp_path / "train.py") and "b.py" in made.files


def test_snapshot_non_ascii_names_are_included(tmp_path: Path) -> None:
    write(tmp_path, {"größe.py": "x = 1"})
    assert "größe.py" in names(take_snapshot("s.py", "import größe", root=tmp_path))
    (tmp_path / os.fsdecode(b"\xff.py")).write_text("")
    assert "größe.py" in names(take_snapshot("s.py", "import größe", root=tmp_path))
    with pytest.raises(SubmitError, match="is not UTF-8"):
        take_snapshot("s.py", "x = 1", root=tmp_path, source=tmp_path)


def test_snapshot_module_named_like_script_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"script.py": ""})
    with pytest.raises(SubmitError, match="Rename that file"):
        take_snapshot("script.py", "import script", root=tmp_path)


# -- a source folder ------------------------------------------------------------------


def test_snapshot_of_folder_skips_default_ignores(tmp_path: Path) -> None:
    kept = {"train.py": "", "pkg/m.py": "", "conf.yaml": "", ".env": ""}
    skipped = {f"{x}/a.py": "" for x in snapshot.ALWAYS_SKIPPED} | {"pkg/__pycache__/m.pyc": ""}
    write(tmp_path, kept | skipped)
    assert names(take_snapshot("train.py", "", root="/", source=tmp_path)) == set(kept)
    made = take_snapshot("script.py", "x = 1", root="/", source=tmp_path)
    assert names(made) == {*kept, "script.py"}


def test_snapshot_respects_nested_gitignore(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.log\n/out/\n!keep.log\n# comment\n\ndata/*\n!data/small.csv\n",
            "a.log": "", "keep.log": "", "out/x": "", "sub/out/y": "", "data/big": "",
            "data/small.csv": "", "sub/.gitignore": "!b.log\n/z\n", "sub/b.log": "", "sub/z": "",
            "z": "",
        },
    )  # fmt: skip
    assert names(take_snapshot("z", "", root="/", source=tmp_path)) == {
        ".gitignore", "keep.log", "sub/out/y", "data/small.csv", "sub/.gitignore", "sub/b.log", "z",
    }  # fmt: skip


def test_snapshot_amlignore_overrides_gitignore(tmp_path: Path) -> None:
    write(tmp_path, {".amlignore": "*.csv\n", ".gitignore": "*.py\n", "a.py": "", "b.csv": ""})
    assert names(take_snapshot("a.py", "", root="/", source=tmp_path)) == {
        "a.py",
        ".amlignore",
        ".gitignore",
    }


def test_snapshot_with_ignored_script_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {".amlignore": "*.py\n", "a.py": ""})
    with pytest.raises(SubmitError, match=r"a\.py.*ignore"):
        take_snapshot("a.py", "", root="/", source=tmp_path)


def test_snapshot_follows_inside_links_only(tmp_path: Path) -> None:
    source = write(tmp_path / "src", {"a.py": "", "d/b.py": ""})
    (source / "inside.py").symlink_to("d/b.py")
    (source / "e").symlink_to("d")
    (source / "d" / "loop").symlink_to("..")
    (source / "broken").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    assert names(take_snapshot("a.py", "", root="/", source=source)) == {
        "a.py", "d/b.py", "inside.py", "e/b.py",
    }  # fmt: skip
    (source / "data").symlink_to(tmp_path)
    with pytest.raises(SubmitError, match=r"link.*\.amlignore"):
        take_snapshot("a.py", "", root="/", source=source)
    (source / ".amlignore").write_text("/data\n")
    take_snapshot("a.py", "", root="/", source=source)


def test_snapshot_of_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmitError, match="is not a folder"):
        take_snapshot("a.py", "", root="/", source=tmp_path / "no")


# -- limits ---------------------------------------------------------------------------


def test_snapshot_too_large_error_names_largest(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "data/train/a.bin": "x" * 3000, "data/train/b.bin": "x" * 3000, "data/readme": "x",
            "model.ckpt": "x" * 2500, "old/1": "x" * 900, "old/2": "x" * 900, "a.py": "x",
        },
    )  # fmt: skip
    with pytest.raises(SnapshotTooLarge) as caught:
        take_snapshot("a.py", "", root="/", source=tmp_path, limit_bytes=10_000)
    message = str(caught.value)
    assert "data/train/ (0.0 MB), model.ckpt (0.0 MB), old/ (0.0 MB)" in message
    assert message.endswith(f"cd {tmp_path}; echo '/data/train/' >> .amlignore")
    write(tmp_path, {".gitignore": ""})
    with pytest.raises(SnapshotTooLarge, match=r"cp \.gitignore \.amlignore"):
        take_snapshot("a.py", "", root="/", source=tmp_path, limit_bytes=10_000)
    write(tmp_path, {".amlignore": "/data/train/"})
    take_snapshot("a.py", "", root="/", source=tmp_path, limit_bytes=10_000)


def test_snapshot_with_too_many_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {f"images/{i}.png": "" for i in range(30)} | {"a.py": ""})
    with pytest.raises(SnapshotTooLarge, match=r"31 files.*20 .*images/ \(30"):
        take_snapshot("a.py", "", root="/", source=tmp_path, limit_files=20)


def test_snapshot_of_huge_folder_stops_early(tmp_path: Path) -> None:
    write(tmp_path, {f"images/{i}.png": "" for i in range(30)} | {"a.py": ""})
    with pytest.raises(SnapshotTooLarge, match="more than .* in 21 files"):
        take_snapshot("a.py", "", root="/", source=tmp_path, limit_files=2)


# -- digest ---------------------------------------------------------------------------


def test_snapshot_digest_depends_on_names_modes_and_contents(tmp_path: Path) -> None:
    def digest(where: str, files: dict[str, str], mode: int = 0o644) -> str:
        root = write(tmp_path / where, files)
        for name in files:
            (root / name).chmod(mode)
        return take_snapshot("s.py", "x = 1", root="/", source=root).digest

    one = digest("1", {"a": "1", "b": "2"})
    assert digest("2", {"b": "2", "a": "1"}) == one
    others = [
        digest("3", {"a": "2", "b": "1"}),
        digest("4", {"a": "1", "c": "2"}),
        digest("5", {"a": "1", "b": "2"}, 0o755),
        digest("6", {"a": "1"}),
    ]
    assert len({one, *others}) == 5


def test_snapshot_digest_of_bytes_equals_file(tmp_path: Path) -> None:
    write(tmp_path, {"s.py": "x = 1"})
    by_file = take_snapshot("s.py", "", root=tmp_path).digest
    assert take_snapshot("s.py", "x = 1", root="/").digest == by_file


def test_snapshot_of_cell_is_fast(tmp_path: Path) -> None:
    write(tmp_path, {f"{i}.csv": "" for i in range(100)})
    text = "import os, sys, numpy, mlflow\n" + "x = 1\n" * 50
    take_snapshot("s.py", text, root=tmp_path)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        take_snapshot("s.py", text, root=tmp_path)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.002


# -- what is no file, and what changes -------------------------------------------------


def test_snapshot_skips_circular_links(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": ""})
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert names(take_snapshot("a.py", "", root="/", source=tmp_path)) == {"a.py"}
    with pytest.raises(SubmitError, match="not a folder"):
        take_snapshot("a.py", "", root="/", source=tmp_path / "one")


@pytest.mark.parametrize("name", [".amlignore", ".gitignore", "sub/.gitignore"])
@pytest.mark.parametrize("kind", ["fifo", "device", "loop"])
def test_snapshot_with_invalid_ignore_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    write(tmp_path, {"a.py": "", "sub/b.py": ""})
    if kind == "fifo":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero" if kind == "device" else Path(name).name)
    with pytest.raises(SubmitError, match="Cannot read") as caught:
        take_snapshot("a.py", "", root="/", source=tmp_path)
    assert "\n" not in str(caught.value)


def test_snapshot_skips_special_files(tmp_path: Path) -> None:
    import socket

    write(tmp_path, {"a.py": ""})
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / ".amlignore").write_text("null\n")
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(tmp_path)
        try:
            made.bind("socket")
        finally:
            os.chdir(here)
    assert names(take_snapshot("a.py", "", root="/", source=tmp_path)) == {"a.py", ".amlignore"}


def test_snapshot_with_pipe_module_does_not_block(tmp_path: Path) -> None:
    write(tmp_path, {"package/__init__.py": "", "package/loop.py": ""})
    os.mkfifo(tmp_path / "piped.py")
    os.mkfifo(tmp_path / "package" / "piped.py")
    (tmp_path / "package" / "loop.py").unlink()
    (tmp_path / "package" / "loop.py").symlink_to("loop.py")
    made = take_snapshot("s.py", "import piped, package", root=tmp_path)
    assert names(made) == {"s.py", "package/__init__.py"}
    os.mkfifo(tmp_path / "script.py")
    with pytest.raises(SubmitError, match="Cannot read the script"):
        take_snapshot("script.py", "", root=tmp_path)


@pytest.mark.parametrize("where", ["name", "folder"])
def test_snapshot_with_non_utf8_name_is_refused(tmp_path: Path, where: str) -> None:
    odd = os.fsdecode(b"caf\xe9")
    write(tmp_path, {"a.py": "", (f"{odd}.txt" if where == "name" else f"{odd}/b.txt"): ""})
    with pytest.raises(SubmitError, match="not UTF-8") as caught:
        take_snapshot("a.py", "", root="/", source=tmp_path)
    str(caught.value).encode()


def test_snapshot_in_non_utf8_folder_works(tmp_path: Path) -> None:
    root = write(tmp_path / os.fsdecode(b"caf\xe9"), {"a.py": "x = 1"})
    made = take_snapshot("a.py", "", root="/", source=root)
    assert names(made) == {"a.py"} and made.digest == take_snapshot("a.py", "x = 1", root="/").digest


def test_snapshot_copy_digest_detects_change(tmp_path: Path) -> None:
    write(tmp_path / "source", {"a.py": "x = 1", "sub/b.py": "y = 1"})
    made = take_snapshot("a.py", "", root="/", source=tmp_path / "source")
    assert snapshot.digest_of(tmp_path / "source", made.files) == made.digest
    write(tmp_path / "source", {"a.py": "x = 2"})
    assert snapshot.digest_of(tmp_path / "source", made.files) != made.digest


def test_snapshot_skips_outputs_link(tmp_path: Path) -> None:
    write(tmp_path / "source", {"a.py": ""})
    (tmp_path / "outputs").mkdir()
    (tmp_path / "source" / "outputs").symlink_to("../outputs")
    assert names(take_snapshot("a.py", "", root="/", source=tmp_path / "source")) == {"a.py"}


def test_snapshot_of_code_of_a_run_does_not_count_its_values(tmp_path: Path) -> None:
    (tmp_path / "_amltrain_in").mkdir()
    (tmp_path / "_amltrain_in" / "a.npy").write_bytes(b"x" * 5000)
    (tmp_path / "main.py").write_text("pass\n")
    snapshot = take_snapshot("main.py", "", root=tmp_path, code_dir=tmp_path, limit_bytes=1000)
    assert set(snapshot.files) == {"main.py", "_amltrain_in/a.npy"} and snapshot.bytes > 5000
    (tmp_path / "b.bin").write_bytes(b"x" * 5000)
    with pytest.raises(SnapshotTooLarge):
        take_snapshot("main.py", "", root=tmp_path, code_dir=tmp_path, limit_bytes=1000)
