"""Files that a run has written: listed, read, registered as a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.result_files import read_result, result_files
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.output.file_list import FileList, ResultFile, files_text
from jupyter_amltrain.schema.run import DAMAGED, RunHandle, RunState
from jupyter_amltrain.schema.run_file import RunFile, models_of

from ..helpers import until

CODE = """
import os, pathlib
folder = pathlib.Path(os.environ["AML_OUTPUT_DIR"])
(folder / "model.joblib").write_bytes(b"0123456789" * 200_000)
(folder / "notes").mkdir()
(folder / "notes" / "ü.txt").write_text("hello")
"""


@pytest.fixture
def run(api: Any) -> Any:
    return api.submit(CODE, name="files", gpus=0).wait(60)


def test_files_of_run_are_listed_read_and_saved(run: Any, tmp_path: Path) -> None:
    files = run.files()
    assert [file.path for file in files[:2]] == ["outputs/model.joblib", "outputs/notes/ü.txt"]
    assert "log/agent.txt" not in [file.path for file in files]
    model = files["outputs/model.joblib"]
    assert model.size == 2_000_000 and model.read() == b"0123456789" * 200_000
    assert model.save(tmp_path).read_bytes() == model.read()
    with pytest.raises(CommandError):
        model.save(tmp_path)
    frame = files.to_frame()
    assert list(frame.columns) == ["path", "size", "modified"] and len(frame) == len(files)
    assert "outputs/notes/ü.txt" in files._repr_html_()
    with pytest.raises(KeyError):
        files["outputs/nothing"]


def test_file_that_cell_leaves_in_its_folder_is_listed_and_stays_there(api: Any, tmp_path: Path) -> None:
    here = Path("left.csv").absolute()
    run = api.submit("open('left.csv', 'w').write('a,b')", gpus=0).wait(60)
    assert run.files()["work/left.csv"].read() == b"a,b" and here.read_text() == "a,b"
    assert run.download("work/left.csv", tmp_path / "to").read_text() == "a,b"
    here.unlink()
    assert "work/left.csv" not in [file.path for file in run.files()]


def test_folder_and_file_are_downloaded_once(run: Any, tmp_path: Path) -> None:
    to = tmp_path / "new"
    assert run.download("outputs/notes", to) == to / "notes" and (to / "notes" / "ü.txt").read_text() == "hello"
    assert run.download("outputs/model.joblib", to).stat().st_size == 2_000_000
    before = (to / "model.joblib").stat()
    assert run.download("outputs/", to) == to / "outputs" and (to / "outputs" / "notes" / "ü.txt").exists()
    run.download("outputs/model.joblib", to)  # it is there
    assert (to / "model.joblib").stat() == before
    run.download(to=to / "all")
    assert {path.parent.name for path in (to / "all").rglob("*") if path.is_file()} >= {"outputs", "notes", "log"}


def test_download_overwrites_nothing(run: Any, tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "model.joblib").write_text("mine")
    with pytest.raises(CommandError, match=r"model\.joblib") as caught:
        run.download("outputs", tmp_path)
    assert caught.value.code == "files.exists" and len(list((tmp_path / "outputs").iterdir())) == 1
    with pytest.raises(CommandError) as caught:
        run.download("outputs/modl.joblib", tmp_path)
    assert caught.value.code == "files.path" and "outputs/model.joblib" in caught.value.hint


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["name", "link"])
def test_download_stays_in_its_folder(run: Any, tmp_path: Path, kind: str) -> None:
    files, to = run.files()[:1], tmp_path / "to"
    to.mkdir()
    if kind == "link":
        (to / "outputs").symlink_to(tmp_path)
    else:
        files[0].path = "outputs/../../model.joblib"
    with pytest.raises(CommandError) as caught:
        files.download("outputs", to)
    assert caught.value.code == "files.exists" and not (tmp_path / "model.joblib").exists()


def test_file_that_grows_is_copied_as_it_was_listed(api: Any, tmp_path: Path) -> None:
    code = (
        "import os, time\nwith open(os.environ['AML_OUTPUT_DIR'] + '/rows.csv', 'w') as file:\n"
        "    for row in range(100_000):\n        print(row, file=file, flush=True)\n        time.sleep(0.001)\n"
    )
    run = api.submit(code, name="grows", gpus=0)
    (file,) = until(lambda: [file for file in run.files() if file.path == "outputs/rows.csv" and file.size > 100])
    until(lambda: run.files()["outputs/rows.csv"].size > file.size)
    data = file.read()
    assert len(data) == file.size and data.startswith(b"0\n1\n") and file.save(tmp_path).read_bytes() == data
    run.cancel()


def test_file_that_was_replaced_is_one_line(run: Any, tmp_path: Path) -> None:
    file = run.files()["outputs/model.joblib"]
    (Path(run.run.folder) / file.path).write_bytes(b"short")
    with pytest.raises(CommandError) as caught:
        file.save(tmp_path / "copy")
    assert caught.value.code == "files.changed" and not (tmp_path / "copy").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [2_000_000, 3_000_000])
def test_file_that_is_replaced_during_the_copy_is_not_mixed(run: Any, tmp_path: Path, size: int) -> None:
    file = run.files()["outputs/model.joblib"]
    path, copy = Path(run.run.folder) / file.path, tmp_path / "copy"
    blocks = file._blocks

    def replaced(*args: Any) -> Any:
        for block in blocks(*args):
            yield block
            if path.read_bytes()[:1] != b"x":
                path.write_bytes(b"x" * size)

    file._blocks = replaced
    with pytest.raises(CommandError) as caught:
        file.save(copy)
    assert caught.value.code == "files.changed" and not list(tmp_path.glob("*copy*"))


def test_model_among_files_is_in_record(run: Any) -> None:
    assert run.record().models == ("outputs/model.joblib",)


@pytest.mark.thorough
def test_register_takes_only_file_that_is_a_model(api: Any, run: Any) -> None:
    assert api.register_model("joblibs", run=run.handle).version == "1"


@pytest.mark.thorough
def test_register_without_model_names_files(api: Any) -> None:
    code = "import os\nopen(os.environ['AML_OUTPUT_DIR'] + '/table.csv', 'w').write('a')"
    other = api.submit(code, name="other", gpus=0).wait(60)
    with pytest.raises(CommandError, match=r"outputs/table\.csv"):
        api.register_model("joblibs", run=other.handle)


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["job.json", "outputs/../job.json", "/etc/passwd", "source/x.py", "log/agent.txt", ""])
def test_other_files_of_run_folder_are_not_read(run: Any, path: str) -> None:
    own, known = controller(), run.run

    async def read() -> bytes:
        return await read_result(own.backend("local"), known, path, 0, 10)

    with pytest.raises(CommandError) as caught:
        own.loop.call(read())
    assert caught.value.code == "files.path"


def test_models_are_folders_with_mlmodel_and_files_of_outputs() -> None:
    paths = ["outputs/m/MLmodel", "outputs/m/model.pkl", "outputs/net.pt", "artifacts/runs/1/artifacts/x.pt", "log/a"]
    assert models_of([RunFile(path=path, size=1) for path in paths]) == ["outputs/m", "outputs/net.pt"]


@pytest.mark.thorough
def test_damaged_run_gives_out_the_files_that_are_there(run: Any) -> None:
    own = controller()
    status = msgspec.structs.replace(run.run.status, reason=DAMAGED, state=RunState.LOST)
    damaged = msgspec.structs.replace(run.run, status=status)
    assert damaged.damaged

    async def found() -> tuple[list[RunFile], bytes]:
        backend = own.backend("local")
        return await result_files(backend, damaged), await read_result(backend, damaged, "outputs/notes/ü.txt", 0, 9)

    files, content = own.loop.call(found(), 60)
    assert "outputs/notes/ü.txt" in [file.path for file in files] and content == b"hello"


def test_names_that_are_not_utf8_are_shown() -> None:
    name = os.fsdecode(b"outputs/caf\xe9 \xff\n.bin")
    files = FileList([ResultFile(RunHandle("local/x"), RunFile(path=name, size=2, modified=1.0))])
    for shown in (files_text(files), files._repr_html_()):
        assert "outputs/caf? ??.bin" in shown.encode().decode()


def test_long_list_sums_up_folders() -> None:
    names = [f"outputs/a/{i:05}.bin" for i in range(150)] + [f"outputs/{i % 30:02}/{i:05}.bin" for i in range(30_000)]
    files = FileList(ResultFile(RunHandle("local/x"), RunFile(path=name, size=2, modified=1.0)) for name in names)
    lines = files_text(files).splitlines()
    assert len(lines) < 240 and "outputs/a/00149.bin" in lines[150]
    assert "outputs/01/: " in files_text(files) and "10 other folders" in lines[-2]
    assert "all 30,150 files" in lines[-1] and "58.9 KiB" in lines[-1]
    assert files._repr_html_().count("<tr>") == len(lines)
    assert files_text(files[:200]).count("\n") == 200
