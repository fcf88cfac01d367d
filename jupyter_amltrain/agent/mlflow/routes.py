"""Calls of MLflow's REST interface that a job makes, by route."""

import hashlib
import itertools
import json
import math
import os
import re
import struct
import sys
import threading
import uuid
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from .. import sink_notes
from . import experiment_search, search
from .followed import PARENT, follow
from .journal import now_ms
from .model_search import matching_models, model_view
from .project_search import NOT_YET, ProjectSearch
from .project_server import MlflowCall
from .sink_registry import change_of, refuse_own
from .sink_state import EXPERIMENT_ID, LoggedRun, Recorder, State
from .sink_traces import matching_traces
from .validation import Body, Refusal, invalid, missing


def run_view(state: State, run: LoggedRun) -> Body:
    """Return MLflow's ``Run`` message."""
    info: Body = {"run_id": run.run_id, "run_uuid": run.run_id, "run_name": run.name}
    info.update(experiment_id=run.experiment, user_id=run.user, status=run.status, start_time=run.start)
    info["lifecycle_stage"] = "active" if run.active else "deleted"
    info["artifact_uri"] = state.uri("runs", run.run_id, "artifacts")
    if run.end:
        info["end_time"] = run.end
    data = {
        "metrics": [
            {"key": key, "value": _number(point.value), "timestamp": int(point.time), "step": point.step}
            for key, point in run.metrics.items()
        ],
        "params": _pairs(run.params),
        "tags": _pairs(run.tags),
    }
    inputs = {"dataset_inputs": run.datasets, "model_inputs": list(run.models_in.values())}
    outputs = {"model_outputs": list(run.models_out.values())}
    return {"info": info, "data": data, "inputs": inputs, "outputs": outputs}


def matching_runs(state: State, body: Body) -> List[Body]:
    """Return the job's runs that ``runs/search`` asks for, in order, as MLflow's ``Run`` messages."""
    view = body.get("run_view_type") or "ACTIVE_ONLY"
    runs = [
        run
        for run in state.runs.values()
        if run.experiment in (body.get("experiment_ids") or [])
        and (view == "ALL" or run.active == (view == "ACTIVE_ONLY"))
    ]
    runs = search.select(runs, body.get("filter"), lambda run: run.column)
    runs.sort(key=lambda run: (-run.start, run.run_id))
    runs = search.ordered(runs, body.get("order_by") or [], lambda run: run.column)
    return [run_view(state, run) for run in runs]


def _once(points: Iterable[Body]) -> Iterator[Body]:
    """Yield points of a metric, none twice: as in a store of MLflow."""
    seen: Set[bytes] = set()
    for point in points:
        step, time, value = int(point.get("step") or 0), int(point.get("timestamp") or 0), point["value"]
        place = struct.pack("qqd", step, time, float(value))
        if place not in seen:
            seen.add(place)
            yield {"key": point["key"], "value": value, "timestamp": time, "step": step}


def _number(value: float) -> Any:
    """Return a number as JSON of protobuf has it: what is not finite is a text."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _experiment_id(name: Any) -> str:
    """Return the id in the job of an experiment by its name."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, str(name)).int % 10**15)


def _pairs(values: Dict[str, str]) -> List[Body]:
    return [{"key": key, "value": value} for key, value in values.items()]


#: Tag that MLflow's client sends with a new run of autologging.
AUTOLOGGING = "mlflow.autologging"
#: Tag of ``supervise/mlflow_hook.py``: ``script`` for a run that the script itself starts.
START = "amltrain.start"

_API = re.compile(r"/(?:ajax-)?api/[23]\.[01]/mlflow/(.+)$")

#: Code of a call that the job's own runs and models do not have, and the codes after which the project may know more.
_UNKNOWN = "ENDPOINT_NOT_FOUND"
_ELSEWHERE = (_UNKNOWN, "RESOURCE_DOES_NOT_EXIST")

#: Changes with an empty response.
_PLAIN = (
    "runs/log-metric",
    "runs/log-parameter",
    "runs/log-batch",
    "runs/set-tag",
    "runs/delete-tag",
    "runs/log-model",
    "runs/log-inputs",
    "runs/outputs",
    "runs/delete",
    "runs/restore",
    "experiments/set-experiment-tag",
    "experiments/delete-experiment-tag",
)


#: Changes of an experiment that only the project's store makes.
_EXPERIMENT_CHANGES = ("experiments/update", "experiments/delete", "experiments/restore")

