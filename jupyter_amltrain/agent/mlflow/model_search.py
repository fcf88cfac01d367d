"""Search for logged models: those of the job, and their order among those of the project's store."""

from typing import Any, Callable, List, Optional

from . import search
from .sink_state import State
from .validation import Body, invalid

#: MLflow's states of a logged model, in the order of the numbers that its store sorts by.
_STATES = ("STATUS_UNSPECIFIED", "PENDING", "READY", "UPLOAD_FAILED")

#: Attributes in filters and orders, with their fields in MLflow's ``LoggedModel`` message.
_FIELDS = {
    "artifact_location": "artifact_uri",
    "creation_time": "creation_timestamp_ms",
    "creation_timestamp": "creation_timestamp_ms",
    "creation_timestamp_ms": "creation_timestamp_ms",
    "experiment_id": "experiment_id",
    "last_updated_timestamp": "last_updated_timestamp_ms",
    "last_updated_timestamp_ms": "last_updated_timestamp_ms",
    "model_id": "model_id",
    "model_type": "model_type",
    "name": "name",
    "source_run_id": "source_run_id",
    "status": "status",
    "status_message": "status_message",
}

COLUMNS = search.SearchColumns(
    {"attributes": "attribute", "metrics": "metric", "params": "param", "tags": "tag"}, frozenset(_FIELDS)
)


def model_view(state: State, model_id: str) -> Body:
    """Return MLflow's ``LoggedModel`` message."""
    model = state.model(model_id)
    return {
        "info": model["info"],
        "data": {"params": model["params"], "metrics": list(model["metrics"].values())},
    }


def matching_models(state: State, body: Body) -> List[Body]:
    """Return the job's models that ``logged-models/search`` asks for, in order, as ``LoggedModel`` messages.

    Raises
    ------
    Refusal
        The filter or the order is not valid.
    """
    experiments, datasets = body.get("experiment_ids") or [], body.get("datasets") or []
    if not all(dataset.get("dataset_name") for dataset in datasets):
        raise invalid("`dataset_name` in the `datasets` clause must be specified.")
    views = [
        model_view(state, model_id)
        for model_id, model in state.models.items()
        if model["info"]["experiment_id"] in experiments
    ]
    if datasets:
        views = [view for view in views if _points(view, datasets)]
    views = search.select(views, body.get("filter"), lambda view: _model_columns(view, datasets), COLUMNS)
    return ordered_models(views, body.get("order_by") or [])


def ordered_models(views: List[Body], order_by: List[Body]) -> List[Body]:
    """Return ``LoggedModel`` messages in the order of a search: by default the newest first.

    Raises
    ------
    Refusal
        A column of the order is not valid.
    """
    keys = [(_order_column(by), by.get("ascending") is False) for by in order_by]
    views = sorted(views, key=lambda view: (-int(view["info"]["creation_timestamp_ms"]), view["info"]["model_id"]))
    return search.sort(views, keys)


def _model_columns(view: Body, datasets: List[Body]) -> search.Lookup:
    def column(kind: str, key: str) -> Any:
        if kind == "metric":
            return [float(point["value"]) for point in _points(view, datasets, key)] or None
        if kind in ("tag", "param"):
            pairs = view["info"]["tags"] if kind == "tag" else view["data"]["params"]
            return next((pair.get("value") for pair in pairs if pair["key"] == key), None)
        return _attribute(view, key)

    return column


def _order_column(by: Body) -> Callable[[Body], Any]:
    """Return the look-up of the value that one part of an order sorts by."""
    name = str(by.get("field_name") or "").strip()
    prefix, _, key = name.rpartition(".") if "." not in name else name.partition(".")
    if prefix == "metrics":
        return lambda view: _latest(_points(view, [by], key))
    if prefix or name not in _FIELDS:
        raise invalid(f"Invalid order by field name: {name}. Supported: metrics.KEY, {', '.join(_FIELDS)}")
    if name == "status":
        return lambda view: _STATES.index(_attribute(view, name))
    return lambda view: _attribute(view, name)


def _attribute(view: Body, name: str) -> Any:
    field = _FIELDS[name]
    value = view["info"].get(field)
    if field.endswith("_ms") and value:
        return int(value)
    return value.replace("LOGGED_MODEL_", "") if name == "status" and value else value


def _points(view: Body, datasets: List[Body], key: Optional[str] = None) -> List[Body]:
    """Return a model's points on one of several datasets, of one metric or of all."""
    return [
        point
        for point in view["data"].get("metrics") or []
        if key in (None, point["key"]) and (not datasets or any(_is_on(point, dataset) for dataset in datasets))
    ]


def _is_on(point: Body, dataset: Body) -> bool:
    return all(dataset.get(name) in (None, "", point.get(name)) for name in ("dataset_name", "dataset_digest"))


def _latest(points: List[Body]) -> Optional[float]:
    """Return the value of the latest point: by its time, then by its step, as in MLflow's store."""
    if not points:
        return None
    return float(max(points, key=lambda p: (int(p.get("timestamp") or 0), int(p.get("step") or 0)))["value"])
