"""What a script logs to another store of MLflow is in that store, and in the record of its run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import DistributionFinder
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.mlflow.followed import ALSO_AT
from jupyter_amltrain.agent.supervise import import_hook, job_hooks, mlflow_hook
from tests.agent import mlflow2
from tests.agent.mlflow_jobs import RUN_ID, TOKEN, Host, points, records, until

pytestmark = pytest.mark.thorough


def hooks(host: Host, folder: Path, **env: str) -> dict[str, str]:
    """Return the variables of a job with the hooks."""
    environ = host.env()
    job_hooks.add(environ, str(folder), str(folder / "hooks"), gpus=False, sink=(host.port, TOKEN))
    names = ("PYTHONPATH", mlflow_hook.PORT, mlflow_hook.TOKEN)
    return {"MLFLOW_ALLOW_FILE_STORE": "true", **{name: environ[name] for name in names}, **env}


def python_of(client: int) -> str:
    if client == 3:
        return sys.executable
    try:
        return mlflow2.interpreter()
    except RuntimeError as error:
        pytest.skip(str(error))


LOG = """
import json, mlflow
from mlflow.tracking import MlflowClient
mlflow.set_tracking_uri(URI)
ids = []
with mlflow.start_run(tags={"team": "blue"}) as run:
    ids.append(run.info.run_id)
    mlflow.log_params({"lr": 0.1, "layers": 3})
    for step in range(3):
        mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
    mlflow.log_metrics({"loss": 0.25, "gap": float("nan")}, step=3)
    mlflow.log_metric("late", 5.0, step=1, synchronous=False)
    mlflow.set_tag("kind", "demo")
    mlflow.set_tag("gone", "soon")
    mlflow.delete_tag("gone")
    with mlflow.start_run(nested=True, run_name="child") as child:
        ids.append(child.info.run_id)
        mlflow.log_metric("inner", 3.0)
with mlflow.start_run(run_name="later") as run:
    ids.append(run.info.run_id)
    MlflowClient().log_metric(ids[0], "after", 1.0)
    try:
        mlflow.log_metric("m" * 251, 1.0); error = ""
    except mlflow.exceptions.MlflowException as caught:
        error = str(caught)
found = []
for run_id in ids:
    run = MlflowClient().get_run(run_id)
    points = {key: [(m.step, m.value) for m in MlflowClient().get_metric_history(run_id, key) if m.value == m.value]
              for key in sorted(run.data.metrics)}
    parent = run.data.tags.get("mlflow.parentRunId")
    tags = {k: v for k, v in run.data.tags.items() if k not in ("mlflow.runName", "mlflow.parentRunId")}
    found.append([points, run.data.params, tags, parent and ids.index(parent), run.info.status])
print(json.dumps({"ids": ids, "found": found, "error": error, "mlflow": mlflow.__version__}))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Address of a real server of MLflow."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = ["server", "--backend-store-uri", f"sqlite:///{folder}/a.db", "--port", str(port), "--workers", "1"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *argv],
        cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

    def is_up() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    until(is_up, "MLflow's server", 60)
    yield f"http://127.0.0.1:{port}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("client", [3, 2])
@pytest.mark.parametrize("store", ["sqlite", "file", "path", "server"])
def test_runs_in_other_store_are_followed(tmp_path, request, store, client):
    python = python_of(client)
    place = tmp_path / "own"
    uri = {"sqlite": f"sqlite:///{place}.db", "file": place.as_uri(), "path": str(place)}.get(store)
    uri = uri or request.getfixturevalue("server")
    with Host(tmp_path / "run") as host:
        env = hooks(host, tmp_path)
        script = LOG.replace("URI", repr(uri))
        plain = host.run(script, python, **{**env, mlflow_hook.PORT: "0"})
        assert not [record for record in host.records() if record["op"] != "init"]
        out = host.run(script, python, **env)
        assert host.stop() == 0
        journal, notes = host.records(), host.notes()
    assert out["mlflow"].startswith(f"{client}.")
    assert (out["found"], out["error"]) == (plain["found"], plain["error"])
    assert "exceeds the maximum length" in out["error"] and not notes
    assert points(journal, "loss") == [(0, 1.0), (1, 0.5), (2, 1 / 3), (3, 0.25)]
    assert len(points(journal, "gap")) == 1
    of_run = runs_of(journal)
    assert [run["name"] for run in of_run.values()] == ["", "child", "later"]
    own, child, later = of_run
    assert own == RUN_ID and of_run[child]["tags"]["mlflow.parentRunId"] == RUN_ID
    assert of_run[later]["tags"]["mlflow.parentRunId"] == RUN_ID
    assert [run["tags"][ALSO_AT].split(" run ") for run in of_run.values()] == [[uri, run_id] for run_id in out["ids"]]
    assert of_run[own]["params"] == {"lr": "0.1", "layers": "3"}
    tags = of_run[own]["tags"]
    assert (tags["team"], tags["kind"], "gone" in tags) == ("blue", "demo", False)
    assert of_run[own]["keys"] == {"loss", "gap", "late", "after"} and of_run[child]["keys"] == {"inner"}
    assert {run["status"] for run in of_run.values()} == {"FINISHED"}


