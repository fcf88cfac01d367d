"""Pipelines of cells on the emulated Azure: one pipeline job of the service, or jobs of a driver here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.pipelines.functions import step
from tests.azure import yaml_files
from tests.azure.conftest import Azure
from tests.azure.connected_api import lab
from tests.helpers import DEADLINE

pytestmark = pytest.mark.thorough

MAKE = "import os\nwords = ['a', 'b']\nopen(os.path.join(os.environ['AML_OUTPUT_TABLE'], 't.txt'), 'w').write('text')\n"
TAKE = "import os\nprint('has', words, open(os.path.join(table, 't.txt')).read())\nsize = len(words)\n"


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("pipelines")) as module:
        yield module


def steps() -> list[Any]:
    return [
        step("make", MAKE, out=["words"], outputs=["table"]),
        step("take", TAKE, needs=["words", "table"], out=["size"]),
    ]


def test_cells_are_one_pipeline_job_of_the_service(api: Any) -> None:
    found = api.pipeline(*steps(), target="cpu", name="cells").wait(DEADLINE)
    assert found.handle.startswith("cpu/") and found.spec.job_type == "pipeline"
    assert [(one.name, one.state) for one in found.children()] == [("make", "completed"), ("take", "completed")]
    assert "has ['a', 'b'] text" in found.logs(step="take")
    graph = found.record().graph
    assert [(node.title, node.state) for node in graph.nodes] == [("make", "completed"), ("take", "completed")]
    assert len(graph.edges) == 1 and "longest way make -> take" in graph.sentence


def test_file_is_sent_as_it_is(api: Any, tmp_path: Path) -> None:
    folder = yaml_files.write(tmp_path, "pipeline")
    words = ["submit", f"{folder}/pipeline.yml", "--target", "cpu", "--param", "word=there"]
    before = len(api.runs())
    assert "reads" in run("pipeline", [*words, "--dry-run"], Context("%aml_pipeline")).text
    assert len(api.runs()) == before
    found = run("pipeline", words, Context("%aml_pipeline")).value.wait(DEADLINE)
    assert found.handle.startswith("cpu/") and found.logs(step="reads") == "there\n"
    with pytest.raises(CommandError, match="--only"):
        run("pipeline", [*words, "--only", "reads"], Context("%aml_pipeline"))


def test_steps_here_and_on_azure_are_driven_from_here(api: Any) -> None:
    make, take = steps()
    here = step("make", MAKE, out=["words"], outputs=["table"], target="local", gpus=0)
    found = api.pipeline(here, take, target="cpu", name="mixed").wait(DEADLINE)
    children = {child.name: child.handle for child in found.children()}
    assert children["make"].startswith("local/") and children["take"].startswith("cpu/")
    assert found.result("size") == 2


TRIGGER = """
import sys
from azure.ai.ml import MLClient
from azure.identity import DefaultAzureCredential
client = MLClient(DefaultAzureCredential(), *sys.argv[1:4], enable_telemetry=False)
print(client.schedules.trigger("weekly").job_name)
"""


def test_service_runs_a_file_at_fixed_times(api: Any, azure: Azure, tmp_path: Path) -> None:
    folder = yaml_files.write(tmp_path, "pipeline")
    words = ["schedule", f"{folder}/pipeline.yml", "--target", "cpu", "--name", "weekly"]
    made = run("pipeline", [*words, "--cron", "0 6 * * 1"], Context("%aml_pipeline"))
    assert "0 6 * * 1 (UTC)" in made.text and "--remove weekly" in made.text
    changed = run("pipeline", [*words, "--cron", "0 7 * * 1"], Context("%aml_pipeline"))
    listed = run("pipeline", ["schedule", "--target", "cpu"], Context("%aml_pipeline"))
    assert listed.data == [changed.data] and listed.data[0]["when"] == "0 7 * * 1"

    where = [azure.subscription, azure.resource_group, azure.workspace]
    command = [sys.executable, "-W", "ignore", "-c", TRIGGER, *where]
    job = subprocess.run(command, env={**os.environ, **azure.environ}, capture_output=True, text=True, check=True)
    found = api.attach(f"cpu/{job.stdout.split()[-1]}").wait(DEADLINE)
    assert [child.state for child in found.children()] == ["completed"] * 2

    removed = run("pipeline", ["schedule", "--remove", "weekly", "--target", "cpu"], Context("%aml_pipeline"))
    assert "weekly" in removed.text
    with pytest.raises(CommandError, match="weekly"):
        run("pipeline", ["schedule", "--remove", "weekly", "--target", "cpu"], Context("%aml_pipeline"))
