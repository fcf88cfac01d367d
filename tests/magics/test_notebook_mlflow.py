"""MLflow in the notebook finds the runs of the notebook, unless its user has chosen another store."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain import magics

VARIABLE = "MLFLOW_TRACKING_URI"

#: A kernel of its own: MLflow keeps the tracking URI in its module.
PROGRAM = """
import sys
from IPython.core.interactiveshell import InteractiveShell
ip = InteractiveShell.instance()
for source in sys.stdin.read().split("\\n---\\n"):
    result = ip.run_cell(source)
    if not result.success:
        sys.exit(f"failed: {source}")
"""


def run_cells(*cells: str, **environ: str) -> str:
    """The output of a kernel that runs cells; nothing is reported as if it were an error."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n---\n".join(("%load_ext jupyter_amltrain", *cells)),
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "database tables" not in done.stderr
    return done.stdout


@pytest.mark.thorough
def test_next_cell_finds_ended_run_and_its_files(api: Any) -> None:
    out = run_cells(
        "%%aml_submit --name one --wait\nimport mlflow\nmlflow.log_metric('loss', 0.5)\nmlflow.log_text('hi', 'a.txt')",
        "import mlflow\nruns = mlflow.search_runs(search_all_experiments=True)\n"
        "print('FOUND', *runs['tags.mlflow.runName'], *runs['metrics.loss'], *runs['status'])\n"
        "print('TEXT', mlflow.artifacts.load_text(f'runs:/{runs.run_id[0]}/a.txt'))",
        "with mlflow.start_run(): mlflow.log_param('x', 1)\n"
        "print('ALL', len(mlflow.search_runs(search_all_experiments=True)))",
    )
    assert "FOUND one 0.5 FINISHED" in out and "TEXT hi" in out and "ALL 2" in out
    assert out.count("mlflow.set_tracking_uri") == 1  # said once
    assert not Path("mlflow.db").exists() and not Path("mlruns").exists()


@pytest.mark.thorough
def test_artifacts_of_experiment_made_in_notebook_are_on_page(api: Any) -> None:
    out = run_cells(
        "import mlflow\nmlflow.set_experiment('mine')\nwith mlflow.start_run(): mlflow.log_text('hi', 'a.txt')\n"
        "print('AT', mlflow.last_active_run().info.artifact_uri)"
    )
    from jupyter_amltrain.tracking.mlflow_private import local_path
    from jupyter_amltrain.tracking.mlflow_store import artifact_roots

    at = next(line.split()[1] for line in out.splitlines() if line.startswith("AT "))
    assert any(Path(local_path(at)).resolve().is_relative_to(root.resolve()) for root in artifact_roots(os.getcwd()))


@pytest.mark.thorough
def test_own_variable_or_uri_is_kept(api: Any, tmp_path: Path) -> None:
    own = f"sqlite:///{tmp_path / 'own.db'}"
    assert f"URI {own}" in run_cells("import mlflow\nprint('URI', mlflow.get_tracking_uri())", **{VARIABLE: own})
    out = run_cells(f"import mlflow\nmlflow.set_tracking_uri({own!r})", "print('URI', mlflow.get_tracking_uri())")
    assert f"URI {own}" in out and "looks at" not in out


def test_store_follows_working_folder(ip: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ[VARIABLE].endswith(f"{os.getcwd()}/.amltrain/mlflow.db")
    monkeypatch.chdir(tmp_path)
    ip.run_cell("pass")
    assert os.environ[VARIABLE] == f"sqlite:///{tmp_path}/.amltrain/mlflow.db"
    magics.unregister(ip)
    assert VARIABLE not in os.environ
    ip.run_cell("pass")
    assert VARIABLE not in os.environ


def test_cell_without_mlflow_creates_no_store(ip: InteractiveShell) -> None:
    assert ip.run_cell("x = 1").success
    assert not Path(".amltrain").exists()


def test_imported_mlflow_is_news_only_for_cell_that_names_it(
    ip: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    magics.unregister(ip)
    module = types.SimpleNamespace(
        is_tracking_uri_set=lambda: False, get_tracking_uri=lambda: os.environ.get(VARIABLE, "")
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    magics.register(ip)
    ip.run_cell("x = 1")
    assert "set_tracking_uri" not in capsys.readouterr().out
    ip.run_cell("# mlflow")
    ip.run_cell("# mlflow")
    assert capsys.readouterr().out.count("set_tracking_uri") == 1
