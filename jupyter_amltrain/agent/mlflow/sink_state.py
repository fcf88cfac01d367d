"""State of what a job has logged: changes are checked, applied, and written to the journal."""

import json
import os
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .. import testing
from ..protocol import AgentError, read_state
from ..trackers.metric_sources import MetricSources
from . import sink_registry
from .journal import Record, SinkJournal, now_ms
from .latest import LatestPoint, same
from .sink_traces import change_traces, experiment_of
from .validation import Body, Refusal, fit, invalid, missing

#: Id of the experiment of the job's own run, and of a client without a setting.
EXPERIMENT_ID = "0"


class LoggedRun:
    """One MLflow run of the job."""

    def __init__(self, run_id: str, experiment: str, name: str, user: str, start: int) -> None:
        self.run_id = run_id
        self.experiment = experiment
        self.name = name
        self.user = user
        self.start = start
        self.end: Optional[int] = None
        self.status = "RUNNING"
        self.active = True
        self.tags: Dict[str, str] = {"mlflow.runName": name}
        self.params: Dict[str, str] = {}
        self.metrics: Dict[str, LatestPoint] = {}
        self.datasets: List[Body] = []
        self.models_in: Dict[str, Body] = {}
        self.models_out: Dict[str, Body] = {}

    def column(self, kind: str, key: str) -> Any:
        """Return a value for a filter or an order (see :mod:`.search`)."""
        if kind == "metric":
            return self.metrics[key].value if key in self.metrics else None
        if kind == "param":
            return self.params.get(key)
        if kind == "tag":
            return self.tags.get(key)
        if kind == "dataset":
            return [_dataset_column(entry, key) for entry in self.datasets]
        names = {"run_id": "run_id", "run_name": "name", "Run name": "name", "status": "status"}
        names.update(start_time="start", end_time="end", user_id="user", created="start")
        return getattr(self, names[key]) if key in names else None


