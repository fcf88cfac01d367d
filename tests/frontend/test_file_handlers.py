"""Operations on the files of runs, and the table of the runs of a cell."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.frontend import file_handlers
from jupyter_amltrain.frontend.file_handlers import GetCode, GetFile, GetFiles, RegisterModel
from jupyter_amltrain.frontend.run_handlers import GetGroup
from tests.frontend.handler_harness import HandlerHarness
from tests.helpers import api_of, until

CODE = """import os
with open(os.environ["AML_OUTPUT_DIR"] + "/model.joblib", "wb") as file:
    file.write(b"x" * 3_000_000)
lr = {lr}
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[HandlerHarness]:
    with api_of(tmp_path) as api:
        yield HandlerHarness(api)


def test_file_is_read_in_parts(house: HandlerHarness) -> None:
    run = house.ended(CODE.format(lr=1), name="files")
    reply = house.ask(GetFiles(handle=run.handle))
    assert reply.files[0].path == "outputs/model.joblib" and reply.models == ("outputs/model.joblib",)
    data = b""
    while part := base64.b64decode(
        house.ask(GetFile(handle=run.handle, path=reply.files[0].path, offset=len(data))).data
    ):
        assert len(part) <= file_handlers.MAX_PART_BYTES
        data += part
    assert data == b"x" * 3_000_000
    with pytest.raises(CommandError):
        house.ask(GetFile(handle=run.handle, path="job.json"))


@pytest.mark.thorough
def test_code_of_runs_is_compared(house: HandlerHarness) -> None:
    one, two = (house.ended(CODE.format(lr=lr), name="code") for lr in (1, 2))
    same = house.ended(CODE.format(lr=1), name="code")
    diffs = house.ask(GetCode(handles=(one.handle, two.handle, same.handle))).diffs
    assert "-lr = 1" in diffs[two.handle] and "+lr = 2" in diffs[two.handle] and diffs[same.handle] == []
    assert house.ask(GetCode(handles=())).diffs == {}


@pytest.mark.thorough
def test_model_is_registered_or_refused(house: HandlerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    run = house.ended(CODE.format(lr=1), name="model")
    monkeypatch.setattr(file_handlers, "REGISTER_TIMEOUT_S", 120.0)
    assert "digits:1" in house.ask(RegisterModel(handle=run.handle, name="digits", path="outputs/model.joblib")).text
    with pytest.raises(AmlTrainError, match="model name"):
        house.ask(RegisterModel(handle=run.handle, name="a/b"))
    monkeypatch.setattr(file_handlers, "REGISTER_TIMEOUT_S", 0.0)
    assert house.ask(RegisterModel(handle=run.handle, name="digits")).text == ""
    models = house.controller.models
    until(lambda: len(house.controller.loop.call(models.list(str(Path.cwd())), 60)) == 2, "the second version")


def test_group_leaves_out_deleted_runs(house: HandlerHarness) -> None:
    one, two = (house.ended("x = 1", name="group", params={"lr": lr}) for lr in (1, 2))
    handles = (one.handle, "local/group-00000", two.handle)
    group = house.ask(GetGroup(handles=handles)).group
    assert [row.handle for row in group.rows] == [one.handle, two.handle] and group.done
    assert group.handles == handles and [row.values for row in group.rows] == [("1",), ("2",)]
    assert house.ask(GetGroup(handles=())).group.rows == ()
