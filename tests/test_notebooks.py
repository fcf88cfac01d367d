"""The notebooks that we ship: each runs from top to bottom, and each is saved with what it gave."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError

from jupyter_amltrain.schema.group import GROUP_MIME
from jupyter_amltrain.schema.record import RECORD_MIME
from tests.azure.notebook_session import SECRETS
from tests.fakes import nvml
from tools import slurm_cluster
from tools.notebooks import FOLDER, executed, place_of

from .conftest import SETTINGS, end_all
from .tiers import thorough

#: Many times what they need, and less than the limit of the test (seconds).
DEADLINE = 840.0
#: Notebooks that are executed at the same time: they wait most of the time, and two cores carry no more.
AT_ONCE = 5
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
#: Left to a thorough tier: they train again, make a cluster, build environments, or start PyTorch several times.
SLOW = (
    "02_ssh_vm",
    "01_local_digits",
    "03_azure_cluster",
    "04_gpu_training",
    "05_run_configuration",
    "06_distributed",
    "10_slurm",
    "11_automl",
)
#: A path that tells whose machine it was.
FOREIGN = re.compile(r"(?<!\w)/(?:root|home|Users|tmp|work|workspaces?|builds?|mnt|private)/[\w.~-]")


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def may_fail(cell: Any) -> bool:
    return "raises-exception" in cell["metadata"].get("tags", ())


def outputs_are_right(notebook: Any) -> int:
    """Check what the cells gave; return the number of runs."""
    runs = 0
    for cell in code(notebook):
        source = text(cell["source"])
        errors = [output["evalue"] for output in cell["outputs"] if output["output_type"] == "error"]
        assert bool(errors) == may_fail(cell), (source, errors)
        for output in cell["outputs"]:
            assert output.get("name") != "stderr", (source, text(output["text"]))
            data = output.get("data", {})
            if RECORD_MIME in data:
                runs += 1
                state = "failed" if may_fail(cell) else "completed"
                assert next(iter(data)) == RECORD_MIME and data[RECORD_MIME]["state"] == state
                assert state in text(data["text/plain"])
        if source.startswith("%%aml_submit") and not errors:
            shown = GROUP_MIME if "--scaling" in source else RECORD_MIME
            assert any(shown in output.get("data", {}) for output in cell["outputs"])
    assert runs
    # Where our extension is absent, a picture tells of the run.
    assert any("image/png" in output.get("data", {}) for cell in code(notebook) for output in cell["outputs"])
    return runs


def stored_metrics(folder: Path) -> dict[str, dict[str, float]]:
    """The values that MLflow's ``get_run`` returns, by the handle of the run."""
    found: dict[str, dict[str, float]] = {}
    for path in folder.rglob("mlflow.db"):
        with contextlib.closing(sqlite3.connect(path)) as database:
            rows = database.execute(
                "SELECT t.value, m.key, CASE m.is_nan WHEN 1 THEN 'nan' ELSE m.value END FROM latest_metrics m"
                " JOIN tags t ON t.run_uuid = m.run_uuid AND t.key = 'amltrain.handle'"
            )
            for handle, name, value in rows:
                found.setdefault(handle, {})[name] = value
    return found