class State:
    """Experiments, runs, logged and registered models, and traces of one job.

    Parameters
    ----------
    artifacts
        Folder for artifacts; scripts write there directly (``file:`` URIs).
    experiment_name
        Name of the experiment of the job's own run.
    """

    def __init__(self, artifacts: str, experiment_name: str) -> None:
        self.artifacts = os.path.abspath(artifacts)
        self.experiments: Dict[str, Body] = {}
        self.runs: Dict[str, LoggedRun] = {}
        self.models: Dict[str, Body] = {}
        #: Ids of all logged models, deleted ones too.
        self.model_ids: Set[str] = set()
        self.traces: Dict[str, Body] = {}
        self.registry = sink_registry.Registry(self._run_of_model)
        #: Metrics of the job's own run that are not from MLflow.
        self.metric_sources = MetricSources()
        #: Starts that became the job's own run: kind (``script``, ``autolog``) and rank.
        self.joined: Set[Tuple[str, str]] = set()
        #: Ids of runs of other stores, with the ids of the runs here that follow them.
        self.followed: Dict[str, str] = {}
        #: Ids of experiments whose names the script has looked up, and which it has not used.
        self.looked_up: Set[str] = set()
        self.add_experiment(EXPERIMENT_ID, experiment_name, 0)
        self._fold: Dict[str, Callable[[Body, Body], None]] = {
            "experiments/create": self._create_experiment,
            "experiments/set-experiment-tag": self._experiment_tag,
            "experiments/delete-experiment-tag": self._delete_experiment_tag,
            "runs/create": self._create_run,
            "runs/update": self._update_run,
            "runs/delete": lambda b, a: setattr(self.run(b), "active", False),
            "runs/restore": lambda b, a: setattr(self.run(b), "active", True),
            "runs/log-metric": lambda b, a: self._metric(self.run(b), b),
            "runs/log-parameter": lambda b, a: self._params(self.run(b), [b]),
            "runs/set-tag": lambda b, a: self._tags(self.run(b), [b]),
            "runs/delete-tag": lambda b, a: self._delete_tag(self.run(b), b["key"]),
            "runs/log-batch": self._batch,
            "runs/log-model": self._model_history,
            "runs/log-inputs": self._inputs,
            "runs/outputs": lambda b, a: self.run(b).models_out.update(_by_model(b)),
            "logged-models": self._create_model,
            "traces": self._trace,
        }

    # -- look-ups

    def run(self, body: Body) -> LoggedRun:
        """Return the run that a request names."""
        run_id = body.get("run_id") or body.get("run_uuid")
        if run_id not in self.runs:
            raise missing(f"Run with id={run_id} not found")
        return self.runs[str(run_id)]

    def model(self, model_id: str) -> Body:
        """Return a logged model."""
        if model_id not in self.models:
            raise missing(f"Logged model with ID '{model_id}' not found.")
        return self.models[model_id]

    def experiment(self, experiment_id: Any) -> Body:
        """Return an experiment."""
        if experiment_id not in self.experiments:
            raise missing(f"No Experiment with id={experiment_id} exists")
        return self.experiments[str(experiment_id)]

    def used_experiments(self) -> List[Body]:
        """Return the experiments that the job has made or used."""
        return [one for key, one in self.experiments.items() if key not in self.looked_up]

    def has_experiment(self, experiment_id: Any) -> bool:
        """Return whether the job has made or used an experiment."""
        return experiment_id in self.experiments and experiment_id not in self.looked_up

    def uri(self, *parts: str) -> str:
        """Return the ``file:`` URI of a path below the artifact folder."""
        return Path(self.artifacts, *parts).as_uri()

    # -- the fold

    def check(self, op: str, body: Body) -> None:
        """Refuse a change that is not allowed in this state; does not change the state."""
        needs_active = op.startswith("runs/") and op not in ("runs/create", "runs/restore", "runs/delete")
        if needs_active and not self.run(body).active:
            raise invalid(f"The run {self.run(body).run_id} must be in the 'active' state. It is deleted.")
        if op in ("runs/log-parameter", "runs/log-batch"):
            run = self.run(body)
            for param in (body.get("params") or []) if op == "runs/log-batch" else [body]:
                old, new = run.params.get(param["key"]), param.get("value", "")
                if old is not None and old != new:
                    raise invalid(
                        "Changing param values is not allowed. Param with "
                        f"key='{param['key']}' was already logged with value='{old}' for "
                        f"run ID='{run.run_id}'. Attempted logging new value '{new}'."
                    )
        elif op.startswith("runs/") and op != "runs/create":
            run = self.run(body)
            if op == "runs/delete-tag" and body.get("key") not in run.tags:
                raise missing(f"No tag with name: {body.get('key')} in run with id {run.run_id}", is_part=True)
            if op == "runs/log-model":
                json.loads(body["model_json"])
        elif op in ("experiments/set-experiment-tag", "logged-models"):
            self.experiment(body.get("experiment_id"))
        elif op == "experiments/delete-experiment-tag":
            experiment, key = self.experiment(body.get("experiment_id")), body.get("key")
            if all(tag["key"] != key for tag in experiment["tags"]):
                place = f"in experiment with id {experiment['experiment_id']}"
                raise missing(f"No tag with name: {key} {place}", is_part=True)
        elif op.startswith("logged-models/"):
            self._check_model(op.split("/"))
        elif op in sink_registry.CHANGES:
            self.registry.check(op, body)

    def _check_model(self, path: List[str]) -> None:
        tags = self.model(path[1])["info"]["tags"]
        if path[2:3] == ["tags"] and len(path) == 4 and all(tag["key"] != path[3] for tag in tags):
            raise missing(f"No tag with key {path[3]!r} found for model with ID {path[1]!r}.", is_part=True)

    def apply(self, op: str, body: Body, added: Body) -> None:
        """Apply one journal record. `added` holds the ids and times that the sink chose."""
        self.looked_up.difference_update(experiments_of(op, body))
        if op in self._fold:
            self._fold[op](body, added)
        elif op.startswith("logged-models/"):
            self._change_model(op.split("/"), body, added)
        elif op.startswith("traces/"):
            change_traces(self.traces, op, body)
        elif op in sink_registry.CHANGES:
            self.registry.apply(op, body, added)

    def add_experiment(self, experiment_id: str, name: str, t: int, tags: Optional[List[Body]] = None) -> None:
        """Add an experiment."""
        self.experiments[experiment_id] = {
            "experiment_id": experiment_id,
            "name": name,
            "lifecycle_stage": "active",
            "artifact_location": self.uri(),
            "tags": list(tags or []),
            "creation_time": t,
            "last_update_time": t,
        }

    def add_run(self, run_id: str, experiment: str, name: str, user: str, start: int) -> LoggedRun:
        """Add a run."""
        run = self.runs[run_id] = LoggedRun(run_id, experiment, name, user, start)
        return run

    def _create_experiment(self, body: Body, added: Body) -> None:
        self.add_experiment(added["id"], body["name"], added["t"], body.get("tags"))
        self.looked_up.discard(added["id"])
        if added.get("looked_up"):
            self.looked_up.add(added["id"])

    def _experiment_tag(self, body: Body, added: Body) -> None:
        tags = {tag["key"]: tag for tag in self.experiments[body["experiment_id"]]["tags"]}
        tags[body["key"]] = {"key": body["key"], "value": body.get("value", "")}
        self.experiments[body["experiment_id"]]["tags"] = list(tags.values())

    def _delete_experiment_tag(self, body: Body, added: Body) -> None:
        experiment = self.experiments[body["experiment_id"]]
        experiment["tags"] = [tag for tag in experiment["tags"] if tag["key"] != body["key"]]

    def _create_run(self, body: Body, added: Body) -> None:
        start = int(body.get("start_time") or added["t"])
        experiment = str(body.get("experiment_id") or EXPERIMENT_ID)
        run = self.add_run(added["id"], experiment, added["name"], body.get("user_id") or "", start)
        self._tags(run, body.get("tags") or [])
        self._follow(run, added)

    def _follow(self, run: LoggedRun, added: Body) -> None:
        if added.get("follows"):
            self.followed[added["follows"]] = run.run_id

    def _update_run(self, body: Body, added: Body) -> None:
        run = self.run(body)
        if added.get("joined"):
            kind, rank = added["joined"]
            self.joined.add((kind, rank))
            self._follow(run, added)
        run.experiment = str(body.get("experiment_id") or run.experiment)
        run.status = body.get("status") or run.status
        if body.get("end_time"):
            run.end = int(body["end_time"])
        elif body.get("status") == "RUNNING":
            run.end = None
        if body.get("run_name"):
            run.name = run.tags["mlflow.runName"] = body["run_name"]

    def _metric(self, run: LoggedRun, point: Body) -> None:
        key, value = point["key"], float(point["value"])
        step, time = int(point.get("step") or 0), int(point.get("timestamp") or 0)
        if key in run.metrics:
            run.metrics[key].offer(step, time, value)
        else:
            run.metrics[key] = LatestPoint(step, time, value)
        model = self.models.get(point.get("model_id") or "")
        if model is not None:
            # one point for each data set; MLflow's page shows no more, and its store sorts by the latest in time
            points, place = model["metrics"], (key, point.get("dataset_name"), point.get("dataset_digest"))
            if place not in points or _place(point)[::-1] >= _place(points[place])[::-1]:
                points[place] = dict(point)

    def _params(self, run: LoggedRun, params: List[Body]) -> None:
        for param in params:
            run.params[param["key"]] = param.get("value", "")

    def _tags(self, run: LoggedRun, tags: List[Body]) -> None:
        for tag in tags:
            run.tags[tag["key"]] = tag.get("value", "")
            if tag["key"] == "mlflow.runName":
                run.name = tag.get("value", "")

    def _delete_tag(self, run: LoggedRun, key: str) -> None:
        run.tags.pop(key, None)

    def _batch(self, body: Body, added: Body) -> None:
        run = self.run(body)
        for point in body.get("metrics") or []:
            self._metric(run, point)
        if "source" in added:
            self.metric_sources.note(added, body["metrics"])
        self._params(run, body.get("params") or [])
        self._tags(run, body.get("tags") or [])

    def _model_history(self, body: Body, added: Body) -> None:
        run = self.run(body)  # MLflow 2.x only; its server appends to this tag
        history = json.loads(run.tags.get("mlflow.log-model.history", "[]"))
        history.append(json.loads(body["model_json"]))
        run.tags["mlflow.log-model.history"] = json.dumps(history)

    def _inputs(self, body: Body, added: Body) -> None:
        run = self.run(body)
        existing = {(d["dataset"].get("name"), d["dataset"].get("digest")) for d in run.datasets}
        for entry in body.get("datasets") or []:
            if (entry["dataset"].get("name"), entry["dataset"].get("digest")) not in existing:
                run.datasets.append(entry)
        run.models_in.update(_by_model(body))

    def _run_of_model(self, model_id: str) -> str:
        model = self.models.get(model_id)
        return "" if model is None else str(model["info"]["source_run_id"])

    def _create_model(self, body: Body, added: Body) -> None:
        info = {
            "model_id": added["id"],
            "experiment_id": body["experiment_id"],
            "name": added["name"],
        }
        info.update(creation_timestamp_ms=added["t"], last_updated_timestamp_ms=added["t"])
        info["artifact_uri"] = self.uri("models", added["id"], "artifacts")
        info.update(status="LOGGED_MODEL_PENDING", model_type=body.get("model_type") or "")
        info.update(source_run_id=body.get("source_run_id") or "", tags=list(body.get("tags") or []))
        self.model_ids.add(added["id"])
        self.models[added["id"]] = {
            "info": info,
            "params": list(body.get("params") or []),
            "metrics": {},
        }

    def _change_model(self, path: List[str], body: Body, added: Body) -> None:
        model = self.model(path[1])
        if path[2:] == ["delete"]:
            del self.models[path[1]]
        elif len(path) == 2:
            model["info"]["status"] = body.get("status") or "LOGGED_MODEL_READY"
            model["info"]["last_updated_timestamp_ms"] = added["t"]
        elif path[2] == "params":
            model["params"] += body.get("params") or []
        elif path[2] == "tags" and len(path) == 4:
            model["info"]["tags"] = [tag for tag in model["info"]["tags"] if tag["key"] != path[3]]
        elif path[2] == "tags":
            tags = {tag["key"]: tag for tag in model["info"]["tags"]}
            tags.update({tag["key"]: tag for tag in body.get("tags") or []})
            model["info"]["tags"] = list(tags.values())

    def _trace(self, body: Body, added: Body) -> None:
        key = "mlflow.artifactLocation"
        if "trace" in body:  # MLflow 3.x
            info = dict(body["trace"]["trace_info"])
            location = self.uri("traces", info["trace_id"], "artifacts")
            info["tags"] = dict(info.get("tags") or {}, **{key: location})
            self.traces[info["trace_id"]] = info
        else:  # MLflow 2.x
            tag = {"key": key, "value": self.uri("traces", added["id"], "artifacts")}
            tags = list(body.get("tags") or []) + [tag]
            self.traces[added["id"]] = dict({"status": "IN_PROGRESS"}, **dict(body, request_id=added["id"], tags=tags))


