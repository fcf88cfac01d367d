"""Downloads of many files: whole, as they are when they are read, and without those that cannot be read."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError, TargetUnreachable
from jupyter_amltrain.kernel import read_ahead

COUNT = 2500
CODE = f"""
import os, pathlib
folder = pathlib.Path(os.environ["AML_OUTPUT_DIR"])
for number in range({COUNT}):
    part = folder / f"part{{number % 3}}"
    part.mkdir(exist_ok=True)
    (part / f"{{number:05}}.txt").write_text(str(number))
(folder / "large.bin").write_bytes(b"0123456789" * 100_000)
(folder / "empty").touch()
(folder / os.fsdecode(b"odd \\xff name")).write_text("odd")
(folder / "latest").symlink_to("large.bin")
"""


@pytest.fixture
def run(api: Any) -> Any:
    return api.submit(CODE, name="many", gpus=0).wait(60)


def outputs(folder: Path) -> dict[str, bytes]:
    """Content of all files below a folder, by name."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("_amltrain"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_many_files_are_copied_whole(run: Any, tmp_path: Path) -> None:
    there = Path(run.run.folder) / "outputs"
    run.download("outputs", tmp_path)
    copied = outputs(tmp_path / "outputs")
    assert len(copied) >= COUNT + 4 and copied == outputs(there)
    assert not list(tmp_path.rglob("*.part"))
    times = {path.name: path.stat().st_mtime for path in (tmp_path / "outputs").rglob("*.txt")}
    assert times == pytest.approx({path.name: path.stat().st_mtime for path in there.rglob("*.txt")}, abs=1e-3)


@pytest.mark.thorough
def test_repeated_download_copies_only_what_is_missing(run: Any, tmp_path: Path) -> None:
    files = run.files()
    files.download("outputs", tmp_path)
    kept, gone = tmp_path / "outputs/part0/00000.txt", tmp_path / "outputs/part1/00001.txt"
    before = kept.stat().st_ino
    gone.unlink()
    files.download("outputs", tmp_path)
    assert gone.read_text() == "1" and kept.stat().st_ino == before


@pytest.mark.thorough
def test_small_file_that_changes_is_copied_as_it_is_now(run: Any, tmp_path: Path) -> None:
    files = run.files()
    path = Path(run.run.folder) / "outputs/part0/00000.txt"
    path.write_text("longer than before")
    files.download("outputs", tmp_path)
    assert (tmp_path / "outputs/part0/00000.txt").read_text() == "longer than before"
    assert files["outputs/part0/00000.txt"].size == len("longer than before")
    files.download("outputs", tmp_path)  # and is there


@pytest.mark.thorough
def test_files_that_cannot_be_read_are_named_and_others_copied(run: Any, tmp_path: Path) -> None:
    files, there = run.files(), Path(run.run.folder) / "outputs"
    (there / "part0/00000.txt").unlink()
    (there / "part1/00001.txt").unlink()
    (there / "part1/00001.txt").mkdir()
    (there / "large.bin").write_bytes(b"x" * 900_000)
    with pytest.raises(CommandError) as caught:
        files.download("outputs", tmp_path)
    assert caught.value.code == "files.missing"
    missing = {"outputs/part0/00000.txt", "outputs/part1/00001.txt", "outputs/large.bin", "outputs/latest"}
    assert set(caught.value.details["missing"]) == missing and "00000.txt" in str(caught.value)
    copied = outputs(tmp_path / "outputs")
    assert len(copied) == len(files_of(files)) - len(missing) and copied["part0/00003.txt"] == b"3"


def files_of(files: Any) -> list[Any]:
    return [file for file in files if file.path.startswith("outputs/")]


@pytest.mark.thorough
def test_full_disk_leaves_no_half_file(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, count = os.replace, [0]

    def full(source: Any, to: Any) -> None:
        if str(tmp_path) in str(to):
            count[0] += 1
            if count[0] > 1500:
                raise OSError(28, "No space left on device", str(to))
        replace(source, to)

    files = run.files()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CommandError, match="No space") as caught:
        files.download("outputs", tmp_path)
    assert caught.value.code == "files.write"
    copied, there = outputs(tmp_path / "outputs"), outputs(Path(run.run.folder) / "outputs")
    assert len(copied) == 1500 and copied.items() <= there.items()


@pytest.mark.thorough
@pytest.mark.parametrize("comes_back", [True, False])
def test_lost_machine_is_waited_for(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    read, calls = read_ahead.read_results, []

    async def lost(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2 or (len(calls) > 2 and not comes_back):
            raise TargetUnreachable("'local' does not answer.")
        return await read(*args)

    monkeypatch.setattr(read_ahead, "read_results", lost)
    monkeypatch.setattr("jupyter_amltrain.backends.transfer.RESUME_S", 60.0 if comes_back else 0.5)
    files = run.files()
    if comes_back:
        files.download("outputs", tmp_path)
        assert len(outputs(tmp_path / "outputs")) == len(files_of(files))
        return
    with pytest.raises(TargetUnreachable) as caught:
        files.download("outputs", tmp_path)
    copied = outputs(tmp_path / "outputs")
    assert 0 < len(copied) < COUNT and f"{len(files_of(files)) - len(copied):,} of " in str(caught.value)
    monkeypatch.setattr(read_ahead, "read_results", read)
    files.download("outputs", tmp_path)
    assert len(outputs(tmp_path / "outputs")) == len(files_of(files))


@pytest.mark.thorough
def test_progress_counts_files(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jupyter_amltrain.backends.transfer.NOTICE_S", 0.0)
    monkeypatch.setattr("jupyter_amltrain.output.progress_line.INTERVAL_S", 0.0)
    run.download("outputs", tmp_path)
    assert " of 2,50" in capsys.readouterr().out


@pytest.mark.thorough
def test_memory_of_a_large_download_is_bounded(run: Any, tmp_path: Path) -> None:
    path = Path(run.run.folder) / "outputs" / "sparse.bin"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    import psutil

    files, process, highest, done = run.files(), psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            highest[0] = max(highest[0], process.memory_info().rss)

    before = process.memory_info().rss
    watching = threading.Thread(target=watch)
    watching.start()
    files.download("outputs", tmp_path)
    done.set()
    watching.join()
    assert (tmp_path / "outputs/sparse.bin").stat().st_size == 3 << 30
    assert highest[0] - before < 150 << 20
    assert not list(tmp_path.rglob("*.part"))
