"""Jobs that log to a sink: what the sink's and the importer's tests share."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import filelock

from jupyter_amltrain.agent.mlflow import sink_server
from tests.helpers import DEADLINE
from tests.helpers import until as until

ROOT = Path(__file__).resolve().parents[2]
RUN_ID = "0123456789abcdef0123456789abcdef"
TOKEN = "test-token"


class Host:
    """A run folder with a sink, and a stand-in for the supervisor that forks it again."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/agent/sink_host.py"), str(folder), TOKEN, RUN_ID],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, **env},
        )
        self.port = int(self._line("port"))
        self.pid = int(self._line("sink"))

    def _line(self, word: str) -> str:
        assert self._process.stdout is not None
        name, value = self._process.stdout.readline().split()
        assert name == word
        return str(value)

    def restarted(self) -> int:
        """Wait for the next fork; its process id."""
        self.pid = int(self._line("sink"))
        return self.pid

    def stop(self) -> int:
        """End the sink as the supervisor does; exit code of the host."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait(DEADLINE)
        self._process.stdout.close()
        return code

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self.stop()

    def env(self, **more: str) -> dict[str, str]:
        """A job's environment."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        env.update(sink_server.client_env(self.port, TOKEN, env), MLFLOW_DISABLE_TELEMETRY="true", **more)
        return env

    def start(self, script: str, python: str = sys.executable, **env: str) -> subprocess.Popen[str]:
        """Start a job; its standard output is a pipe."""
        path = self.folder / "job.py"
        path.write_text(script)
        return subprocess.Popen(
            [python, str(path)],
            cwd=self.folder,
            env=self.env(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, script: str, python: str = sys.executable, **env: str) -> dict[str, Any]:
        """Run a job to its end; the JSON of its last line."""
        job = self.start(script, python, **env)
        out, _ = job.communicate(timeout=2 * DEADLINE)
        assert job.returncode == 0, out
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result

    def call(self, method: str, op: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """One request without MLflow's client: status and answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}" + (op if op.startswith("/") else "/api/2.0/mlflow/" + op),
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if text.startswith("{") else text
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                return error.code, json.loads(error.read())

    def records(self) -> list[dict[str, Any]]:
        return records(self.folder)

    def notes(self) -> str:
        path = self.folder / "log" / "agent.txt"
        return path.read_text() if path.exists() else ""


def records(folder: Path) -> list[dict[str, Any]]:
    """The journal's whole lines."""
    path = folder / "metrics" / "rank-0.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def points(journal: list[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    """(step, value) of each point of a metric, in journal order."""
    found = []
    for record in journal:
        batch = [record["b"]] if record["op"] == "runs/log-metric" else record["b"].get("metrics") or []
        found += [(int(p.get("step") or 0), float(p["value"])) for p in batch if p.get("key") == key]
    return found


def finish_folder(folder: Path, state: str = "completed", **job: Any) -> None:
    """Write what the agent writes around the journal."""
    spec = {"params": {"seed": 7, "lr": "the script logs this one itself"}, "tags": {"team": "blue"}}
    value = {"schema": 1, "run": "digits-k3f9", "name": "digits", "experiment": "numbers", "submitted": 1_700_000_000}
    value.update(spec={**spec, "source_sha256": "ab" * 32}, tracking={"run_id": RUN_ID, "mode": "sink"})
    (folder / "job.json").write_text(json.dumps({**value, **job}))
    phases = [{"name": "running", "start": 1_700_000_001, "end": 1_700_000_009.5}]
    code = {"completed": 0, "failed": 1}.get(state)
    status = {"schema": 1, "state": state, "exit_code": code, "changed": 1_700_000_010, "phases": phases}
    (folder / "state.json").write_text(json.dumps(status))


@functools.cache
def everything() -> tuple[Path, dict[str, Any]]:
    """Run :data:`EVERYTHING` once, also over the processes of pytest-xdist: its run folder and what it printed."""
    shared = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if not shared:
        folder = Path(tempfile.mkdtemp(prefix="amltrain-everything-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder / "run", _log_everything(folder)
    folder = Path(tempfile.gettempdir(), f"amltrain-everything-{shared}")
    with filelock.FileLock(f"{folder}.lock"):
        result = folder / "result.json"
        if not result.exists():
            result.write_text(json.dumps(_log_everything(folder)))
        return folder / "run", json.loads(result.read_text())


def _log_everything(folder: Path) -> dict[str, Any]:
    with Host(folder / "run") as host, Host(folder / "own") as own:
        result = host.run(EVERYTHING, OWN=f"http://127.0.0.1:{own.port}")
        result["own"] = points(own.records(), "elsewhere")
        assert host.stop() == 0 and own.stop() == 0
    finish_folder(folder / "run")
    return result


#: The ways to log that scripts use, with the full client of MLflow 3.
EVERYTHING = r"""
import json, os, time
import mlflow
import numpy as np
from mlflow.tracking import MlflowClient
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

out = {"ids": []}

mlflow.log_metric("loss", 1.0, step=0)
mlflow.log_params({"lr": 0.1, "layers": 3})
out["ids"].append(mlflow.active_run().info.run_id)
mlflow.end_run()

with mlflow.start_run(run_id=out["ids"][0], run_name="second", tags={"kind": "demo"}) as run:  # resumed
    out["ids"].append(run.info.run_id)
    mlflow.log_metrics({"loss": 0.5, "gap": float("nan")}, step=1)
    with mlflow.start_run(nested=True, run_name="child") as child:
        mlflow.log_metric("inner", 3.0)
        out["child"] = child.info.run_id

mlflow.sklearn.autolog(log_models=False, silent=True)
x = np.random.default_rng(0).normal(size=(60, 3)); y = (x[:, 0] > 0).astype(int)
run = mlflow.start_run(run_id=out["ids"][0])
out["ids"].append(run.info.run_id)
model = LogisticRegression(C=0.5).fit(x, y)                                  # autolog
info = mlflow.sklearn.log_model(model, name="model", pip_requirements=["scikit-learn"])
out["model"] = info.model_id
out["same"] = bool((mlflow.sklearn.load_model(info.model_uri).predict(x) == model.predict(x)).all())


client = MlflowClient()
first = mlflow.register_model(info.model_uri, "shop", tags={"stage": "trial"})
client.set_registered_model_alias("shop", "best", first.version)
second = mlflow.sklearn.log_model(
    model, name="other", pip_requirements=["scikit-learn"], registered_model_name="shop")
client.set_model_version_tag("shop", "2", "checked", "yes")
client.update_registered_model("shop", "of a job")
shop = client.get_registered_model("shop")
out["shop"] = [shop.description, shop.aliases, [(v.version, v.status) for v in shop.latest_versions]]
out["versions"] = [[v.version, v.tags] for v in client.search_model_versions("name = 'shop'")]
out["by_alias"] = type(mlflow.sklearn.load_model("models:/shop@best")).__name__
out["by_version"] = type(mlflow.sklearn.load_model("models:/shop/2")).__name__

pid = os.fork()
if pid == 0:
    mlflow.log_metric("forked", 1.0, run_id=run.info.run_id)                 # a fork has no active run
    os._exit(0)
os.waitpid(pid, 0)

mlflow.log_metric("async", 5.0, step=1, synchronous=False).wait()
figure = Figure(); figure.add_subplot().plot([1, 2, 3]); mlflow.log_figure(figure, "plots/line.png")
open("notes.txt", "w").write("hello"); mlflow.log_artifact("notes.txt")
mlflow.log_input(mlflow.data.from_numpy(x, name="points"), context="training")

@mlflow.trace
def traced(n):
    return n + 1

traced(1)
mlflow.flush_trace_async_logging()

errors = out["errors"] = {}
for name, call in {
    "long_metric": lambda: mlflow.log_metric("m" * 251, 1.0),
    "long_param": lambda: mlflow.log_param("p" * 251, 1),
    "changed_param": lambda: mlflow.log_param("layers", 4),
    "missing_version": lambda: MlflowClient().get_model_version("shop", "7"),
    "unknown": lambda: MlflowClient().link_prompt_version_to_run(run.info.run_id, "p"),
    "webhook": lambda: MlflowClient().list_webhooks(),
}.items():
    try:
        call(); errors[name] = "no error"
    except Exception as error:
        errors[name] = str(error)
mlflow.log_param("long_value", "v" * 7000)                                   # cut, as a server does

out["history"] = [[m.step, m.value] for m in MlflowClient().get_metric_history(run.info.run_id, "loss")]
out["searched"] = [r.info.run_name for r in mlflow.search_runs(
    filter_string="metrics.inner > 2 AND tags.`mlflow.runName` = 'child'", output_format="list")]
out["artifacts"] = [f.path for f in MlflowClient().list_artifacts(run.info.run_id)]
mlflow.log_metric("loss", 0.25, step=2)
mlflow.end_run()

mlflow.set_tracking_uri(os.environ["OWN"])                                   # its own server
mlflow.log_metric("elsewhere", 9.0)
mlflow.end_run()
print(json.dumps(out))
"""
