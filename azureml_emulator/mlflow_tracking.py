"""The workspace's MLflow tracking endpoint: MLflow's real server behind the service's paths and limits."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from azureml_emulator import arm
from azureml_emulator.job_runs import Jobs, Run
from azureml_emulator.routing import Call, Refused, Routes
from azureml_emulator.world import World

routes = Routes()

_TABLES = ("tags", "params", "metrics", "latest_metrics", "experiment_tags", "inputs", "input_tags", "datasets", "runs")
_STATES = {"Completed": "FINISHED", "Failed": "FAILED", "Canceled": "KILLED"}
# The service's store has no such API: log_model of MLflow 2.19 and later fails (azure-sdk-for-python#44896).
_ABSENT = ("logged-models", "traces", "scorers", "prompt", "webhooks")


class Server:
    """MLflow's server over SQLite, started when it is first wanted; one for the process, kept over resets."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.base = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: asyncio.Task[None] | None = None

    @property
    def database(self) -> Path:
        """Its SQLite file."""
        assert self.folder is not None
        return self.folder / "mlflow.db"

    @property
    def started(self) -> bool:
        """Whether anybody has wanted it yet."""
        return self._process is not None

    async def ready(self) -> None:
        """Start it, and wait until it answers."""
        if self._ready is None or (self._ready.done() and self._ready.exception() is not None):
            self._ready = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._ready)

    async def _start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="azure-mlflow-"))
        atexit.register(self.stop)
        self.base = "http://localhost"
        env = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
            "HOME": str(self.folder),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
            "LANG": "C.UTF-8",
        }
        with open(self.folder / "server.txt", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("mlflow_server.py")), str(self.folder)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.folder, env=env, start_new_session=True,
            )  # fmt: skip
        async with self._session() as session:
            for _ in range(1200):
                try:
                    async with session.get(f"{self.base}/health") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
        raise RuntimeError(f"mlflow server did not answer: {(self.folder / 'server.txt').read_text()[-500:]}")

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.UnixConnector(str(Path(self.folder or "", "server.sock")))
        return aiohttp.ClientSession(connector=connector, trust_env=False)

    async def ask(self, method: str, path: str, query: str = "", body: bytes = b"") -> tuple[int, bytes]:
        """One request; the server is started for it if need be."""
        await self.ready()
        url = f"{self.base}{path}" + (f"?{query}" if query else "")
        headers = {"Content-Type": "application/json"}
        async with (
            self._session() as session,
            session.request(method, url, data=body or None, headers=headers) as answer,
        ):
            return answer.status, await answer.read()

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        """One of MLflow's own calls."""
        _, answer = await self.ask("POST", f"/api/2.0/mlflow/{path}", "", json.dumps(body).encode())
        found: dict[str, Any] = json.loads(answer)
        return found

    def write(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """Change the database under it."""
        with contextlib.closing(sqlite3.connect(self.database, timeout=30)) as base, base:
            there = {row[0] for row in base.execute("select name from sqlite_master where type = 'table'")}
            for statement, values in statements:
                if (found := re.search(r"(?:update|delete from) (\w+)", statement)) and found[1] in there:
                    base.execute(statement, values)

    def stop(self) -> None:
        """End it and remove its files."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(10)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


SERVER = Server()


class MlflowRuns:
    """Which runs of jobs the server has; forgotten, with all that the server holds, at reset."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._made: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Empty the server's database."""
        if SERVER.started:
            statements: list[tuple[str, tuple[Any, ...]]] = [(f"delete from {table}", ()) for table in _TABLES]
            statements.append(("delete from experiments where experiment_id <> 0", ()))
            await SERVER.ready()
            await asyncio.to_thread(SERVER.write, *statements)

    async def has(self, run: Run) -> None:
        """The run of a job is there under the job's own name, as the service makes it with the job."""
        if run.name not in self._made:
            self._made[run.name] = asyncio.get_running_loop().create_task(self._make(run))
        await asyncio.shield(self._made[run.name])

    async def _make(self, run: Run) -> None:
        await SERVER.ready()
        experiment = run.properties["experimentName"]
        answer = await SERVER.post("experiments/create", name=experiment)
        if "experiment_id" not in answer:
            _, body = await SERVER.ask(
                "GET", "/api/2.0/mlflow/experiments/get-by-name", f"experiment_name={experiment}"
            )
            answer = json.loads(body)["experiment"]
        tags = {"mlflow.rootRunId": run.name, "mlflow.user": run.world.user, **run.properties["tags"]}
        made = await SERVER.post(
            "runs/create",
            experiment_id=answer["experiment_id"],
            start_time=int(run.states[0][1] * 1000),
            run_name=run.properties["displayName"],
            tags=[{"key": key, "value": str(value)} for key, value in tags.items()],
        )
        was = made["run"]["info"]["run_id"]
        place = (
            run.world.api.replace("https", "azureml", 1)
            + f"/artifact/v2.0{run.workspace_id}/artifacts/{run.prefix[:-1]}"
        )
        await asyncio.to_thread(
            SERVER.write,
            ("update runs set run_uuid = ?, artifact_uri = ? where run_uuid = ?", (run.name, place, was)),
            *((f"update {table} set run_uuid = ? where run_uuid = ?", (run.name, was)) for table in _TABLES[:4]),
        )


def _named_runs(call: Call) -> set[str]:
    """Run ids that a request names."""
    found = {value for key, value in call.query.items() if key in ("run_id", "run_uuid")}
    if call.body:
        found |= {name.decode() for name in re.findall(rb'"run_(?:id|uuid)"\s*:\s*"([^"]+)"', call.body)}
    return found


@routes.data("*", "/mlflow/{version}{ws}/api/{api}/mlflow/{call*}")
async def forward(call: Call) -> Any:
    """To the server and back."""
    what = call.params["call"]
    version = call.world.switches["mlflow_version"]
    if call.params["api"] != "2.0" or what.startswith(_ABSENT) or version not in ("both", call.params["version"]):
        return arm.empty(404)
    if what.startswith("runs/log-") or what == "runs/set-tag":
        _check(call, what)
    runs, jobs = call.world.part(MlflowRuns), call.world.part(Jobs)
    named = _named_runs(call)
    wanted = (
        list(jobs.runs.values())
        if what.endswith("/search")
        else [run for run in jobs.runs.values() if run.name in named]
    )
    for run in wanted:
        await runs.has(run)
        if run.over.is_set():
            values = (_STATES.get(run.status, "RUNNING"), int(run.ended * 1000), run.name)
            statement = "update runs set status = ?, end_time = ? where run_uuid = ? and end_time is null"
            await asyncio.to_thread(SERVER.write, (statement, values))
    path = f"/api/{call.params['api']}/mlflow/{what}"
    status, body = await SERVER.ask(call.method, path, call.request.rel_url.raw_query_string, call.body)
    return web.Response(body=body, status=status, content_type="application/json")


def _check(call: Call, what: str) -> None:
    """The service's limits of what is logged.

    Raises
    ------
    Refused
        400 in PascalCase: more than 250 values in a batch (recording 11f, its words), and by documentation or report
        too many or too long parameters, tags, names (their words are assumed).
    """
    sent, switches = call.json() or {}, call.world.switches
    kind = {"runs/log-metric": "metrics", "runs/log-parameter": "params", "runs/set-tag": "tags"}.get(what)
    body = {kind: [sent]} if kind else sent
    metrics, params, tags = (body.get(key) or [] for key in ("metrics", "params", "tags"))
    name = str(sent.get("run_id") or sent.get("run_uuid") or "")
    logged = call.world.part(Logged).of.setdefault(name, {"metrics": set(), "params": set()})
    names = logged["metrics"] | {item.get("key") for item in metrics}
    keys = logged["params"] | {item.get("key") for item in params}
    key_length, value_length = switches["tag_limits"]
    longest = {
        "MetricV2Dto.Value/Count": (len(metrics), switches["mlflow_batch"]),
        "Params/Count": (len(params), switches["params_batch"]),
        "Params/Value": (max((len(str(p.get("value"))) for p in params), default=0), switches["param_length"]),
        "Run.Params/Count": (len(keys) if params else 0, switches["param_limit"]),
        "Run.Metrics/Count": (len(names) if metrics else 0, switches["metric_names_limit"] or len(names)),
        "Tags/Key": (max((len(str(t.get("key"))) for t in tags), default=0), key_length),
        "Tags/Value": (max((len(str(t.get("value"))) for t in tags), default=0), value_length),
    }
    for field, (size, limit) in longest.items():
        if size > int(limit):
            message = (
                f"A field of the entity is over the size limit. FieldName={field}, Limit={limit}, Size={size}. "
                "See https://aka.ms/azure-machine-learning-limits for service limits documentation."
            )
            raise Refused(error(call, 400, "ValidationError", message, "INVALID_PARAMETER_VALUE"))
    logged["metrics"], logged["params"] = names, keys


class Logged:
    """Names of metrics and parameters of each run; forgotten at reset."""

    def __init__(self, world: World) -> None:
        del world
        self.of: dict[str, dict[str, set[Any]]] = {}

    async def close(self) -> None:
        """Nothing runs."""


def error(call: Call, status: int, code: str, message: str, mlflow: str) -> web.Response:
    """The envelope of the MLflow endpoint: PascalCase, with MLflow's own code beside it (recording 11f)."""
    names = ("Severity", "MessageFormat", "MessageParameters", "ReferenceCode", "DetailsUri", "Target")
    inner: dict[str, Any] = {
        "Code": code,
        "Message": message,
        **dict.fromkeys(names),
        "Details": [],
        "InnerError": None,
    }
    body = {
        "Error": {**inner, "DebugInfo": None, "AdditionalInfo": None},
        "Correlation": {"operation": uuid.uuid4().hex, "request": uuid.uuid4().hex[:16]},
        "Environment": call.world.location,
        "Location": call.world.location,
        "Time": call.world.clock.stamp(),
        "ComponentName": "mlflow",
        "statusCode": status,
        "error_code": mlflow,
    }
    return arm.answer(body, status)
