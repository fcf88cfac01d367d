"""The same cell here and in Azure: the same bytes run, and a seeded run logs the same values."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.resubmit import repeated_spec
from tests.azure.conftest import Azure
from tests.azure.connected_api import lab, log, submit
from tests.helpers import DEADLINE

CELL = """\
import hashlib, pathlib, random
import mlflow

print(hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest(), flush=True)
random.seed(seed)
loss = 1.0
for step in range(5):
    loss *= random.uniform(0.5, 0.9)
    mlflow.log_metric("loss", loss, step=step)
"""


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("same")) as module:
        yield module


def test_same_cell_runs_locally_and_in_azure(api: Any) -> None:
    runs = {where: submit(f"--target {where} --param seed=7 --out loss", CELL) for where in ("local", "cpu")}
    for run in runs.values():
        run.wait(DEADLINE)
    here, there = runs["local"], runs["cpu"]
    script = Path(here.run.folder, "source", "script.py").read_bytes()
    sha256 = hashlib.sha256(script).hexdigest()
    assert log(here).splitlines()[0] == log(there).splitlines()[0] == sha256
    assert here.spec.source_sha256 == there.spec.source_sha256
    assert here.spec.script == there.spec.script == script.decode()
    curves = [[(step, value) for step, _, value in run.metrics()["loss"]] for run in (here, there)]
    assert curves[0] == curves[1] and [step for step, _ in curves[0]] == list(range(5))
    assert here.result("loss") == there.result("loss") == curves[0][-1][1]


@pytest.mark.thorough
def test_local_run_repeated_in_azure_gives_same_values(api: Any) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    identity = ("-c", "user.email=a@example.org", "-c", "user.name=a")
    subprocess.run(["git", *identity, "commit", "-qm", "first", "--allow-empty"], check=True)
    here = submit("--target local --param seed=7 --out loss", CELL).wait(DEADLINE)
    there = api.submit_spec(repeated_spec(here, {"seed": 8}, target="cpu"), target="cpu").wait(DEADLINE)
    again = api.submit_spec(repeated_spec(there, {"seed": 7}, target="local"), target="local").wait(DEADLINE)
    assert again.result("loss") == here.result("loss") != there.result("loss")
    found = there.provenance
    assert found["git"]["commit"] == here.provenance["git"]["commit"] and found["user"]
    assert found["packages"]["mlflow"] and found["machine"]["cpus"], found


@pytest.mark.thorough
def test_env_kernel_builds_packages_of_kernel(api: Any) -> None:
    run = submit("--target cpu --env kernel --param seed=7 --out loss", CELL).wait(DEADLINE)
    assert run.state == "completed", log(run)
    environment = run.spec.environment
    assert environment.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert environment.packages == (f"mlflow=={metadata.version('mlflow')}",)  # the rest is Python's own
    assert "environment's image" in log(run)
    again = submit("--target local --env kernel --param seed=7 --out loss", CELL).wait(DEADLINE)
    assert again.result("loss") == run.result("loss")


@pytest.mark.thorough
def test_azure_input_as_argument_is_path(api: Any, tmp_path: Path) -> None:
    """Of a cell and of a file."""
    place = "azureml://datastores/workspaceblobstore/paths/references"
    write = "import os\nopen(os.environ['AML_OUTPUT_TABLE'] + '/a.txt', 'w').write('7')"
    made = submit(f"--target cpu --output table={place}", write)
    assert made.wait(DEADLINE).state == "completed"
    line = f"--target cpu --input data={place} --output model --param data_dir='${{{{inputs.data}}}}'"
    cell = submit(f"{line} --out text", "import pathlib\ntext = pathlib.Path(data_dir, 'a.txt').read_text()")
    script = tmp_path / "train.py"
    script.write_text(
        "import pathlib, sys\nprint(sys.argv[1:])\nprint(pathlib.Path(sys.argv[2], 'a.txt').read_text())\n"
    )
    file = submit(f"{script} {line} -- '${{{{inputs.data}}}}/a.txt' '${{{{inputs.data}}}}'")
    assert cell.wait(DEADLINE).result("text") == "7", log(cell)
    assert file.wait(DEADLINE).state == "completed", log(file)
    arguments, text = log(file).splitlines()[-2:]
    first, second, flag, third = ast.literal_eval(arguments)
    assert text == "7" and flag == "--data_dir" and first == f"{second}/a.txt" and second == third
    assert "inputs" not in second
