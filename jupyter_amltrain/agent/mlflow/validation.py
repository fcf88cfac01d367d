"""MLflow's rules for names, lengths and batch sizes, and its error messages.

The messages are those of ``mlflow/utils/validation.py``, so that a script sees the
same error from the agent as from an MLflow server.
"""

import json
import posixpath
import re
from typing import Any, Callable, Dict, List, Optional

NAME = 250
PARAM_VALUE = 6000
TAG_VALUE = 8000
REGISTRY_TAG_VALUE = 100_000
EXPERIMENT_TAG_VALUE = 20000
EXPERIMENT_NAME = 500
METRICS_PER_BATCH = 1000
PARAMS_TAGS_PER_BATCH = 100

Body = Dict[str, Any]
Note = Callable[[str], None]

#: MLflow's states of a run.
STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")

_NAME = re.compile(r"^[/\w.\- :]*$")


class Refusal(Exception):
    """An error response with an MLflow error code.

    Parameters
    ----------
    code
        MLflow's ``error_code``.
    message
        One sentence for the script.
    http
        HTTP status; never 408, 429 or 5xx, which make the client retry for minutes.
    is_final
        The project cannot know more: the call is for an object of the job itself.
    """

    def __init__(self, code: str, message: str, http: int = 400, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.http = http
        self.is_final = is_final


def invalid(message: str) -> Refusal:
    """Return the refusal of an invalid value."""
    return Refusal("INVALID_PARAMETER_VALUE", message)


def missing(message: str, *, is_part: bool = False) -> Refusal:
    """Return the refusal of a request for an object that does not exist.

    Parameters
    ----------
    is_part
        It would be a part of an object of the job, as a tag of a run.
    """
    return Refusal("RESOURCE_DOES_NOT_EXIST", message, 404, is_final=is_part)


def fit(op: str, body: Body, note: Note) -> Body:
    """Check a request against MLflow's limits; return it with long values cut.

    Names that are too long are refused. Values of parameters and tags that are too long are cut with a note, as a
    server does by default (``MLFLOW_TRUNCATE_LONG_VALUES``).

    Raises
    ------
    Refusal
        A limit is exceeded.
    """
    if op == "runs/log-metric":
        _metric(body, "")
    elif op == "runs/log-parameter":
        return _pair(body, "Param key", PARAM_VALUE, note, check_name=True)
    elif op == "runs/set-tag":
        return _pair(body, "key", TAG_VALUE, note)
    elif op == "runs/log-batch":
        return _batch(body, note)
    elif op == "experiments/create":
        _text(body, "name")
        if body.get("name") is None:
            raise invalid("Missing value for required parameter 'name'.")
        if not body["name"]:
            raise invalid("Invalid experiment name: ''. Experiment name cannot be empty.")
        _length("name", body["name"], EXPERIMENT_NAME)
    elif op == "experiments/set-experiment-tag":
        _length("key", _key(body, "key"), NAME)
        _length("value", str(body.get("value", "")), EXPERIMENT_TAG_VALUE)
    elif op == "runs/update":
        _long(body, "end_time")
        _text(body, "run_name")
        if body.get("status") and body["status"] not in STATUSES:
            raise invalid(f"Invalid value {_quoted(body['status'])} for parameter 'status' supplied.")
    elif op == "runs/outputs":
        for index, model in enumerate(body.get("models") or []):
            _long(model, "step", f"models[{index}].")
    elif op in ("runs/create", "logged-models"):
        _long(body, "start_time")
        for name in ("run_name", "user_id", "name", "model_type", "source_run_id"):
            _text(body, name)
        return dict(body, tags=_pairs(body.get("tags"), "tags", TAG_VALUE, note))
    return body


def _batch(body: Body, note: Note) -> Body:
    metrics: List[Body] = body.get("metrics") or []
    params: List[Body] = body.get("params") or []
    tags: List[Body] = body.get("tags") or []
    _count("metrics", len(metrics), METRICS_PER_BATCH)
    _count("params", len(params), PARAMS_TAGS_PER_BATCH)
    _count("tags", len(tags), PARAMS_TAGS_PER_BATCH)
    _count("metrics, params, and tags", len(metrics) + len(params) + len(tags), METRICS_PER_BATCH)
    for index, metric in enumerate(metrics):
        _metric(metric, f"metrics[{index}].")
    fitted = dict(body)
    if params:
        fitted["params"] = [_pair(p, "Param key", PARAM_VALUE, note, check_name=True) for p in params]
        _once(params)
    if tags:
        fitted["tags"] = _pairs(tags, "tags", TAG_VALUE, note)
    return fitted


def _once(params: List[Body]) -> None:
    keys = [param["key"] for param in params]
    if len(set(keys)) < len(keys):
        twice = [key for index, key in enumerate(keys) if key in keys[:index]]
        raise invalid(
            f"Duplicate parameter keys have been submitted: {twice}. Please ensure the request contains only one param "
            "value per param key."
        )


def _pairs(pairs: Optional[List[Body]], what: str, limit: int, note: Note) -> List[Body]:
    return [_pair(pair, f"{what}[{index}].key", limit, note) for index, pair in enumerate(pairs or [])]


def _pair(
    body: Body,
    key_name: str,
    limit: int,
    note: Note,
    check_name: bool = False,
) -> Body:
    key, value = _key(body, key_name), body.get("value") or ""
    if check_name:
        _name(key, "key")
    _length(key_name, key, NAME)
    if len(value) <= limit:
        return body
    note(f"the value of {key!r} has {len(value)} characters; it was cut to {limit}, as an MLflow server does")
    return dict(body, value=value[:limit])


def _metric(body: Body, path: str) -> None:
    key = _key(body, path + "name")
    _name(key, path + "name")
    try:
        float(body["value"])
    except KeyError:
        raise invalid(f"Missing value for required parameter '{path}value'.") from None
    except (TypeError, ValueError, OverflowError):
        raise invalid(
            f"Invalid value {_quoted(body['value'])} for parameter '{path}value' supplied: "
            "Please specify value as a valid double (64-bit floating point)"
        ) from None
    for name in ("timestamp", "step"):
        _long(body, name, path, f"metric '{key}'. ")
    _length("Metric name", key, NAME)


def _long(body: Body, name: str, path: str = "", where: str = "") -> None:
    """Refuse values that no reader of the journal, and no database behind it, can store."""
    try:
        fits = -(1 << 63) <= int(body.get(name) or 0) < 1 << 63
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise invalid(
            f"Invalid value {_quoted(body[name])} for parameter '{path}{name}' supplied: "
            f"{where}It must be a valid long (64-bit integer)."
        )


def _text(body: Body, name: str) -> None:
    if not isinstance(body.get(name) or "", str):
        raise invalid(f"Invalid value {_quoted(body[name])} for parameter '{name}' supplied: it must be a string.")


def _quoted(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:100] + "..."


def _key(body: Body, path: str) -> str:
    key = body.get("key")
    if not isinstance(key, str) or not key:
        raise invalid(f"Missing value for required parameter '{path}'.")
    return key


def _name(name: str, path: str) -> None:
    if not _NAME.match(name):
        raise invalid(
            f"Invalid value {json.dumps(name)} for parameter '{path}' supplied: Names may only contain "
            "alphanumerics, underscores (_), dashes (-), periods (.), spaces ( ), colon(:) and slashes (/)."
        )
    plain = posixpath.normpath(name)
    if plain != name or plain == "." or plain.startswith(("..", "/")):
        raise invalid(
            f"Invalid value {json.dumps(name)} for parameter '{path}' supplied: Names may be treated as files "
            "in certain cases, and must not resolve to other names when treated as such. "
            f"This name would resolve to {plain!r}"
        )


def _length(what: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise invalid(f"'{what}' exceeds the maximum length of {limit} characters")


def _count(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise invalid(
            f"A batch logging request can contain at most {limit} {what}. Got {count} {what}. "
            f"Please split up {what} across multiple requests and try again."
        )