def metrics_are_those_of_mlflow(notebook: Any, folder: Path) -> None:
    """Each run shows the value of a metric that its record in MLflow has."""
    stored, compared = stored_metrics(folder), 0
    for cell in code(notebook):
        for output in cell["outputs"]:
            record = output.get("data", {}).get(RECORD_MIME, {})
            for name, series in record.get("metrics", {}).items() if record.get("handle") in stored else ():
                assert series["last"] == pytest.approx(stored[record["handle"]][name], rel=1e-12), (
                    record["handle"],
                    name,
                )
                compared += 1
    assert compared or not any(name.startswith("local/") for name in stored)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The home of each notebook."""
    return {name: tmp_path_factory.mktemp(name) for name in NOTEBOOKS}


@pytest.fixture(scope="module")
def executions(request: pytest.FixtureRequest, homes: dict[str, Path]) -> Iterator[dict[str, Future[Any]]]:
    """The notebooks of the chosen tests, executed at the same time, each in a home of its own."""
    chosen = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_notebook_runs_from_top_to_bottom
    }
    folders = {name: homes[name] for name in sorted(chosen)}

    def execute_once(name: str, folder: Path) -> Any:
        with contextlib.ExitStack() as stack:
            environ = {**SETTINGS, "AMLTRAIN_HOME": str(state_of(folder))}
            environ |= stack.enter_context(place_of(FOLDER / f"{name}.ipynb", folder))
            return executed(FOLDER / f"{name}.ipynb", folder, **environ)

    def execute(name: str, folder: Path) -> Any:
        try:
            return execute_once(name, folder)
        except CellExecutionError as error:
            # A kernel that a notebook starts chose ports that another test took before it bound them.
            if "Kernel died before replying" not in str(error):
                raise
        end_all(state_of(folder))
        shutil.rmtree(folder)
        folder.mkdir()
        return execute_once(name, folder)

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield {name: pool.submit(execute, name, folder) for name, folder in folders.items()}
    finally:
        for folder in folders.values():
            end_all(state_of(folder))


def state_of(folder: Path) -> Path:
    return folder / ".local" / "state" / "amltrain"


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*(n for n in NOTEBOOKS if n not in SLOW), *thorough(*SLOW)])
def test_notebook_runs_from_top_to_bottom(
    name: str, executions: dict[str, Future[Any]], homes: dict[str, Path]
) -> None:
    if name == "10_slurm" and (reason := slurm_cluster.missing_reason()):
        pytest.skip(reason)
    if name in ("04_gpu_training", "06_distributed", "10_slurm"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    if name == "11_automl":
        pytest.importorskip("flaml", reason="FLAML is not installed")
    if name == "03_azure_cluster":
        nvml.needed()  # its cluster has GPUs
    notebook = executions[name].result(DEADLINE)
    outputs_are_right(notebook)
    metrics_are_those_of_mlflow(notebook, homes[name])
    if name == "00_two_minutes":
        printed = "".join(text(output.get("text", "")) for cell in code(notebook) for output in cell["outputs"])
        assert "of the biopsies" in printed and "lift-off" in printed
        assert printed.count("deleted.") == 2
        (error,) = [o["evalue"] for c in code(notebook) for o in c["outputs"] if o["output_type"] == "error"]
        assert "line 4" in error and "expected ':'" in error and "\n" not in error
    if name == "03_azure_cluster":
        azure_cluster_is_right(notebook)
    if name == "08_why_is_it_slow":
        printed = "".join(text(output.get("text", "")) for cell in code(notebook) for output in cell["outputs"])
        longest = next(line for line in printed.splitlines() if " %  " in line)
        assert "float(part)" in longest and "work.get()" in printed and "(3, 0)" in printed
    if name == "06_distributed":
        (error,) = [o["evalue"] for c in code(notebook) for o in c["outputs"] if o["output_type"] == "error"]
        assert "ank 1 raised ValueError" in error and "line 6" in error
        printed = "".join(text(output.get("text", "")) for cell in code(notebook) for output in cell["outputs"])
        assert "[rank 1] rank 1 of 2" in printed
    if name == "05_run_configuration":
        printed = "".join(text(output.get("text", "")) for cell in code(notebook) for output in cell["outputs"])
        assert "both times" in printed and "conda_file" in printed and printed.count("deleted.") == 6


def azure_cluster_is_right(notebook: Any) -> None:
    """What only this notebook shows: the model by its name, a GPU that is not used, and the end of all costs."""
    printed = [text(output.get("text", "")) for cell in code(notebook) for output in cell["outputs"]]
    records = [o["data"][RECORD_MIME] for c in code(notebook) for o in c["outputs"] if RECORD_MIME in o.get("data", {})]
    trained, stopped = records
    assert trained["handle"].startswith("cpu-cluster/digits-") and not trained["truth"]
    assert stopped["handle"].startswith("gpu-cluster/on-purpose-") and stopped["gpu"]["gpus"]
    assert (stopped["reason"], stopped["truth"]["verdict"]) == ("gpu-unused", "not used")
    assert any("digits:1" in one and "MLflow model" in one for one in printed), printed
    assert "Nothing" in printed[-1] and "digits-lab" in printed[-1], printed[-1]
    assert not SECRETS.search(json.dumps(notebook).encode())


def test_notebook_cells_are_equal_across_targets() -> None:
    """Only the target in use differs between this machine, a machine over SSH, and a cluster."""
    cells = []
    for name in ("01_local_digits", "02_ssh_vm", "03_azure_cluster", "10_slurm"):
        notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
        (cell,) = [
            text(c["source"]) for c in code(notebook) if text(c["source"]).startswith("%%aml_submit --name digits ")
        ]
        cells.append(cell)
    assert len(set(cells)) == 1


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_saved_with_outputs_without_paths(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    written = path.read_text(encoding="utf-8")
    assert not (found := FOREIGN.search(written)), found
    assert not SECRETS.search(written.encode())
    notebook = json.loads(written)
    boards = written.count('"early": [')  # their pictures are larger
    assert len(written) < 100_000 * (
        max(4, outputs_are_right(notebook)) + 2 * boards
    )  # bytes; most are pictures of runs
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    first = text(notebook["cells"][0]["source"])
    assert all(f"*{word}:*" in first for word in ("Takes", "Costs", "Needs"))
