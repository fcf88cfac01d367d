"""Kernels that die in the middle of Azure's work: another one finds the run, whole; and no secret is anywhere."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.notebook_session import QUICK, SECRETS, SIZE
from tests.helpers import state_root, until
from tests.ipykernel.harness import Kernel, kernel

pytestmark = pytest.mark.thorough

LINES = 40
CELL = f"""%%aml_submit --name {{name}} --target cpu --out total
# {{name}}: code of its own, or nothing would be uploaded
import mlflow, time
total = 0
for i in range({LINES}):
    total += i
    print("line", i, "x" * (i % 50), flush=True)
    if i % 4 == 0:
        mlflow.log_metric("total", total, step=i)
    time.sleep(0.05)
"""
ATTACH_SCRIPT = """
import json, jupyter_amltrain as aml
run = aml.attach({which!r})
run.wait(100)
print("FOUND" + json.dumps(dict(
    handle=run.handle, state=run.state, log=open(run.log_path).read(), outputs=run.run.outputs,
    metric=[[step, value] for step, _, value in run.metrics().get("total", [])],
    seq=run.telemetry()["seq"].tolist())))
"""


class Place:
    """Environment of kernels that share a state root and one emulated workspace."""

    def __init__(self, azure: Azure, home: Path, environ: dict[str, str], folder: Path) -> None:
        self.azure, self.home, self.environ, self.folder = azure, home, environ, folder
        self.outputs: list[str] = []

    def run(self, live: Kernel, code: str) -> str:
        cell = live.run(code)
        self.outputs += [cell.stdout, cell.stderr, json.dumps(cell.displays, default=str)]
        return cell.stdout

    def jobs(self, name: str) -> list[str]:
        """Jobs that the service was given under a name."""
        paths = [
            w["path"] for w in self.azure.control("/wire") if w["method"] == "PUT" and w["route"] and w["status"] == 201
        ]
        return [p.rpartition("/")[2] for p in paths if f"/jobs/{name}-" in p]

    def look(self, which: str) -> dict[str, Any]:
        """What another kernel, in another folder, finds."""
        with kernel(self.environ, self.folder / "elsewhere") as other:
            text = self.run(other, ATTACH_SCRIPT.format(which=which))
        found: dict[str, Any] = json.loads(text.partition("FOUND")[2])
        return found


@pytest.fixture(scope="module")
def there(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("kernels")
    azure.control("/reset")
    azure.control("/switch", scale_seconds=0.1, create_seconds=0.05, job_seconds=0.02)
    with state_root(folder, **{**azure.environ, **QUICK}) as home:
        (folder / "elsewhere").mkdir()
        environ = {
            **os.environ,
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        }
        made = Place(azure, home, environ, folder)
        with kernel(environ, folder / "work") as first:
            made.run(first, "%load_ext jupyter_amltrain")
            where = f"--subscription {azure.subscription} --resource-group {azure.resource_group}"
            made.run(first, f"%aml_compute connect {where} --workspace {azure.workspace} --name lab")
            made.run(first, f"%aml_compute create cpu --kind amlcompute --size {SIZE} --max-nodes 4 --yes --wait")
        yield made


def whole(found: dict[str, Any]) -> None:
    assert found["state"] == "completed" and found["outputs"] == {"total": sum(range(LINES))}
    assert found["log"] == "".join(f"line {i} {'x' * (i % 50)}\n" for i in range(LINES))
    assert found["metric"] == [[i, sum(range(i + 1))] for i in range(0, LINES, 4)]
    assert found["seq"] == list(range(len(found["seq"]))) and found["seq"]


def dies_at(there: Place, name: str, **more: str) -> None:
    with kernel(there.environ, there.folder / "work", **more) as live:
        there.run(live, "%load_ext jupyter_amltrain")
        live.submit_and_die(CELL.format(name=name))


def test_kernel_death_after_submit_keeps_run(there: Place) -> None:
    dies_at(there, "after", AMLTRAIN_FAILPOINT="kernel_after_submit")
    (name,) = there.jobs("after")
    whole(there.look(f"cpu/{name}"))


def test_kernel_death_before_submit_leaves_no_job(there: Place) -> None:
    dies_at(there, "before", AMLTRAIN_FAILPOINT="kernel_before_submit")
    assert there.jobs("before") == []


def test_kernel_death_during_upload_leaves_no_run(there: Place) -> None:
    """The process that talks to Azure ends with its kernel, whatever it was doing."""
    with kernel(there.environ, there.folder / "work", AMLTRAIN_FAILPOINT="azure_during_upload:sleep=60") as live:
        there.run(live, "%load_ext jupyter_amltrain")
        since = max((w["n"] for w in there.azure.control("/wire")), default=0)
        live.client.execute(CELL.format(name="upload"))
        until(lambda: [w for w in there.azure.control("/wire", since=since) if w["method"] == "PUT"])
        live.kill()
    assert there.jobs("upload") == []
    assert all(row["name"] == "cpu" for row in there.azure.control("/billing"))


def test_kernel_death_while_following_keeps_run(there: Place) -> None:
    with kernel(there.environ, there.folder / "work") as live:
        there.run(live, "%load_ext jupyter_amltrain")
        there.run(live, CELL.format(name="follow"))
        live.client.execute("%aml_runs wait last")
        folder = there.home / "azure" / "lab"
        until(lambda: any(p.stat().st_size for p in folder.glob("follow-*/log/rank-0.txt")))
        os.kill(live.pid, signal.SIGKILL)
    (name,) = there.jobs("follow")
    whole(there.look(f"cpu/{name}"))
    whole(there.look(name))


def test_notebook_errors_are_one_line(there: Place) -> None:
    """As one: every output of a cell that failed, with the errors' own text, is one line without a secret."""
    with kernel(there.environ, there.folder / "work") as live:
        there.run(live, "%load_ext jupyter_amltrain")
        for fault in ({"status": 401}, {"status": 403}, {"status": 500}, {"cut": 0}):
            there.azure.control("/fault", match=r"(PUT|GET) management\S+/(jobs|codes)/", times=10**6, **fault)
            cell = live.run(f"%%aml_submit --name refused --target cpu\nprint({json.dumps(fault)!r})", check=False)
            there.azure.control("/faults", clear=True)
            assert cell.status == "error" and cell.error is not None
            assert len(cell.error["traceback"]) == 1 and "\n" not in cell.error["traceback"][0], cell.error
            there.outputs += [json.dumps(cell.error), cell.stdout, cell.stderr]
    assert there.jobs("refused") == []


def test_kernel_faults_leak_no_secret(there: Place) -> None:
    """After all that: in what kernels said, in any file of the state root, in the bodies of requests."""
    secret = there.environ["AZURE_CLIENT_SECRET"].encode()
    texts = {"kernels": "".join(there.outputs).encode()}
    texts |= {str(p): p.read_bytes() for p in there.home.rglob("*") if p.is_file()}
    for entry in there.azure.control("/wire"):
        if not re.search("/listSecrets$|/oauth2/", entry["path"]):
            texts[f"{entry['method']} {entry['path']}"] = str(entry["body"]).encode()
    assert any(name.endswith("logs/azure.txt") for name in texts)
    for where, data in texts.items():
        assert SECRETS.search(data) is None and secret not in data, where
