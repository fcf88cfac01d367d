"""Traces that a job has logged."""

from datetime import datetime
from typing import Any, Dict, List, Optional

from . import search
from .validation import Body

#: Attributes in filters and orders of MLflow's search for traces, with their names here.
_ATTRIBUTES = {
    "client_request_id": "client_request_id",
    "end_time": "end_time_ms",
    "end_time_ms": "end_time_ms",
    "execution_time": "execution_time_ms",
    "execution_time_ms": "execution_time_ms",
    "experiment_id": "experiment_id",
    "name": "name",
    "request_id": "request_id",
    "run_id": "run_id",
    "status": "status",
    "timestamp": "timestamp_ms",
    "timestamp_ms": "timestamp_ms",
}

COLUMNS = search.SearchColumns(
    {
        "attribute": "attribute",
        "attributes": "attribute",
        "trace": "attribute",
        "tag": "tag",
        "tags": "tag",
        "metadata": "metadata",
        "request_metadata": "metadata",
    },
    frozenset(_ATTRIBUTES),
)


def change_traces(traces: Dict[str, Body], op: str, body: Body) -> None:
    """Apply one journal record to traces, by their ids.

    Parameters
    ----------
    op
        ``traces/ID``, ``traces/ID/tags``, ``traces/ID/delete-tag``, or ``traces/delete-traces``.
    """
    path = op.split("/")
    if path[1] == "delete-traces":
        for trace_id in _expired(traces, body):
            traces.pop(trace_id, None)
        return
    trace = traces.get(path[1])
    if trace is None:
        return
    if len(path) == 2:
        _end_trace(trace, body)
    elif isinstance(trace.get("tags"), list):  # MLflow 2
        trace["tags"] = [tag for tag in trace["tags"] if tag.get("key") != body.get("key")]
        if path[2] == "tags":
            trace["tags"].append({"key": body["key"], "value": body.get("value", "")})
    else:
        trace["tags"] = {key: value for key, value in (trace.get("tags") or {}).items() if key != body.get("key")}
        if path[2] == "tags":
            trace["tags"][body["key"]] = body.get("value", "")


def _end_trace(trace: Body, body: Body) -> None:
    """Apply the end of a trace of MLflow 2: its time is that of the end, tags and metadata are added."""
    changes = dict(body)
    if changes.get("timestamp_ms"):
        trace["execution_time_ms"] = int(changes.pop("timestamp_ms")) - trace_ms(trace)
    for name in ("tags", "request_metadata"):
        pairs = [*(trace.get(name) or []), *(changes.pop(name, None) or [])]
        trace[name] = list({pair["key"]: pair for pair in pairs}.values())
    trace.update(changes)


def _expired(traces: Dict[str, Body], body: Body) -> List[str]:
    """Return the ids of the traces that a request deletes."""
    if body.get("request_ids"):
        return [str(one) for one in body["request_ids"]]
    until, found = int(body.get("max_timestamp_millis") or 0), []
    for trace_id, trace in traces.items():
        if trace_ms(trace) <= until:
            found.append(trace_id)
    return found[: int(body["max_traces"])] if body.get("max_traces") else found


def trace_ms(trace: Body) -> int:
    """Return when a trace began, in ms since 1970: a number in MLflow 2, a text in MLflow 3."""
    if trace.get("timestamp_ms"):
        return int(trace["timestamp_ms"])
    text = str(trace.get("request_time") or "").replace("Z", "+00:00")
    head, dot, rest = text.partition(".")
    fraction = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        whole = datetime.fromisoformat(head + rest[len(fraction) :]) if dot else datetime.fromisoformat(text)
    except ValueError:
        return 0
    return int(whole.timestamp()) * 1000 + int((fraction + "000")[:3])


def matching_traces(traces: Dict[str, Body], body: Body) -> Body:
    """Return the response to a search: a page of the job's traces, by default the newest first.

    Raises
    ------
    Refusal
        The filter or the order is not valid, or needs what only a store has: spans and assessments.
    """
    places = [str((one.get("mlflow_experiment") or {}).get("experiment_id")) for one in body.get("locations") or []]
    places = places or search.texts(body.get("experiment_ids"))
    found = [trace for trace in traces.values() if not places or experiment_of(trace) in places]
    found = search.select(found, body.get("filter"), _trace_columns, COLUMNS)
    found.sort(key=lambda trace: (-trace_ms(trace), _id(trace)))
    found = search.ordered(found, search.texts(body.get("order_by")), _trace_columns, COLUMNS)
    return search.page("traces", found, body, 100)


def _trace_columns(trace: Body) -> search.Lookup:
    """Return the look-up of columns in MLflow's ``TraceInfo`` message, of version 2 or 3."""

    def column(kind: str, key: str) -> Any:
        if kind == "tag":
            return _mapping(trace.get("tags")).get(key)
        if kind == "metadata":
            return _mapping(trace.get("trace_metadata") or trace.get("request_metadata")).get(key)
        name = _ATTRIBUTES[key]
        if name == "name":
            return column("tag", "mlflow.traceName")
        if name == "run_id":
            return column("metadata", "mlflow.sourceRun")
        if name == "timestamp_ms":
            return trace_ms(trace)
        if name == "execution_time_ms":
            return _duration_ms(trace)
        if name == "end_time_ms":
            return trace_ms(trace) + (_duration_ms(trace) or 0)
        if name == "status":
            return trace.get("state") or trace.get("status")
        if name == "request_id":
            return _id(trace)
        return experiment_of(trace) if name == "experiment_id" else trace.get(name)

    return column


def _id(trace: Body) -> str:
    return str(trace.get("trace_id") or trace.get("request_id"))


def _duration_ms(trace: Body) -> Optional[int]:
    """Return how long a trace took: a number in MLflow 2, a text like ``1.5s`` in MLflow 3."""
    if trace.get("execution_duration"):
        return round(float(str(trace["execution_duration"]).rstrip("s")) * 1000)
    value = trace.get("execution_time_ms")
    return None if value is None else int(value)


def _mapping(values: Any) -> Dict[str, str]:
    """Return tags or metadata by their keys: a list of pairs in MLflow 2, an object in MLflow 3."""
    return {pair["key"]: pair.get("value", "") for pair in values} if isinstance(values, list) else values or {}


def experiment_of(trace: Body) -> str:
    """Return the id of the experiment of a trace; empty without one."""
    place = trace.get("trace_location") or {}
    return str((place.get("mlflow_experiment") or {}).get("experiment_id") or trace.get("experiment_id") or "")
