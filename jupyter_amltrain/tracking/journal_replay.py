"""Replays journal records into the rows of a store. Each record may be replayed any number of times."""

from __future__ import annotations

import json
import math
import sys
import uuid
from typing import Any

from jupyter_amltrain.agent.mlflow.journal import clean
from jupyter_amltrain.agent.mlflow.latest import LatestPoint
from jupyter_amltrain.agent.mlflow.validation import STATUSES
from jupyter_amltrain.tracking.mlflow_private import Rows
from jupyter_amltrain.tracking.mlflow_store import TrackingStore

Record = dict[str, Any]

#: MLflow's limits; SQLite has none.
_NAME, _PARAM, _TAG = 250, 6000, 8000


class Rejected(Exception):
    """A record that cannot become rows; the other records are imported."""


class Replay:
    """Applies records within one transaction.

    Parameters
    ----------
    store
        The open store.
    rows
        The transaction; the caller commits.
    experiments
        Sink experiment id -> store experiment id.
    main
        The sink's experiment id of the job's own run.
    """

    def __init__(self, store: TrackingStore, rows: Rows, experiments: dict[str, int], main: str) -> None:
        self.store = store
        self.rows = rows
        self.experiments = experiments
        self.main = main
        self._runs: dict[str, int] = {}
        self._metrics: list[Record] = []
        self._model_metrics: list[Record] = []
        #: Runs whose script logged under ``system/`` itself.
        self.system_runs: set[str] = set()

    def record(self, record: Record) -> None:
        """Apply one record.

        Raises
        ------
        Rejected
            The record names an unknown run or model, or its form is unknown.
        """

        op, body, added = record["op"], record["b"], record.get("a") or {}
        head = op.split("/", 1)[0]
        try:
            if op == "init":
                self.new_run(added["id"], self.experiment_of(added["exp_id"]), added["name"], record["t"])
            elif op == "runs/create":
                self._create_run(body, added, record["t"])
            elif head == "runs":
                self._run_op(op, body, record["t"])
            elif head == "logged-models" and self.store.has_logged_models:
                change_model(self, op, body, added)
            elif op == "experiments/set-experiment-tag":
                experiment = self.experiment_of(body["experiment_id"])
                self.rows.set_experiment_tag(experiment, body["key"][:_NAME], body.get("value") or "")
            elif op == "experiments/delete-experiment-tag":
                self.rows.remove_experiment_tag(self.experiment_of(body["experiment_id"]), body["key"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Rejected(f"{op}: {type(error).__name__}: {error}") from error

    def experiment_of(self, sink_id: Any) -> int:
        """Return the store's id of one of the sink's experiments."""
        return self.experiments[str(sink_id or self.main)]

    def _run(self, run_id: Any) -> Any:
        """Return the row of a run; raise :class:`Rejected` without one."""
        return _known(self.rows.run(run_id), "run", run_id)

    def _experiment_of_run(self, run_id: Any) -> int:
        if run_id not in self._runs:
            self._runs[run_id] = int(self._run(run_id).experiment_id)
        return self._runs[run_id]

    # -- runs

    def new_run(self, run_id: str, experiment: int, name: str, start: int, user: str = "") -> None:
        """Add a run, unless it exists. `start`: ms since 1970."""
        if self.rows.run(run_id) is None:
            artifacts = self.store.location(experiment, run_id)
            self.rows.add_run(run_id, experiment, clean(name)[:_NAME], start, user, artifacts)
        self.tag(run_id, "mlflow.runName", name)

    def tag(self, run_id: str, key: str, value: Any) -> None:
        """Set a tag of a run."""
        text = clean(str(value if value is not None else ""))[:_TAG]
        self.rows.set_tag(run_id, clean(key)[:_NAME], text)
        if key == "mlflow.runName":
            self._run(run_id).name = text[:_NAME]

    def param(self, run_id: str, key: str, value: Any) -> None:
        """Set a parameter of a run."""
        text = clean(str(value if value is not None else ""))[:_PARAM]
        self.rows.set_param(run_id, clean(key)[:_NAME], text)

    def _create_run(self, body: Record, added: Record, t: int) -> None:
        run_id, start = added["id"], int(body.get("start_time") or t)
        experiment = self.experiment_of(body.get("experiment_id"))
        self.new_run(run_id, experiment, added["name"], start, body.get("user_id") or "")
        for item in body.get("tags") or []:
            self.tag(run_id, item["key"], item.get("value"))

    def _run_op(self, op: str, body: Record, t: int) -> None:

        run_id = body.get("run_id") or body.get("run_uuid")
        experiment = self._experiment_of_run(run_id)
        run_id = str(run_id)
        if op == "runs/log-metric":
            self._metric(run_id, experiment, body, t)
        elif op == "runs/log-batch":
            for point in body.get("metrics") or []:
                self._metric(run_id, experiment, point, t)
            for item in body.get("params") or []:
                self.param(run_id, item["key"], item.get("value"))
            for item in body.get("tags") or []:
                self.tag(run_id, item["key"], item.get("value"))
        elif op == "runs/log-parameter":
            self.param(run_id, body["key"], body.get("value"))
        elif op == "runs/set-tag":
            self.tag(run_id, body["key"], body.get("value"))
        elif op == "runs/delete-tag":
            self.rows.remove_tag(run_id, body["key"])
        elif op == "runs/update":
            self._update_run(run_id, body)
        elif op in ("runs/delete", "runs/restore"):
            row, deleted = self._run(run_id), op == "runs/delete"
            row.lifecycle_stage = "deleted" if deleted else "active"
            row.deleted_time = t if deleted else None
        elif op == "runs/log-model":
            append_history(self, run_id, body)
        elif op == "runs/log-inputs":
            for entry in body.get("datasets") or []:
                self._dataset(run_id, experiment, entry)
            for model in body.get("models") or []:
                self._link(("RUN_INPUT", run_id, "MODEL_INPUT", model["model_id"]))
        elif op == "runs/outputs":
            for model in body.get("models") or []:
                ends = ("RUN_OUTPUT", run_id, "MODEL_OUTPUT", model["model_id"])
                self._link(ends, int(model.get("step") or 0))

    def _update_run(self, run_id: str, body: Record) -> None:
        row = self._run(run_id)
        if body.get("experiment_id"):
            row.experiment_id = self._runs[run_id] = self.experiment_of(body["experiment_id"])
        if body.get("status"):
            if body["status"] not in STATUSES:
                raise Rejected(f"runs/update: MLflow knows no status {body['status']!r}")
            row.status = body["status"]
        if body.get("end_time"):
            row.end_time = int(body["end_time"])
        elif body.get("status") == "RUNNING":
            row.end_time = None
        if body.get("run_name"):
            self.tag(run_id, "mlflow.runName", body["run_name"])

    def _dataset(self, run_id: str, experiment: int, entry: Record) -> None:
        dataset = entry["dataset"]
        name, digest = dataset["name"], dataset["digest"]
        dataset_id = self.rows.dataset(
            experiment,
            _derived("dataset", str(experiment), name, digest),
            name=name,
            digest=digest,
            dataset_source_type=dataset.get("source_type", ""),
            dataset_source=dataset.get("source", ""),
            dataset_schema=dataset.get("schema"),
            dataset_profile=dataset.get("profile"),
        )
        link = self._link(("DATASET", dataset_id, "RUN", run_id))
        for item in entry.get("tags") or []:
            self.rows.set_link_tag(link, item["key"], item.get("value") or "")

    def _link(self, ends: tuple[str, str, str, str], step: int = 0) -> str:
        return self.rows.link(_derived(*ends), ends, step)

    # -- metrics

    def _metric(self, run_id: str, experiment: int, point: Record, t: int) -> None:
        moment, step = int(point.get("timestamp") or t), int(point.get("step") or 0)
        row = self.point(run_id, point["key"], float(point["value"]), moment, step)
        value = row["value"]
        if row["key"].startswith("system/"):
            self.system_runs.add(run_id)
        if point.get("model_id") and self.store.has_logged_models:
            self._model_metrics.append(
                {
                    "model_id": point["model_id"],
                    "metric_name": row["key"],
                    "metric_timestamp_ms": row["timestamp"],
                    "metric_step": row["step"],
                    "metric_value": value,
                    "experiment_id": experiment,
                    "run_id": run_id,
                    "dataset_name": point.get("dataset_name"),
                    "dataset_digest": point.get("dataset_digest"),
                    "dataset_uuid": None,
                }
            )

    def point(self, run_id: str, key: str, value: float, timestamp: int, step: int) -> Record:
        """Collect one point of a metric for :meth:`flush`; `timestamp` in ms since 1970."""
        is_nan, stored = _storable(value)
        row = {"run_uuid": run_id, "key": key[:_NAME], "value": stored, "is_nan": is_nan}
        row.update(timestamp=timestamp, step=step)
        self._metrics.append(row)
        return row

    def flush(self) -> None:
        """Write the collected points: thousands in one statement."""
        self.rows.flush()
        newest = self._newest()  # before the rows: it tells repeated points by those that are stored
        self.rows.add_points(self._metrics)
        self.rows.add_model_points(self._model_metrics)
        for (run_id, key), latest in newest.items():
            self.rows.set_latest(run_id, key, _columns(latest))
        self._metrics, self._model_metrics = [], []

    def _newest(self) -> dict[tuple[str, str], LatestPoint]:
        """Return the values of the metrics that the collected points change."""
        known: dict[tuple[str, str], LatestPoint] = {}
        changed: dict[tuple[str, str], LatestPoint] = {}
        for row in self._metrics:
            ends, value = (row["run_uuid"], row["key"]), math.nan if row["is_nan"] else row["value"]
            if ends not in known:
                stored = self._stored(*ends)
                if stored is None:
                    known[ends] = changed[ends] = LatestPoint(row["step"], row["timestamp"], value)
                    continue
                known[ends] = stored
            if known[ends].offer(row["step"], row["timestamp"], value):
                changed[ends] = known[ends]
        return changed

    def _stored(self, run_id: str, key: str) -> LatestPoint | None:
        """Return the value of a metric in the store, with the other values of its step and time."""
        old = self.rows.latest(run_id, key)
        if old is None:
            return None
        equals = tuple(_value(row) for row in self.rows.points(run_id, key, old.step, old.timestamp))
        return LatestPoint(int(old.step), int(old.timestamp), _value(old), equals)


def _known(row: Any, what: str, name: Any) -> Any:
    if row is None:
        raise Rejected(f"{what} {name} is not in the store")
    return row


def _storable(value: float) -> tuple[bool, float]:
    """Return (is NaN, value) in the form of MLflow's SQL store."""
    if math.isnan(value):
        return True, 0.0
    if math.isinf(value):  # SQL has no infinity; MLflow stores the largest float
        return False, math.copysign(sys.float_info.max, value)
    return False, value


def _derived(*parts: str) -> str:
    """Return a UUID that is the same in every import of the same object."""
    return uuid.uuid5(uuid.NAMESPACE_URL, "amltrain:" + json.dumps(parts)).hex


def _value(row: Any) -> float:
    """Return the value of a row of the store."""
    return math.nan if row.is_nan else float(row.value)


def _columns(latest: LatestPoint) -> Record:
    """Return the columns of a value in the form of MLflow's SQL store."""
    is_nan, stored = _storable(latest.value)
    return {"value": stored, "is_nan": is_nan, "step": latest.step, "timestamp": int(latest.time)}


def change_model(replay: Replay, op: str, body: Record, added: Record) -> None:
    """Replay one record of a logged model."""
    if op == "logged-models":
        _create_model(replay, body, added)
        return
    path = op.split("/")
    row = _known(replay.rows.model(path[1]), "model", path[1])
    if path[2:] == ["delete"]:
        replay.rows.delete_model(row, added["t"])
        return
    if len(path) == 4:
        replay.rows.remove_model_tag(path[1], path[3])
        return
    if len(path) > 2:
        _model_pairs(replay, path[1], int(row.experiment_id), body)
        return
    replay.rows.set_model_status(row, body.get("status") or "READY", added["t"])


def _create_model(replay: Replay, body: Record, added: Record) -> None:
    model_id, experiment = added["id"], replay.experiment_of(body.get("experiment_id"))
    if replay.rows.model(model_id) is None:
        replay.rows.add_model(
            model_id,
            experiment,
            replay.store.location(experiment, "models", model_id),
            added["t"],
            name=added["name"],
            model_type=body.get("model_type"),
            source_run_id=body.get("source_run_id"),
        )
    _model_pairs(replay, model_id, experiment, body)


def _model_pairs(replay: Replay, model_id: str, experiment: int, body: Record) -> None:
    for kind in ("param", "tag"):
        for item in body.get(kind + "s") or []:
            replay.rows.set_model_pair(kind, model_id, experiment, item["key"], item.get("value") or "")


def append_history(replay: Replay, run_id: str, body: Record) -> None:
    """Append to the tag with MLflow 2.x's models of a run."""
    key = "mlflow.log-model.history"  # what MLflow 2.x shows as the run's models
    history = json.loads(replay.rows.tag(run_id, key) or "[]")
    model = json.loads(body["model_json"])
    if model not in history:
        replay.rows.set_tag(run_id, key, json.dumps([*history, model]))
