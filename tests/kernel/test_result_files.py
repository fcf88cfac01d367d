"""Files that a run has written: listed, read, registered as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.result_files import read_result
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.schema.run_file import RunFile, models_of

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


def test_model_among_files_is_in_record(run: Any) -> None:
    assert run.record().models == ("outputs/model.joblib",)


def test_register_takes_only_file_that_is_a_model(api: Any, run: Any) -> None:
    assert api.register_model("joblibs", run=run.handle).version == "1"


def test_register_without_model_names_files(api: Any) -> None:
    code = "import os\nopen(os.environ['AML_OUTPUT_DIR'] + '/table.csv', 'w').write('a')"
    other = api.submit(code, name="other", gpus=0).wait(60)
    with pytest.raises(CommandError, match=r"outputs/table\.csv"):
        api.register_model("joblibs", run=other.handle)


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
