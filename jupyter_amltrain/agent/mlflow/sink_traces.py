"""Traces that a job has logged."""

from datetime import datetime
from typing import Any, Dict, List

from .validation import Body


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
        trace.update(body)
    elif isinstance(trace.get("tags"), list):  # MLflow 2
        trace["tags"] = [tag for tag in trace["tags"] if tag.get("key") != body.get("key")]
        if path[2] == "tags":
            trace["tags"].append({"key": body["key"], "value": body.get("value", "")})
    else:
        trace["tags"] = {key: value for key, value in (trace.get("tags") or {}).items() if key != body.get("key")}
        if path[2] == "tags":
            trace["tags"][body["key"]] = body.get("value", "")


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


def found_traces(traces: Dict[str, Body], body: Body) -> List[Body]:
    """Return the traces of a search, the newest first; none for one with a filter, which needs a store."""
    places = [str((one.get("mlflow_experiment") or {}).get("experiment_id")) for one in body.get("locations") or []]
    places = places or _texts(body.get("experiment_ids"))
    found = [trace for trace in traces.values() if not places or _experiment(trace) in places]
    return (
        [] if body.get("filter") else sorted(found, key=trace_ms, reverse=True)[: int(body.get("max_results") or 100)]
    )


def _experiment(trace: Body) -> str:
    place = trace.get("trace_location") or {}
    return str((place.get("mlflow_experiment") or {}).get("experiment_id") or trace.get("experiment_id") or "")


def _texts(value: Any) -> List[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)] if value else []
