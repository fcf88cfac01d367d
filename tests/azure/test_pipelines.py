"""Pipelines of cells on the emulated Azure: one pipeline job of the service, or jobs of a driver here."""

from __future__ import annotations

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


def test_file_is_sent_as_it_is(api: Any, tmp_path: Path) -> None:
    folder = yaml_files.write(tmp_path, "pipeline")
    words = ["submit", f"{folder}/pipeline.yml", "--target", "cpu", "--param", "word=there"]
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
