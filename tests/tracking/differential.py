"""Runs programs with MLflow's own file store, and with the endpoint of a job; compares what is left.

``python -m tests.tracking.differential FOLDER < programs.json`` prints JSON: what differs, by program. MLflow is
imported once; each program runs in a fork of that process.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from jupyter_amltrain.kernel.streams import MetricLog
from tests.agent.mlflow_jobs import RUN_ID, Host, finish_folder
from tests.tracking.mlflow_programs import HEAD

#: Tags that MLflow, or this package, sets by itself; values that contain ids and times.
_OWN_TAGS = ("mlflow.", "amltrain.", "sink.")
#: MLflow 3 refuses its own file store without it.
FILE_STORE = {"MLFLOW_ALLOW_FILE_STORE": "true"}


def _text(value: float) -> str:
    return repr(float(value) + 0.0)  # databases have no negative zero


def _run_view(client: Any, run: Any) -> dict[str, Any]:
    """What a run has: values, histories without times and repeated points, parameters, tags."""
    histories = {}
    for key in run.data.metrics:
        points = {(p.step, p.timestamp, _text(p.value)) for p in client.get_metric_history(run.info.run_id, key)}
        histories[key] = sorted([step, value] for step, _, value in points)
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith(_OWN_TAGS)}
    values = {key: _text(value) for key, value in run.data.metrics.items()}
    return {"values": values, "histories": histories, "params": dict(run.data.params), "tags": tags}


def store_view(uri: str, main: str = "") -> dict[str, Any]:
    """What a store has: the main run, and its children by name."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = client.search_runs(experiments, max_results=1000)
    parents = {run.info.run_id: run.data.tags.get("mlflow.parentRunId", "") for run in runs}
    tops = [run for run in runs if not parents[run.info.run_id]]
    top = next(run for run in tops if not main or run.info.run_id == main)
    children = [run for run in runs if parents[run.info.run_id] == top.info.run_id]
    view = _run_view(client, top)
    # Autologging names a child by chance.
    view["children"] = sorted(
        (_run_view(client, run) for run in children), key=lambda one: json.dumps(one, sort_keys=True)
    )
    return view


def kernel_view(folder: Path) -> dict[str, Any]:
    """Values and histories as the kernel reads them."""
    log = MetricLog()
    log.feed((folder / "metrics/rank-0.jsonl").read_bytes())
    histories = {
        key: sorted([step, _text(value)] for step, value in zip(metric.steps, metric.values, strict=True))
        for key, metric in log.metrics.items()
    }
    values = {key: _text(metric.last or 0.0) for key, metric in log.metrics.items()}
    return {"values": values, "histories": histories, "params": log.params}


def _forked(code: str, environ: dict[str, str], folder: Path) -> str:
    """Run a program in a fork of this process; return its error, empty without one."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output.txt"
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with open(output, "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(folder)
            for name in list(os.environ):
                if name.startswith("MLFLOW_"):
                    del os.environ[name]
            os.environ.update(environ)
            import mlflow

            name = "name" if int(mlflow.__version__.split(".")[0]) >= 3 else "artifact_path"
            mlflow.set_tracking_uri(environ["MLFLOW_TRACKING_URI"])
            exec(compile(HEAD + code, "program", "exec"), {"__name__": "__main__", "NAME": name})
            mlflow.end_run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    return output.read_text()[-3000:] if ended else ""


@functools.cache
def _empty_store(folder: Path) -> Path:
    """A database without runs: MLflow needs two seconds to make one."""
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{folder}/empty.db").search_experiments()
    return folder / "empty.db"


def differences(folder: Path, code: str) -> dict[str, Any]:
    """What differs between a program with MLflow's store and the same as a job."""
    plain = (folder / "plain").as_uri()
    if error := _forked(code, {"MLFLOW_TRACKING_URI": plain, **FILE_STORE}, folder / "cwd"):
        return {"plain": error}
    with Host(folder / "run") as host:
        more = {name: value for name, value in host.env().items() if name.startswith("MLFLOW_")}
        error = _forked(code, more, folder / "job")
        if host.stop() != 0 or error:
            return {"job": error or "the endpoint ended with an error"}
    finish_folder(folder / "run", spec={"params": {}, "tags": {}, "source_sha256": "ab" * 32})
    expected, kernel = store_view(plain), kernel_view(folder / "run")
    differing = {
        f"kernel's {part}": [expected[part], kernel[part]] for part in kernel if kernel[part] != expected[part]
    }
    from jupyter_amltrain.tracking import importer

    project = folder / "project"
    (project / ".amltrain").mkdir(parents=True)
    shutil.copyfile(_empty_store(folder.parent), project / ".amltrain/mlflow.db")
    importer.import_run(str(folder / "run"), str(project), handle="local/digits-k3f9")
    stored = store_view(f"sqlite:///{project}/.amltrain/mlflow.db", RUN_ID)
    differing |= {
        f"store's {part}": [expected[part], stored[part]] for part in stored if stored[part] != expected[part]
    }
    return differing


def main(folder: Path) -> None:
    programs: dict[str, str] = json.load(sys.stdin)
    os.environ.update(FILE_STORE)
    import mlflow.sklearn  # noqa: F401

    found = {}
    for number, (name, code) in enumerate(programs.items()):
        found[name] = differences(folder / str(number), code)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
