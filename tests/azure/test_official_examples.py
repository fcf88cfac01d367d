"""Official examples of Azure ML (``tests/data/azureml-examples``) go through the sandbox by the product, unchanged."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_amltrain.errors import AmlTrainError
from tests.azure import official_examples
from tests.azure.conftest import ROOT, Azure
from tests.azure.connected_api import carry_out, lab, log, submit
from tests.azure.official_examples import EXAMPLES
from tests.azureml_emulator.test_jobs import Cloud
from tests.helpers import DEADLINE

#: Seconds in which all of them end, on two busy cores.
ALL = 10 * DEADLINE
JOBS = [name for name, one in EXAMPLES.items() if not one.refused]
#: The first test waits for all of them.
pytestmark = pytest.mark.timeout(5 * DEADLINE)


class Shop:
    """All examples, submitted; their runs by file."""

    def __init__(self, api: Any, azure: Azure, folder: Path) -> None:
        self.api, self.azure, self.folder = api, azure, folder
        self.runs: dict[str, Any] = {}
        self.sdk_failed: dict[str, str] = {}
        self.bodies: dict[tuple[str, str], Any] = {}

    def line(self, name: str) -> str:
        target = EXAMPLES[name].target
        return f"{self.folder / name}{f' --target {target}' if target else ''}"

    def read_wire(self) -> None:
        """Note every body that a PUT had, by the last parts of its path."""
        for one in self.azure.control("/wire"):
            found = re.search(r"/(jobs|codes|components)/([^/]+)(?:/versions/([^/]+))?$", one["path"])
            if one["method"] == "PUT" and found is not None:
                self.bodies[found[1], found[3] if found[1] == "components" else found[2]] = json.loads(one["body"])

    def job(self, name: str) -> Any:
        """The body of a job, with what it names by an id put in its place."""
        return self._resolved(self.bodies["jobs", name]["properties"])

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._resolved(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._resolved(inner) for inner in value]
        if not isinstance(value, str):
            return value
        if (code := re.search(r"/codes/([^/]+)/versions/1$", value)) is not None:
            return f"code {self.bodies['codes', code[1]]['properties']['properties']['hash_sha256']}"
        if (component := re.search(r"/components/azureml_anonymous/versions/([^/]+)$", value)) is not None:
            spec = self.bodies["components", component[1]]["properties"]["componentSpec"]
            return self._resolved({key: inner for key, inner in spec.items() if key != "version"})
        return value


def sdk_name(name: str) -> str:
    return "sdk-" + re.sub(r"\W+", "-", name)


@pytest.fixture(scope="module")
def shop(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("examples")
    official_examples.prepare(folder / "files", folder / "public", folder / "programs")
    with lab(azure, folder) as api:
        azure.control("/public", folder=str(folder / "public"))
        azure.control("/programs", folder=str(folder / "programs"))
        azure.control("/quota", standardNDSv2Family=80, TotalDedicatedCores=400, standardDSv2Family=200)
        carry_out("create cpu-cluster --kind amlcompute --size Standard_DS2_v2 --max-nodes 8")
        carry_out("create gpu-cluster --kind amlcompute --size Standard_NC4as_T4_v3 --max-nodes 4")
        carry_out("create gpu-v100-cluster --kind amlcompute --size Standard_ND40rs_v2 --max-nodes 2")
        data(azure, folder / "public")
        made = Shop(api, azure, folder / "files")
        azure.control("/fault", match=r"^PUT management.*/jobs/sdk-", times=len(JOBS), status=418, body={"error": {}})
        sdk = subprocess.Popen(
            [sys.executable, "-m", "tests.azure.sdk_bodies", azure.subscription, azure.resource_group, azure.workspace]
            + [f"{sdk_name(name)}={made.folder / name}" for name in JOBS],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONWARNINGS": "ignore", **azure.environ},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            for name in JOBS:
                made.runs[name] = submit(made.line(name))
            output, _ = sdk.communicate(timeout=ALL)
            made.sdk_failed = json.loads(output.splitlines()[-1])
            for run in made.runs.values():
                with contextlib.suppress(AmlTrainError):  # told by its own test
                    run.accepted(ALL)
            made.read_wire()
            yield made
        finally:
            sdk.kill()
            sdk.wait()
    azure.control("/reset")


def data(azure: Azure, public: Path) -> None:
    """Make what the examples expect in the workspace: a file in its datastore, and data assets over its folder."""
    cloud = Cloud(azure)
    store = cloud.arm("GET", "/datastores/workspaceblobstore").json()["properties"]["containerName"]
    made = azure.control("/sas", container=store, permission="rcw")
    csv = (public / "azuremlexamples.blob.core.windows.net/datasets/iris.csv").read_bytes()
    url = f"{made['url']}/{store}/example-data/iris.csv?{made['sas']}"
    assert cloud.session.put(url, csv, headers={"x-ms-blob-type": "BlockBlob", "Authorization": ""}).status_code == 201
    for name in ("local-folder-example", "sampledata", "cifar-10-example"):
        uri = "azureml://datastores/workspaceblobstore/paths/example-data/"
        body = {"properties": {"dataUri": uri, "dataType": "uri_folder"}}
        assert cloud.arm("PUT", f"/data/{name}/versions/1", body).status_code == 201


@pytest.mark.thorough
@pytest.mark.parametrize("name", JOBS)
def test_official_example_completes(shop: Shop, name: str) -> None:
    run = shop.runs[name].wait(ALL)
    assert EXAMPLES[name].says in log(run)


@pytest.mark.thorough
@pytest.mark.parametrize("name", JOBS)
def test_official_example_body_equals_sdk(shop: Shop, name: str) -> None:
    assert shop.sdk_failed.get(sdk_name(name)) is None
    run, doc = shop.runs[name].handle, yaml.safe_load((shop.folder / name).read_text())
    ours, theirs = shop.job(run.partition("/")[2]), shop.job(sdk_name(name))
    assert "\n".join(differences(ours, theirs, ours_alone(doc, ours["jobType"]))) == ""


def ours_alone(doc: Any, kind: str) -> tuple[str, ...]:
    """Fields in which the product differs from ``az ml``, as docs/commands.md says."""
    found = [r"tags\.amltrain\..*", r"properties\.amltrain\..*"]
    if "display_name" not in doc:
        found.append("displayName")  # the run's name
    if "experiment_name" not in doc:
        found.append("experimentName")  # `default`, and not the name of the working folder
    if "compute" not in doc:  # the target's
        found += (
            [r"settings\.default_compute"]
            if kind == "Pipeline"
            else ["computeId", r"resources\.(instanceType|properties)"]
        )
    return tuple(found)


def differences(ours: Any, theirs: Any, known: tuple[str, ...], at: str = "") -> list[str]:
    """Fields in which two bodies are not the same, but for those that are known."""
    if isinstance(ours or theirs, dict) and isinstance(ours or {}, dict) and isinstance(theirs or {}, dict):
        ours, theirs = ours or {}, theirs or {}
        found = []
        for key in sorted(ours.keys() | theirs.keys()):
            found += differences(ours.get(key), theirs.get(key), known, f"{at}.{key}" if at else key)
        return found
    if ours == theirs or any(re.fullmatch(pattern, at) for pattern in known):
        return []
    return [f"{at}: {ours!r}, the SDK sends {theirs!r}"]


@pytest.mark.thorough
def test_official_example_placeholder_is_refused(shop: Shop) -> None:
    for name, one in EXAMPLES.items():
        if one.refused:
            with pytest.raises(AmlTrainError, match=one.refused):
                submit(shop.line(name)).accepted(DEADLINE)


def test_official_examples_table_is_current() -> None:
    assert official_examples.files() == sorted(EXAMPLES)
    assert official_examples.TABLE.read_text(encoding="utf-8") == official_examples.table()
