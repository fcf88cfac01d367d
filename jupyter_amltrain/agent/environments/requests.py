"""Requests about environments: whether one is built, what there is, and its removal."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping

from ..protocol import AgentError
from . import build, docker
from .environment_store import EnvironmentStore, check, key_of

Json = Dict[str, Any]


def serve(home: str, payload: Mapping[str, Any], environ: Mapping[str, str]) -> Json:
    """Answer a request; ``verb`` is ``find``, ``find_image``, ``list`` or ``delete``.

    ``find`` takes a specification (``spec``) and returns its ``key``, the ``built`` environment or ``None``, the
    seconds of the ``last`` build of its label, and why it cannot be built here (``reason``, empty if it can).
    ``find_image`` takes a ``container``; see :func:`.docker.find`.
    ``list`` returns the ``environments``. ``delete`` takes the beginning of a key.
    """
    verb = _VERBS.get(str(payload.get("verb")))
    if verb is None:
        raise AgentError("ProtocolError", "The agent does not support this request about environments.")
    return verb(EnvironmentStore(home), payload, environ)


def _find(store: EnvironmentStore, payload: Mapping[str, Any], environ: Mapping[str, str]) -> Json:
    spec = check(payload["spec"])
    key = key_of(spec, environ.get("PATH", ""))
    marker = store.usable(key)
    is_missing = marker is None and not build.find_tool(spec, environ)
    return {
        "key": key,
        "built": None if marker is None else {"seconds": marker.get("seconds"), "built": marker.get("built")},
        "last": store.last_seconds(spec["label"]),
        "reason": build.missing_tool_text(spec) if is_missing else "",
    }


def _find_image(store: EnvironmentStore, payload: Mapping[str, Any], environ: Mapping[str, str]) -> Json:
    return docker.find(store, docker.check(payload["container"]), environ)


def _list(store: EnvironmentStore, payload: Mapping[str, Any], environ: Mapping[str, str]) -> Json:
    store.clear_partial("")
    rows = [store.row(key) for key in store.list_keys()]
    return {"environments": [row for row in rows if row is not None]}


def _delete(store: EnvironmentStore, payload: Mapping[str, Any], environ: Mapping[str, str]) -> Json:
    key = _resolve(store, str(payload.get("key") or ""))
    store.delete(key)
    return {"key": key}


def _resolve(store: EnvironmentStore, text: str) -> str:
    matches: List[str] = [key for key in store.list_keys() if text and key.startswith(text)]
    if len(matches) != 1:
        found = "several begin with" if matches else "none begins with"
        raise AgentError("CommandError", "No single environment: %s %r. List them: %%aml_env" % (found, text[:80]))
    return matches[0]


_VERBS: Dict[str, Callable[[EnvironmentStore, Mapping[str, Any], Mapping[str, str]], Json]] = {
    "find": _find,
    "find_image": _find_image,
    "list": _list,
    "delete": _delete,
}