#: Calls for a trace of the job.
_TRACE = re.compile(r"traces/[^/]+(/info|/tags)?$")

#: Most runs of a page.
MAX_RUNS = 50_000

#: Searches of the registry, with the name of the list in their response and the size of a page.
_SEARCHES = {
    "registered-models/search": ("registered_models", 100),
    "model-versions/search": ("model_versions", 10_000),
}


class Sink:
    """MLflow's routes over a recorder; thread-safe.

    Parameters
    ----------
    project
        The store of the project, where the job may ask for what is not its own.
    """

    def __init__(self, recorder: Recorder, project: Optional[ProjectSearch] = None) -> None:
        self.recorder, self._project = recorder, project
        self._starting = threading.Lock()  #: held while a new run is checked for being the first
        #: Run, metric and first point of the page that a client asks for next -> that point and those after it.
        self._histories: Dict[Tuple[str, str, int], Iterator[Body]] = {}

    @property
    def _state(self) -> State:
        return self.recorder.state

    def handle(
        self, method: str, path: str, body: Body, rank: Callable[[], str] = str, request: Optional[MlflowCall] = None
    ) -> Any:
        """Handle one call; the project answers for what the job does not have itself.

        Parameters
        ----------
        rank
            Returns the caller's rank in a distributed job, or an empty text.
        request
            The call as it came.

        Raises
        ------
        Refusal
            The call is refused, with MLflow's error code.
        """
        match = _API.match(path)
        try:
            return self._own(method, match.group(1).strip("/") if match else "", path, body, rank)
        except Refusal as refusal:
            is_elsewhere = refusal.code in _ELSEWHERE and not refusal.is_final
            if request is not None and self._project is not None and is_elsewhere:
                self._refuse_own(method, match.group(1) if match else "", body)
                return self._project.forward(request, path, body)
            if refusal.code == _UNKNOWN:
                self.recorder.note_once(
                    f"unknown MLflow call {method} {path}; the script got an error, the run continues"
                )
            raise

    def _refuse_own(self, method: str, op: str, body: Body) -> None:
        """Refuse a call of the project that asks for a run of the job.

        A change may name a run: its id is that of the record.
        """
        if op.startswith(("registered-models/", "model-versions/")):
            return
        if method == "GET" and str(body.get("run_id") or body.get("run_uuid")) in self._state.runs:
            raise Refusal("INVALID_STATE", NOT_YET % "run")

    def _own(self, method: str, op: str, path: str, body: Body, rank: Callable[[], str]) -> Any:
        """Handle a call of the job's own runs and models."""
        if (method, op) == ("POST", "runs/create"):
            return self._create_run(body, rank)
        if (method, op) == ("POST", "amltrain/follow"):
            return follow(self.recorder, body, lambda fields, *there: self._create_run(fields, rank, *there))
        route = _ROUTES.get((method, op))
        if route is not None:
            return route(self, body)
        if op in _EXPERIMENT_CHANGES and self._state.has_experiment(body.get("experiment_id")):
            raise Refusal("INVALID_STATE", NOT_YET % "experiment")
        if op in _PLAIN and method != "GET":
            self.recorder.change(op, body, {})
            return {}
        if op.startswith("logged-models/"):
            return self._logged_model(method, op, body)
        if op.startswith("traces/"):
            return self._trace(method, op, body)
        if op.startswith(("registered-models/", "model-versions/")):
            answer = self._registry(method, op, body)
            if answer is not None:
                return answer
        raise Refusal(
            _UNKNOWN,
            f"{method} {path} is not available inside an amltrain job: its MLflow endpoint records "
            "metrics, params, tags, artifacts, models and traces. Make this call from the notebook "
            "after the run.",
            404,
        )

    def _registry(self, method: str, op: str, body: Body) -> Optional[Body]:
        """Return the response of the model registry; ``None`` for a call that it does not have."""
        registry, change = self._state.registry, change_of(method, op)
        refuse_own(registry, op, body)
        if change:
            added = self.recorder.change(change, body, {"id": uuid.uuid4().hex, "t": now_ms()})
            with self.recorder.lock:
                return registry.answer(change, body, added)
        with self.recorder.lock:
            answer = registry.read(op, body)
            uri = str((answer or {}).get("artifact_uri") or "")
            if answer and uri.startswith("models:/") and uri[len("models:/") :] in self._state.models:
                answer["artifact_uri"] = self._state.model(uri[len("models:/") :])["info"]["artifact_uri"]
        if answer is None or op not in _SEARCHES:
            return answer
        key, count = _SEARCHES[op]
        if self._project is None:
            return search.page(key, answer[key], body, count)
        return self._project.registry(op, body, answer[key], set(registry.models))

    def _experiment_by_name(self, body: Body) -> Body:
        name = body.get("experiment_name")
        with self.recorder.lock:
            for experiment in self._state.experiments.values():
                if experiment["name"] == name:
                    return {"experiment": experiment}
        if not name:
            raise missing("Could not find experiment with name ''")
        # most scripts call this first: asking the project would start its server, which takes seconds
        return {"experiment": self._look_up(_experiment_id(name), name)}

    def _look_up(self, experiment_id: str, name: str) -> Body:
        """Return an experiment by a name that the project may have; there, the record of a run makes it or finds it."""
        added = {"id": experiment_id, "t": now_ms(), "looked_up": True}
        self.recorder.change("experiments/create", {"name": name}, added)
        with self.recorder.lock:
            return self._state.experiment(experiment_id)

    def _find_experiment(self, body: Body) -> bool:
        """Return whether the job has the experiment of a new run; one that only the project has becomes its own."""
        experiment_id = str(body.get("experiment_id") or EXPERIMENT_ID)
        with self.recorder.lock:
            if experiment_id in self._state.experiments:
                return True
        name = None if self._project is None else self._project.name_of(experiment_id)
        if name is not None:
            self._look_up(experiment_id, name)
        return name is not None

    def _create_experiment(self, body: Body) -> Body:
        name = body.get("name")
        with self.recorder.lock:
            known = self.recorder.repeated("experiments/create", body)
            if known is None and any(e["name"] == name for e in self._state.used_experiments()):
                raise Refusal("RESOURCE_ALREADY_EXISTS", f"Experiment(name={name}) already exists.")
        added = {"id": _experiment_id(name), "t": now_ms()}
        return {"experiment_id": (known or self.recorder.change("experiments/create", body, added))["id"]}

    def _create_run(self, body: Body, rank: Callable[[], str], follows: str = "", name_there: str = "") -> Body:
        """Create a run: the first one without a parent becomes the job's own run, others its children.

        The client sends the same request for ``start_run()`` and for a call that logs without a
        run, so the order decides. A run of autologging does not count as the
        script's first: a ``log_metric`` after it belongs to the job's run, too; a ``start_run``
        does not, where the tag :data:`START` tells the two apart. In a
        distributed job each rank has a first run, and in a restarted one each attempt.

        Parameters
        ----------
        follows, name_there
            Id and name of a run of another store, which the new run follows.
        """
        given = {tag["key"]: tag.get("value") for tag in body.get("tags") or []}
        tags = [tag for tag in body.get("tags") or [] if tag["key"] != START]
        body = self.recorder.fit("runs/create", dict(body, tags=tags))
        is_known = self._find_experiment(body)
        if all(tag["key"] != PARENT for tag in tags):
            kind = "autolog" if any(tag["key"] == AUTOLOGGING for tag in tags) else "script"
            if (attempt := self.recorder.attempt()) > 1:  # the script starts again: its first run is the job's, too
                kind = "%s of attempt %d" % (kind, attempt)
            request = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
            number = rank()
            with self._starting:
                if self._is_first(kind, number, request, given.get(START) == "script"):
                    added: Body = {"joined": [kind, number], "request": request}
                    return {"run": self._join(body, dict(added, follows=follows) if follows else added)}
            body = dict(body, tags=[*tags, {"key": PARENT, "value": self.recorder.run_id}])
        if not is_known:
            raise missing(f"No Experiment with id={body['experiment_id']} exists")
        name = body.get("run_name") or given.get("mlflow.runName") or name_there or "run-" + uuid.uuid4().hex[:8]
        added = {"id": uuid.uuid4().hex, "name": name, "t": now_ms()}
        added = self.recorder.change("runs/create", body, dict(added, follows=follows) if follows else added)
        return {"run": self._view(added["id"])}

    def _is_first(self, kind: str, rank: str, request: str, is_started: bool) -> bool:
        joined = self._state.joined
        if is_started and any(known.startswith("autolog") for known, _ in joined):
            first = False  # with a server it is another run than that of autologging
        elif rank:
            first = (kind, rank) not in joined
        else:
            first = all(known != kind for known, _ in joined)
        return first or self.recorder.unanswered_join(request)

    def _join(self, body: Body, added: Body) -> Body:
        update = {"run_id": self.recorder.run_id, "status": "RUNNING"}
        if body.get("experiment_id") not in (None, "", EXPERIMENT_ID):  # set_experiment() before it
            experiment = self._state.experiments.get(body["experiment_id"])
            if experiment is not None:
                update["experiment_id"] = body["experiment_id"]
                sink_notes.set_experiment(self.recorder.folder, experiment["name"])
            else:
                self.recorder.note_once(
                    "the project has no experiment with the id %s; the run stays in its own" % body["experiment_id"]
                )
        self.recorder.change("runs/update", update, added)
        existing = self._state.runs[self.recorder.run_id].tags
        tags = [tag for tag in body.get("tags") or [] if tag["key"] not in existing]
        if body.get("run_name"):
            tags = [tag for tag in tags if tag["key"] != "mlflow.runName"]
            tags.append({"key": "mlflow.runName", "value": body["run_name"]})
        if tags:
            self.recorder.change("runs/log-batch", {"run_id": self.recorder.run_id, "tags": tags}, {})
        return self._view(self.recorder.run_id)

    def _view(self, run_id: str) -> Body:
        with self.recorder.lock:
            return run_view(self._state, self._state.run({"run_id": run_id}))

    def _update_run(self, body: Body) -> Body:
        self.recorder.change("runs/update", body, {})
        return {"run_info": self._view(str(body.get("run_id") or body.get("run_uuid")))["info"]}

    def _search_runs(self, body: Body) -> Body:
        if int(body.get("max_results") or 0) > MAX_RUNS:
            name = "Invalid value %s for parameter 'max_results' supplied" % body["max_results"]
            raise invalid("%s: It must be at most %d" % (name, MAX_RUNS))
        with self.recorder.lock:
            own, ids = matching_runs(self._state, body), set(self._state.runs)
        return search.page("runs", own, body, 1000) if self._project is None else self._project.runs(body, own, ids)

    def _search_experiments(self, body: Body) -> Body:
        with self.recorder.lock:
            everything = self._state.used_experiments()
            own = experiment_search.matching(everything, body)
        if self._project is None:
            return search.page("experiments", own, body, 1000)
        return self._project.experiments(body, own, {experiment["name"] for experiment in everything})

    def _search_models(self, body: Body) -> Body:
        with self.recorder.lock:
            own, ids, runs = matching_models(self._state, body), set(self._state.model_ids), set(self._state.runs)
        return (
            search.page("models", own, body, 100)
            if self._project is None
            else self._project.models(body, own, ids, runs)
        )

    def _history(self, body: Body) -> Body:
        key = str(body.get("metric_key"))
        with self.recorder.lock:
            run_id = self._state.run(body).run_id
        at, count = int(body.get("page_token") or 0), int(body.get("max_results") or sys.maxsize)
        points = self._histories.pop((run_id, key, at), None)
        if points is None:
            points = itertools.islice(_once(self.recorder.journal.history(run_id, key)), at, None)
        answer: Body = {"metrics": list(itertools.islice(points, count))}
        for following in points:
            at += count
            answer["next_page_token"] = str(at)
            # the next page goes on here: from the beginning, a million points would be read forty times
            self._histories = {(run_id, key, at): itertools.chain([following], points)}
            break
        return answer

    def _artifacts(self, body: Body) -> Body:
        with self.recorder.lock:
            run_id = self._state.run(body).run_id
        root = os.path.realpath(os.path.join(self._state.artifacts, "runs", run_id, "artifacts"))
        inside = str(body.get("path") or "").strip("/")
        if ".." in inside.split("/"):
            raise invalid("Invalid path")
        folder = os.path.realpath(os.path.join(root, inside))
        files: List[Body] = []
        if (folder + os.sep).startswith(root + os.sep) and os.path.isdir(folder):
            for entry in sorted(os.scandir(folder), key=lambda item: item.name):
                file: Body = {
                    "path": (inside + "/" + entry.name).strip("/"),
                    "is_dir": entry.is_dir(),
                }
                if not entry.is_dir():
                    file["file_size"] = entry.stat(follow_symlinks=False).st_size
                files.append(file)
        return {"root_uri": self._state.uri("runs", run_id, "artifacts"), "files": files}

    def _create_model(self, body: Body) -> Body:
        added = {
            "id": "m-" + uuid.uuid4().hex,
            "name": body.get("name") or "model-" + uuid.uuid4().hex[:8],
            "t": now_ms(),
        }
        body = dict(body, experiment_id=str(body.get("experiment_id") or EXPERIMENT_ID))
        orphan = not body.get("source_run_id")
        if orphan:  # log_model of MLflow 3 starts no run; in a job the model belongs to the job's run
            body["source_run_id"] = self.recorder.run_id
        added = self.recorder.change("logged-models", body, added)
        if orphan:
            link = {"run_id": self.recorder.run_id, "models": [{"model_id": added["id"], "step": 0}]}
            self.recorder.change("runs/outputs", link, {})
        return {"model": model_view(self._state, added["id"])}

    def _logged_model(self, method: str, op: str, body: Body) -> Body:
        if method == "DELETE" and op.count("/") == 1:
            self.recorder.change(op + "/delete", {}, {"t": now_ms()})
            return {}
        if method != "GET":
            self.recorder.change(op, body, {"t": now_ms()})
        with self.recorder.lock:
            return {"model": model_view(self._state, op.split("/")[1])}

    def _create_trace(self, body: Body) -> Body:
        if "trace" in body:  # MLflow 3.x chose the id itself
            trace_id = body["trace"]["trace_info"]["trace_id"]
            self.recorder.change("traces", body, {"id": trace_id, "t": now_ms()})
            return {"trace": {"trace_info": self._state.traces[trace_id]}}
        added = self.recorder.change("traces", body, {"id": uuid.uuid4().hex, "t": now_ms()})
        return {"trace_info": self._state.traces[added["id"]]}

    def _trace(self, method: str, op: str, body: Body) -> Body:
        trace_id = op.split("/")[1]
        if trace_id == "delete-traces":
            return self._delete_traces(op, body)
        if trace_id in self._state.traces and not _TRACE.match(op):  # as for an assessment
            raise Refusal("INVALID_STATE", NOT_YET % "trace")
        if method != "GET" and trace_id in self._state.traces:
            changed = op.replace("/tags", "/delete-tag") if method == "DELETE" else op
            self.recorder.change(changed, body, {"t": now_ms()})
        trace = self._state.traces.get(trace_id)
        if trace is None:
            raise missing(f"Trace with ID '{trace_id}' not found.")
        return {"trace_info": trace} if "request_id" in trace else {"trace": {"trace_info": trace}}

    def _delete_traces(self, op: str, body: Body) -> Body:
        """Delete traces of the job; those of the project are deleted from the notebook."""
        with self.recorder.lock:
            before = len(self._state.traces)
        self.recorder.change(op, body, {"t": now_ms()})
        with self.recorder.lock:
            return {"traces_deleted": before - len(self._state.traces)}

    def _search_traces(self, body: Body) -> Body:
        """Return the job's traces; those of the project are searched from the notebook."""
        with self.recorder.lock:
            return matching_traces(self._state.traces, body)


_ROUTES: Dict[Tuple[str, str], Callable[[Sink, Body], Any]] = {
    ("GET", "server-info"): lambda sink, body: {
        "store_type": "SqlStore",
        "workspaces_enabled": False,
    },
    ("GET", "experiments/get"): lambda sink, body: {"experiment": sink._state.experiment(body.get("experiment_id"))},
    ("GET", "experiments/get-by-name"): Sink._experiment_by_name,
    ("POST", "experiments/create"): Sink._create_experiment,
    ("POST", "experiments/search"): Sink._search_experiments,
    ("GET", "experiments/search"): Sink._search_experiments,
    ("GET", "runs/get"): lambda sink, body: {"run": sink._view(str(body.get("run_id") or body.get("run_uuid")))},
    ("POST", "runs/update"): Sink._update_run,
    ("POST", "runs/search"): Sink._search_runs,
    ("GET", "metrics/get-history"): Sink._history,
    ("GET", "artifacts/list"): Sink._artifacts,
    ("POST", "logged-models"): Sink._create_model,
    ("POST", "logged-models/search"): Sink._search_models,
    ("POST", "traces"): Sink._create_trace,
    ("POST", "traces/search"): Sink._search_traces,
    ("GET", "traces"): Sink._search_traces,
}
