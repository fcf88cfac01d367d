from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context, run

from ..helpers import api_of, until


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("provenance")) as api:
        yield api


@pytest.mark.thorough
def test_run_has_provenance_of_submitter_and_agent(api: Any) -> None:
    work = Path.cwd()
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "x", "--allow-empty")):
        subprocess.run(["git", "-c", "user.email=a@example.org", "-c", "user.name=a", *words], check=True)
    (work / "train.py").write_text("import mlflow\nmlflow.log_metric('a', 1)\n")
    submitted = api.submit(str(work / "train.py"), gpus=0).wait(120)
    found = submitted.provenance
    assert found["user"] and found["git"]["commit"] and found["script_sha256"] and found["snapshot_sha256"]
    assert found["python"].startswith("3.") and found["packages"]["msgspec"] and found["machine"]["cpus"]
    assert json.loads(json.dumps(found)) == found
    text = run("runs", ["show", submitted.handle], Context(prog="%aml_runs")).text
    assert found["git"]["commit"][:8] in text and found["python"] in text


def test_short_run_has_packages(api: Any) -> None:
    assert api.submit("pass", gpus=0).wait(120).provenance["packages"]


@pytest.mark.thorough
def test_mlflow_record_has_git_commit(api: Any) -> None:
    import mlflow

    submitted = api.submit("import mlflow\nmlflow.log_metric('a', 1)\n", gpus=0).wait(120)
    until(lambda: submitted.run.tracking == "imported")
    client = mlflow.MlflowClient(f"sqlite:///{Path(submitted.run.project, '.amltrain', 'mlflow.db')}")
    tags = client.get_run(submitted.run.tracking_id).data.tags
    assert tags["mlflow.source.git.commit"] == submitted.provenance["git"]["commit"]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"packages": 3, "machine": [], "python": "x"}', b"\xff"])
def test_damaged_provenance_is_unknown(api: Any, content: bytes) -> None:
    submitted = api.submit("pass", gpus=0).wait(120)
    (Path(submitted.run.folder) / "provenance.json").write_bytes(content)
    assert submitted.provenance["packages"] == {} and submitted.provenance["user"]
