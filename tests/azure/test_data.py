"""Data of a workspace: uploaded once by content, for a job's input and as data assets."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.azure.workspaces import WorkspaceRef
from jupyter_amltrain.commands.registry import Context
from jupyter_amltrain.commands.registry import run as run_command
from jupyter_amltrain.errors import AmlTrainError, CommandError, SpecError
from tests.helpers import until

from .conftest import Azure

SHOW = """
import os, pathlib
path = pathlib.Path(os.environ["AML_INPUT_DATA"])
names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path.name]
print("read", names, sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file()))
"""
IMAGE = "AzureML-sklearn-1.5@latest"


@pytest.fixture
def workspace(api: Any, azure_env: Azure, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AMLTRAIN_AZURE_BACKOFF", "0.02")
    api.connect(WorkspaceRef(**azure_env.where))
    api.create_target("cpus", "amlcompute", size="Standard_DS3_v2", max_nodes=1, confirmed=True)
    return azure_env.workspace


@pytest.fixture
def folder() -> Path:
    """Data with a file that its ignore file excludes."""
    folder = Path("images")
    (folder / "train").mkdir(parents=True)
    for number in range(5):
        (folder / "train" / f"image {number}é.bin").write_bytes(random.Random(number).randbytes(1000))
    (folder / "labels.csv").write_text("a,b\n")
    (folder / "notes.secret").write_text("not for the workspace")
    (folder / ".amlignore").write_text("*.secret\n.amlignore\n")
    return folder


def line(text: str) -> str:
    return run_command("data", shlex.split(text), Context(prog="%aml_data")).text


def uploads(azure: Azure, from_entry: int = 0) -> list[tuple[str, int]]:
    """Paths and sizes of the files and blocks of data that were written, by the record of the wire."""
    wire: list[dict[str, Any]] = azure.control("/wire")[from_entry:]
    return [
        (entry["path"].partition("amltrain/data/")[2], entry["size"])
        for entry in wire
        if entry["method"] == "PUT" and "/amltrain/data/" in entry["path"] and entry["status"] == 201
    ]


def entries(azure: Azure) -> int:
    return len(azure.control("/wire"))


def submit(api: Any, path: str, **fields: Any) -> Any:
    return api.submit(SHOW, target="cpus", environment=IMAGE, inputs={"data": path}, gpus=0, **fields)


@pytest.mark.thorough
def test_uploaded_input_is_read_by_job_and_sent_once(api: Any, workspace: str, azure_env: Azure, folder: Path) -> None:
    first = submit(api, f"{folder},upload").wait(120)
    assert "read ['labels.csv', 'train/image 0é.bin'" in first.logs() and "5004" in first.logs()
    assert len(uploads(azure_env)) == 6 and not any("secret" in path for path, _ in uploads(azure_env))
    record = first.read_provenance().inputs["data"]
    assert record.path == str(folder.absolute()) and record.sha256
    seen = entries(azure_env)
    second = submit(api, f"{folder},upload").wait(120)
    assert "5004" in second.logs() and uploads(azure_env, seen) == []
    (folder / "labels.csv").write_text("a,b,c\n")
    assert "5006" in submit(api, f"{folder},upload").wait(120).logs()
    assert "read ['labels.csv'] 6" in submit(api, f"{folder}/labels.csv,upload").wait(120).logs()


def test_local_path_without_upload_is_refused_with_the_word(api: Any, workspace: str, folder: Path) -> None:
    with pytest.raises(CommandError, match=r"images,upload"):
        submit(api, str(folder))
    with pytest.raises(CommandError, match="no such file"):
        submit(api, "missing,upload")
    with pytest.raises(CommandError, match="uri_folder"):
        submit(api, f"{folder},uri_file,upload")
    with pytest.raises(SpecError, match="upload"):
        submit(api, "azureml:digits:1,upload")
    with pytest.raises(CommandError, match="secret"):
        submit(api, "https://host/x.csv?sig=${SIG}")


def test_upload_is_data_on_this_machine_too(api: Any, home: Path, folder: Path) -> None:
    run = api.submit(SHOW, inputs={"data": f"{folder},upload"}, gpus=0).wait(60)
    assert "labels.csv" in run.logs()


def test_dry_run_names_the_upload_and_sends_nothing(api: Any, workspace: str, azure_env: Azure, folder: Path) -> None:
    spec = submit_spec(api, folder)
    plan = api.plan_spec(spec, target="cpus")
    assert plan.request["properties"]["inputs"]["data"]["uri"] == f"(upload of {folder.absolute()})"
    assert uploads(azure_env) == []


def submit_spec(api: Any, folder: Path) -> Any:
    from jupyter_amltrain.jobs.flag_values import input_of
    from jupyter_amltrain.schema.job import JobSpec

    inputs = {"data": input_of(f"{folder},upload")}
    return JobSpec(name="x", script=SHOW, script_name="x.py", notebook_dir=str(Path.cwd()), inputs=inputs)


@pytest.mark.thorough
def test_data_is_uploaded_listed_and_shown(api: Any, workspace: str, azure_env: Azure, folder: Path) -> None:
    assert "No data yet" in line("list")
    text = line(f"upload images {folder} --tag stage=raw --description first")
    assert text.startswith("Registered images:1 (6 files") and "azureml:images:1" in text
    seen = entries(azure_env)
    assert line(f"upload images {folder} --wait").startswith("Unchanged: images:1") and uploads(azure_env, seen) == []
    (folder / "labels.csv").write_text("x\n")
    assert line(f"upload images {folder}").startswith("Registered images:2")
    assert line(f"upload table {folder}/labels.csv --version v-1").startswith("Registered table:v-1 (1 file")
    rows = api.data_assets()
    assert [(row.name, row.version, row.type) for row in rows] == [
        ("images", "2", "uri_folder"), ("images", "1", "uri_folder"), ("table", "v-1", "uri_file"),
    ]  # fmt: skip
    assert rows[1].tags == {"stage": "raw"} and rows[1].description == "first" and rows[1].created > 0
    assert rows[0].path.endswith("/images/") and rows[2].path.endswith("/labels.csv")
    assert re.match(r"azureml://subscriptions/[^/]+/resourcegroups/[^/]+/workspaces/[^/]+/datastores/", rows[0].path)
    shown = line("show images")
    assert "images:2" in shown and "uri_folder" in shown and "azureml:images:2" in shown
    assert "images:1" in line("show images:1") and "images:1" in line("list")
    assert not azure_env.control("/problems")["problems"]


@pytest.mark.thorough
def test_registered_data_is_read_by_job(api: Any, workspace: str, folder: Path) -> None:
    line(f"upload images {folder}")
    assert "5004" in submit(api, "azureml:images:1,uri_folder").wait(120).logs()


@pytest.mark.thorough
def test_version_with_other_content_is_refused(api: Any, workspace: str, folder: Path) -> None:
    line(f"upload images {folder} --version 1")
    assert line(f"upload images {folder} --version 1").startswith("Unchanged")
    (folder / "labels.csv").write_text("x\n")
    with pytest.raises(CommandError, match="version 2") as caught:
        line(f"upload images {folder} --version 1")
    assert caught.value.code == "data.exists"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("upload a.b images", "data.name"),
        ("upload images missing", "data.missing"),
        ("upload images images --type uri_file", "data.type"),
        ("upload images images --type csv", "data.type"),
        ("upload images images --version 'a b'", "data.version"),
        ("upload images empty", "data.empty"),
        ("show nothing", "data.unknown"),
        ("show imaged", "data.unknown"),
    ],
)
def test_invalid_line_is_one_sentence(api: Any, workspace: str, folder: Path, words: str, code: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(AmlTrainError) as caught:
        line(words)
    assert caught.value.code == code and "Traceback" not in str(caught.value)


def test_workspace_is_needed(api: Any, home: Path) -> None:
    with pytest.raises(CommandError, match="connect"):
        line("list")


@pytest.mark.thorough
def test_interrupted_upload_sends_only_the_rest(
    api: Any, workspace: str, azure_env: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("large")
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}.bin").write_bytes(random.Random(number).randbytes(20_000))
    azure_env.control("/fault", match=r"^PUT amltrainstore.*/large/07\.bin", status=403, times=2)
    with pytest.raises(AmlTrainError) as caught:
        line("upload large large")
    assert "sig=" not in str(caught.value)
    done = {path for path, _ in uploads(azure_env)}
    seen = entries(azure_env)
    line("upload large large")
    rest = {path for path, _ in uploads(azure_env, seen)}
    assert len(done | rest) == 12 and not done & rest and done


@pytest.mark.thorough
def test_large_file_continues_at_its_blocks(api: Any, workspace: str, azure_env: Azure) -> None:
    size = 40 << 20
    Path("large.bin").write_bytes(random.Random(3).randbytes(size))
    azure_env.control("/fault", match=r"^PUT .*comp=blocklist", status=403, times=2)
    with pytest.raises(AmlTrainError):
        line("upload large large.bin")
    seen = entries(azure_env)
    text = line("upload large large.bin")
    assert text.startswith("Registered large:1") and "nothing sent" in text
    assert sum(sent for _, sent in uploads(azure_env, seen)) < 1 << 16
    assert api.data_asset("large").sha256


@pytest.mark.thorough
def test_cancel_during_upload_submits_nothing(api: Any, workspace: str, azure_env: Azure) -> None:
    folder = Path("many")
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02d}.bin").write_bytes(random.Random(number).randbytes(10_000))
    azure_env.control("/fault", match=r"^PUT amltrainstore.*/amltrain/data/", delay=0.7, times=60)
    spec = submit_spec(api, folder)
    controller = api.controller()
    handle = controller.loop.call(controller.jobs.submit(spec, "cpus", {}, {}), 60)
    run = api.TrackedRun(handle)
    until(lambda: "uploading" in run.run.status.detail, "the progress of the upload")
    run.cancel()
    until(lambda: run.state == "canceled", "the end")
    assert not [e for e in azure_env.control("/wire") if e["method"] == "PUT" and "/jobs/" in e["path"]]
    azure_env.control("/faults", clear=True)
    assert len(uploads(azure_env)) < 60


@pytest.mark.thorough
@pytest.mark.parametrize("secret", ["key", "none"])
def test_storage_without_signature_takes_key_or_identity(
    api: Any, workspace: str, azure_env: Azure, folder: Path, secret: str
) -> None:
    azure_env.control("/switch", datastore_secret=secret)
    assert line(f"upload images {folder}").startswith("Registered images:1")
    assert len(uploads(azure_env)) == 6 and "Unchanged" in line(f"upload images {folder}")


@pytest.mark.thorough
def test_expired_signature_is_renewed_during_upload(api: Any, workspace: str, azure_env: Azure, folder: Path) -> None:
    body = "<Error><Code>AuthenticationFailed</Code><Message>Signature not valid</Message></Error>"
    azure_env.control("/fault", match=r"^PUT .*/amltrain/data/", status=403, body=body, times=1, after=2)
    assert line(f"upload images {folder}").startswith("Registered images:1")