def _dataset_column(entry: Body, key: str) -> Any:
    if key == "context":
        return next((tag["value"] for tag in entry.get("tags") or [] if tag["key"] == "mlflow.data.context"), None)
    return entry["dataset"].get(key)


def _by_model(body: Body) -> Dict[str, Body]:
    return {model["model_id"]: model for model in body.get("models") or []}


def experiments_of(op: str, body: Body) -> List[str]:
    """Return the ids of the experiments that a change puts something into."""
    trace = (body.get("trace") or {}).get("trace_info") or body if op == "traces" else {}
    named = (body.get("experiment_id"), experiment_of(trace))
    return [str(one) for one in named if one]


def _place(point: Body) -> Tuple[int, int]:
    return int(point.get("step") or 0), int(point.get("timestamp") or 0)


#: Changes that create an object: repeated, they would create it twice.
_CREATING = (
    "runs/create",
    "logged-models",
    "traces",
    "experiments/create",
    "registered-models/create",
    "model-versions/create",
)

#: Last journal lines whose response a killed sink may not have sent: one for each open connection.
_UNANSWERED = 64


class Recorder:
    """State and journal of one job, changed together under one lock.

    Parameters
    ----------
    journal
        File for the records (``metrics/rank-0.jsonl``).
    artifacts
        Folder below which scripts write artifacts and models.
    run_id
        Id of the job's MLflow run: 32 hex digits, chosen by amltrain.
    run_name, experiment_name
        Values that the script sees.
    on_note
        Called with each note for the agent's log.

    Raises
    ------
    OSError
        The journal cannot be opened.
    """

    def __init__(
        self,
        *,
        journal: str,
        artifacts: str,
        run_id: str,
        run_name: str,
        experiment_name: str,
        on_note: Callable[[str], None],
    ) -> None:
        self.run_id = run_id
        self.folder = os.path.dirname(os.path.dirname(os.path.abspath(journal)))
        self.state = State(artifacts, experiment_name)
        self._on_note = on_note
        self._noted: Set[str] = set()
        self.lock = threading.Lock()
        self._unanswered: List[Record] = []
        self.journal = SinkJournal(journal, self.note_once)
        os.makedirs(artifacts, mode=0o700, exist_ok=True)
        self.journal.recover(self._replay)
        if self.journal.seq == 0:
            added = {
                "id": run_id,
                "exp_id": EXPERIMENT_ID,
                "exp_name": experiment_name,
                "name": run_name,
            }
            t = now_ms()
            self.journal.append("init", {}, added, t)
            self._begin(added, t)

    def attempt(self) -> int:
        """Return the number of the job's current attempt, from 1."""
        try:
            value = (read_state(self.folder) or {}).get("attempt")
        except (AgentError, OSError):  # the job has damaged the file
            return 1
        return value if isinstance(value, int) and value > 0 else 1

    def _replay(self, record: Record) -> None:
        added = record.get("a") or {}
        if record["op"] == "init":
            self._begin(added, int(record["t"]))
            return
        try:
            self.state.apply(record["op"], record["b"], added)
        except Refusal as error:  # the line that created the named object is damaged
            raise ValueError(error.message) from error
        self._unanswered = [*self._unanswered[1 - _UNANSWERED :], record]

    def _begin(self, added: Body, t: int) -> None:
        self.state.add_run(added["id"], added["exp_id"], added["name"], "", t)
        self.state.experiments[EXPERIMENT_ID].update(creation_time=t, last_update_time=t)

    def note_once(self, text: str) -> None:
        """Log a sentence, once."""
        if text not in self._noted and len(self._noted) < 1000:
            self._noted.add(text)
            self._on_note(text)

    def flush(self) -> None:
        """Write the lines that a full disk has held back."""
        with self.lock:
            self.journal.flush()

    def close(self) -> None:
        """Write, sync and close. Later requests get no response."""
        self.lock.acquire()
        self.journal.close()

    # -- changes

    def fit(self, op: str, body: Body) -> Body:
        """Return a change with values within the store's limits; see :func:`.validation.fit`."""
        return fit(op, body, self.note_once)

    def change(self, op: str, body: Body, added: Body) -> Body:
        """Check, journal and apply one change; return its chosen ids, also for a repeated request."""
        body = self.fit(op, body)
        with self.lock:
            known = self.repeated(op, body)
            if known is not None:
                return known
            self.state.check(op, body)
            testing.hit("sink_before_write")
            # appending never fails; applied first, a body that cannot be applied is not journaled
            self.state.apply(op, body, added)
            self.journal.append(op, body, added, added.get("t") or now_ms())
        testing.hit("sink_after_write")
        return added

    def repeated(self, op: str, body: Body) -> Optional[Body]:
        """Return the response of a request that a killed sink has journaled without answering it.

        A client sends such a request again unchanged. Idempotent changes are simply
        applied again; points carry a time in ms, so an equal one is the same one; a
        created object counts as unanswered until a later line names it.
        """
        if op == "runs/log-metric" and not body.get("model_id"):
            last = self.state.run(body).metrics.get(body["key"])
            step, time = _place(body)
            if last and (step, time) == (last.step, last.time) and same(float(body["value"]), last.value):
                return {}
        points = op == "runs/log-metric" or (op == "runs/log-batch" and bool(body.get("metrics")))
        if not self._unanswered or not (points or op in _CREATING):
            return None
        for index, record in enumerate(self._unanswered):
            if record["op"] != op or record["b"] != body:
                continue
            added: Body = record.get("a") or {}
            later = self._unanswered[index + 1 :]
            if op in _CREATING and any(_names(item, str(added.get("id"))) for item in later):
                continue
            del self._unanswered[index]
            return added
        return None

    def unanswered_join(self, request: str) -> bool:
        """Return whether a killed sink took this request as the start of the job's run."""
        with self.lock:
            for index, record in enumerate(self._unanswered):
                if (record.get("a") or {}).get("request") == request:
                    del self._unanswered[index]
                    return True
        return False


def _names(record: Record, object_id: str) -> bool:
    return object_id in record["op"] or object_id in str(record["b"])
