"""A pipeline of cells as a file of ``az ml``, which runs as the cells do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.pipelines.functions import request_of, step
from jupyter_amltrain.pipelines.saved_pipeline import save

from ..helpers import DEADLINE

MAKE = (
    "import os\nimport helper\nwords = helper.words()\nopen(os.environ['AML_OUTPUT_TABLE'] + '/t', 'w').write('text')\n"
)
TAKE = "print('has', words, open(table + '/t').read())\nsize = len(words) + more\n"


def request(**more: Any) -> Any:
    Path("helper.py").write_text("def words():\n    return [1, {'a': (2, 3)}]\n")
    steps = [
        step("make", MAKE, out=["words"], outputs=["table"], gpus=0),
        step("take", TAKE, needs=["words", "table"], params={"more": 1}, out=["size"], gpus=0, **more),
    ]
    return request_of(steps, reuse=True, only="", first="", name="saved", experiment="e", params={"more": 2})


def test_file_has_the_graph_and_the_code(api: Any) -> None:
    assert "pipeline.yml" in save(request(), "pipeline.yml")
    doc = yaml.safe_load(Path("pipeline.yml").read_text())
    take = doc["jobs"]["take"]
    assert doc["type"] == "pipeline" and doc["display_name"] == "saved"
    assert take["inputs"]["words"] == "${{parent.jobs.make.outputs.words}}"
    assert take["inputs"]["table"]["path"] == "${{parent.jobs.make.outputs.table}}"
    assert Path(take["code"], "script.py").exists() and Path(doc["jobs"]["make"]["code"], "helper.py").exists()
    assert "already" in save(request(), "pipeline.yml")
    with pytest.raises(CommandError, match="yml"):
        save(request(), "pipeline.txt")
    with pytest.raises(CommandError, match="--map"):
        save(request(map="*.py"), "other.yml")


@pytest.mark.thorough
def test_file_runs_here_as_the_cells_do(api: Any) -> None:
    save(request(), "pipeline.yml")
    found = run("pipeline", ["submit", "pipeline.yml", "--target", "local"], Context("%aml_pipeline")).value
    found.wait(DEADLINE)
    (take,) = (child for child in found.children() if child.name == "take")
    assert "has [1, {'a': (2, 3)}] text" in api.attach(take.handle).logs()