def runs_of(journal: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a journal has of each run."""
    runs: dict[str, Any] = {RUN_ID: {"name": "", "tags": {}, "params": {}, "keys": set(), "status": ""}}
    for record in journal:
        body, added = record["b"], record.get("a") or {}
        if record["op"] == "runs/create":
            runs[added["id"]] = {"name": added["name"], "tags": {}, "params": {}, "keys": set(), "status": ""}
        run = runs.get(body.get("run_id") or added.get("id"))
        if run is None:
            continue
        run["status"] = body.get("status") or run["status"]
        run["tags"].update({tag["key"]: tag["value"] for tag in body.get("tags") or []})
        run["params"].update({param["key"]: param["value"] for param in body.get("params") or []})
        run["keys"].update(point["key"] for point in body.get("metrics") or [])
        if record["op"] == "runs/delete-tag":
            del run["tags"][body["key"]]
    return runs


FAILING = """
import setting
import mlflow
import numpy as np
from sklearn.linear_model import LogisticRegression
mlflow.sklearn.autolog(log_models=False, silent=True)
x = np.arange(40.0).reshape(20, 2); y = np.arange(20) % 2
LogisticRegression(C=0.5).fit(x, y)
mlflow.log_metric("test", 0.5)
raise ValueError("of the script")
"""


def test_failing_script_with_autolog_and_uri_in_module_is_followed(tmp_path):
    with Host(tmp_path / "run") as host:
        uri = f"sqlite:///{tmp_path}/own.db"
        setting = f"import os\nos.environ['MLFLOW_TRACKING_URI'] = {uri!r}\n"
        (tmp_path / "run/setting.py").write_text(setting)
        job = host.start(FAILING, **hooks(host, tmp_path))
        output = job.communicate(timeout=120)[0]
        assert host.stop() == 0
        run = runs_of(host.records())
    assert job.returncode == 1 and output.rstrip().endswith("ValueError: of the script")
    assert "amltrain" not in output.replace(str(tmp_path), "")
    assert list(run) == [RUN_ID] and {"test", "training_score"} <= run[RUN_ID]["keys"]
    assert run[RUN_ID]["params"]["C"] == "0.5"


OTHER_RUNS = """
import json, multiprocessing, sys
import mlflow
client = mlflow.MlflowClient(tracking_uri=URI)
if sys.argv[1:]:
    old = client.create_run("0", run_name="old")
    client.log_metric(old.info.run_id, "before", 1.0)
    print(json.dumps(old.info.run_id)); sys.exit()

def worker(number):
    mlflow.set_tracking_uri(URI)
    with mlflow.start_run(run_name=f"worker-{number}"):
        mlflow.log_metric("acc", number)

mlflow.log_metric("here", 1.0)  # the run itself, in its own store
client.set_tag(OLD, "seen", "yes")
client.log_metric(OLD, "after", 2.0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(worker, [1, 2])
print(json.dumps(mlflow.active_run().info.run_id))
"""


def test_runs_of_client_and_workers_are_children_of_run_in_own_store(tmp_path):
    with Host(tmp_path / "run") as host:
        env = hooks(host, tmp_path)
        script = OTHER_RUNS.replace("URI", repr(f"sqlite:///{tmp_path}/own.db"))
        (tmp_path / "old.py").write_text(script)
        plain = {**os.environ, **env, mlflow_hook.PORT: "0"}
        old = json.loads(subprocess.check_output([sys.executable, str(tmp_path / "old.py"), "old"], env=plain))
        assert host.run(script.replace("OLD", repr(old)), **env) == RUN_ID
        assert host.stop() == 0
        run = runs_of(host.records())
    own = run.pop(RUN_ID)
    assert ALSO_AT not in own["tags"]
    keys = {child["tags"][ALSO_AT].split(" run ")[1] == old: child["keys"] for child in run.values()}
    assert keys == {True: {"after"}, False: {"acc"}} and len(run) == 3
    assert {"worker-1", "worker-2"} <= {child["name"] for child in run.values()}
    assert {child["tags"]["mlflow.parentRunId"] for child in run.values()} == {RUN_ID}


SLOW = """
import json, sys, time
import mlflow
mlflow.set_tracking_uri(URI)
slowest = 0.0
for number in range(3):
    with mlflow.start_run(run_name=f"run-{number}"):
        for step in range(100):
            started = time.monotonic()
            mlflow.log_metric("x", float(step), step=step)
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.005)
    print(number, flush=True)
print(json.dumps({"slowest": slowest, "ended": time.time()}))
"""


def test_killed_sink_loses_and_doubles_nothing(tmp_path):
    with Host(tmp_path / "run") as host:
        job = host.start(SLOW.replace("URI", repr((tmp_path / "own").as_uri())), **hooks(host, tmp_path))
        assert job.stdout is not None
        for line in job.stdout:
            if line.strip() in {"0", "1"}:
                time.sleep(0.2)
                os.kill(host.pid, signal.SIGKILL)
                host.restarted()
        assert job.wait(60) == 0
        assert host.stop() == 0
        journal = host.records()
    assert sorted(points(journal, "x")) == sorted([(step, float(step)) for step in range(100)] * 3)
    assert [record["b"]["run_name"] for record in journal if record["op"] == "runs/create"] == ["run-1", "run-2"]


@pytest.mark.parametrize("how", ["gone", "stopped"])
def test_missing_sink_costs_script_seconds_at_most(tmp_path, how):
    with Host(tmp_path / "run") as host:
        job = host.start(SLOW.replace("URI", repr((tmp_path / "own").as_uri())), **hooks(host, tmp_path))
        assert job.stdout is not None
        until(lambda: job.stdout.readline().strip() == "0", "the first run")
        if how == "gone":
            assert host.stop() == 0
        else:
            os.kill(host.pid, signal.SIGSTOP)
        output = job.communicate(timeout=120)[0]
        ended = time.time()
        if how == "stopped":
            os.kill(host.pid, signal.SIGCONT)
    result = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    # A busy machine adds seconds of its own; without a bound the script would wait for the sink for ever.
    assert job.returncode == 0 and result["slowest"] < mlflow_hook.EXIT_WAIT_S
    assert ended - result["ended"] < mlflow_hook.EXIT_WAIT_S + 30
    assert output.splitlines()[-1].startswith("amltrain: the record of this run lacks")


SERVING = """
import json, os, subprocess, sys, time, urllib.request
import mlflow
argv = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", "sqlite:///served.db", "--workers", "1"]
server = subprocess.Popen([*argv, "--port", PORT], start_new_session=True)
mlflow.set_tracking_uri(f"http://127.0.0.1:{PORT}")
for _ in range(700):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health").close(); break
    except OSError:
        time.sleep(0.2)
try:
    with mlflow.start_run():
        mlflow.log_metric("x", 1.0)
finally:
    os.killpg(server.pid, 9)
print(json.dumps(os.path.exists("served.db")))
"""


def test_server_in_job_is_not_followed_beside_its_client(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Host(tmp_path / "run") as host:
        assert host.run(SERVING.replace("PORT", repr(str(port))), **hooks(host, tmp_path)) is True
        assert host.stop() == 0
        journal = host.records()
    assert points(journal, "x") == [(0, 1.0)] and list(runs_of(journal)) == [RUN_ID]


@pytest.mark.parametrize(("env", "losses"), [({}, [(0, 0.5)]), ({mlflow_hook.PORT: "0"}, [])], ids=["on", "off"])
def test_job_of_agent_is_followed_unless_switched_off(agent, tmp_path, env, losses):
    uri = f"sqlite:///{tmp_path}/own.db"
    code = f"import mlflow\nmlflow.set_tracking_uri({uri!r})\nmlflow.log_metric('loss', 0.5)\n"
    argv = [sys.executable, "-c", code]
    run = agent.submit("", argv=argv, env=env, tracking={"run_id": RUN_ID, "mode": "sink"})
    assert agent.wait(run)["state"] == "completed", agent.log(run)
    assert points(records(agent.run_folder(run)), "loss") == losses


def test_finder_without_mlflow_offers_iterator_without_plugin():
    found = import_hook._Finder("/nowhere").find_distributions(DistributionFinder.Context(name="mlflow"))
    assert next(found, None) is None


NAMES = """
import json, mlflow
from importlib.metadata import PackageNotFoundError, distributions, version
with mlflow.start_run():  # MLflow has looked for plug-ins
    names = sorted(one.metadata["Name"] for one in distributions())
unknown = []
for name in [*names, "no-such-distribution"]:
    try:
        version(name)
    except PackageNotFoundError:
        unknown.append(name)
print(json.dumps([unknown, "amltrain-follow" in names]))
"""


def test_each_distribution_that_a_library_lists_has_a_version(tmp_path):
    with Host(tmp_path / "run") as host:
        assert host.run(NAMES, sys.executable, **hooks(host, tmp_path)) == [["no-such-distribution"], True]


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://anna:hunter2@team:5000/x", "https://team:5000/x"),
        ("postgresql://anna:hun/t@er2@db/x?password=hunter2", "postgresql://db/x"),
        ("mysql+pymysql://anna:hunter2@db/x", "mysql+pymysql://db/x"),
        ("sqlite+pysqlcipher://:hunter2@/mine.db", "sqlite+pysqlcipher:///mine.db"),
        ("sqlite:////home/anna@work/mine.db", "sqlite:////home/anna@work/mine.db"),
        ("file:///home/anna@work/runs", "file:///home/anna@work/runs"),
        ("/home/anna@work/runs", "/home/anna@work/runs"),
    ],
)
def test_address_is_shown_without_password(uri, shown):
    assert mlflow_hook.shown(uri) == shown


START = """
import json, mlflow
client = mlflow.MlflowClient()
auto = client.create_run("0", tags={"mlflow.autologging": "sklearn"}).info.run_id
client.log_param(auto, "C", 1.0)
client.set_terminated(auto)
mlflow.log_metric("after", 1.0)  # joins the run of autologging
mlflow.end_run()
with mlflow.start_run() as started:
    mlflow.log_param("C", 0.1)
    tags = mlflow.get_run(started.info.run_id).data.tags
ids = [auto, started.info.run_id]
print(json.dumps({"ids": ids, "parent": tags.get("mlflow.parentRunId"), "own": [t for t in tags if "amltrain" in t]}))
"""


@pytest.mark.parametrize("client", [3, 2])
def test_run_started_after_autologging_is_child_and_log_without_run_is_not(tmp_path, client):
    python = python_of(client)
    with Host(tmp_path / "run") as host:
        out = host.run(START, python, **hooks(host, tmp_path))
        assert host.stop() == 0
        journal = host.records()
    assert out["ids"][0] == out["parent"] == RUN_ID != out["ids"][1] and not out["own"]
    assert points(journal, "after") == [(0, 1.0)]
    params = {one["b"]["run_id"]: one["b"]["value"] for one in journal if one["op"] == "runs/log-parameter"}
    assert params == {RUN_ID: "1.0", out["ids"][1]: "0.1"}


def test_run_started_first_is_the_run_under_its_own_tracking_uri(tmp_path):
    script = "import json, mlflow\nwith mlflow.start_run() as run: pass\nprint(json.dumps({'id': run.info.run_id}))"
    with Host(tmp_path / "run") as host:
        assert host.run(script, **hooks(host, tmp_path)) == {"id": RUN_ID}
