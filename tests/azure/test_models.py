"""Models of a workspace: registered from jobs that ran, listed, fetched; the same lines as on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.azure.workspaces import WorkspaceRef
from jupyter_amltrain.commands.registry import Context
from jupyter_amltrain.commands.registry import run as run_command
from jupyter_amltrain.errors import CommandError, UnknownModel

from .conftest import Azure

pytestmark = pytest.mark.thorough  # the SDK's import alone takes seconds

CODE = """
import os, pathlib
place = pathlib.Path(os.environ["AML_OUTPUT_MODEL"])
(place / "weights.bin").write_bytes(b"12345")
logged = pathlib.Path("outputs/net")
logged.mkdir(parents=True)
(logged / "MLmodel").write_text("flavors: {}")
(logged / "sub").mkdir()
(logged / "sub" / "x.txt").write_text("x")
"""


@pytest.fixture
def workspace(api: Any, azure_env: Azure, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AMLTRAIN_AZURE_BACKOFF", "0.02")
    place = WorkspaceRef(**azure_env.where)
    api.connect(place)
    api.create_target("cpus", "amlcompute", size="Standard_DS3_v2", max_nodes=1, confirmed=True)
    return azure_env.workspace


def line(text: str) -> str:
    return run_command("model", shlex.split(text), Context(prog="%aml_model")).text


def test_model_download_line_works_from_any_target(api: Any, workspace: str, tmp_path: Path) -> None:
    image = "AzureML-sklearn-1.5@latest"
    there = api.submit(CODE, name="there", target="cpus", environment=image, outputs=["model"], gpus=0)
    here = api.submit(CODE, name="here", target="local", outputs=["model"], gpus=0)
    for run, other in ((there.wait(120), "local"), (here.wait(120), "cpus")):
        api.use(other)
        _, _, download = line(f"register digits --run {run.handle} --path outputs/model").rpartition("%aml_model ")
        assert download.startswith("download digits:1")
        assert "Downloaded digits:1 to" in line(f"{download} --to {tmp_path / run.spec.name}")
        assert (tmp_path / run.spec.name / "weights.bin").read_bytes() == b"12345"


def test_azure_model_is_registered_listed_and_downloaded(api: Any, workspace: str, tmp_path: Path) -> None:
    run = api.submit(
        CODE, name="train", target="cpus", environment="AzureML-sklearn-1.5@latest", outputs=["model"], gpus=0
    ).wait(120)
    assert run.state == "completed", run.logs()
    message = line(f"register digits --run {run.handle} --tag stage=trial --description first")
    assert message.startswith(f"Registered digits:1 from {run.handle}.")
    row = api.register_model("net", run=run.handle, path="outputs/net")
    assert (row.version, row.type) == ("1", "mlflow_model")
    assert api.register_model("digits", run=run.handle, path="outputs/model").version == "2"
    rows = api.models(workspace=workspace)
    assert [(r.name, r.version) for r in rows] == [("digits", "2"), ("digits", "1"), ("net", "1")]
    assert rows[1].tags["stage"] == "trial" and rows[1].description == "first" and rows[1].run == run.run_id
    assert api.models() == []  # local is in use: this folder's own
    fetched = api.download_model("net", to=str(tmp_path / "net"), workspace=workspace)
    assert (fetched.files, fetched.version) == (2, "1")
    assert (tmp_path / "net" / "MLmodel").is_file() and (tmp_path / "net" / "sub" / "x.txt").read_text() == "x"
    assert "Downloaded digits:1 to" in line(f"download digits:1 --to {tmp_path / 'one'} --workspace {workspace}")
    assert (tmp_path / "one" / "weights.bin").read_bytes() == b"12345"
    for text, message in {
        f"register a --run {run.handle} --path outputs/other": "outputs/other",
        f"register a --run {run.handle} --path outputs/net/sub --type mlflow_model": "file MLmodel is missing",
        f"download digits --to {tmp_path / 'one'} --workspace {workspace}": "not empty",
    }.items():
        with pytest.raises(CommandError, match=message):
            line(text)
    with pytest.raises(UnknownModel, match="Did you mean digits"):
        line(f"download digit --workspace {workspace} --to {tmp_path / 'two'}")
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]
