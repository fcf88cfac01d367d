"""Calls of MLflow that a script sends to another store than the run's: a note says where they go."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jupyter_amltrain.jobs import preflight, requirements
from jupyter_amltrain.schema.job import JobSpec

#: The variable that names a tracking server.
VARIABLE = "MLFLOW_TRACKING_URI"

#: Variable of a job that does not want its record to follow another store (``agent/supervise/mlflow_hook.py``).
_FOLLOW = "AMLTRAIN_FOLLOW"
#: Address of a store that cannot be followed.
_NOT_FOLLOWED = re.compile(r"['\"](?:databricks|uc\b|(?!file:|https?:|sqlite|postgresql|mysql|mssql)[a-z+-]{2,}:)")

#: User and password in an address.
_USER = re.compile(r"//[^/@]*@")

#: Longest text of an address in a note.
_MAX_SHOWN = 60


def elsewhere_note(spec: JobSpec, follows: bool) -> str:
    """Return a note if the script sets another tracking URI than the run's; empty if not.

    Parameters
    ----------
    follows
        Whether the target's runs follow what a script logs to another store.
    """
    try:
        text = requirements.script_bytes(spec)
    except OSError:  # the snapshot reports it
        return ""
    if spec.tracking == "direct" or (b"tracking_uri" not in text and VARIABLE.encode() not in text):
        return ""
    try:
        found = next(_settings(preflight.parse(text)), None)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    if found is None:
        return ""
    line, uri = found
    where = "the cell" if spec.cell else spec.script_name
    sends = f"Line {line - spec.line_offset} of {where} sends MLflow's calls to {uri}"
    if follows and spec.env.get(_FOLLOW) != "0" and not _NOT_FOLLOWED.match(uri):
        return (
            f"{sends}. Metrics, parameters and tags are also in this run's output; artifacts and models are only there."
        )
    return f"{sends}: what is logged from there on is not in this run's output. To record it here, leave the line out."


def _settings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines that set a tracking URI, and the URI as text."""
    for node in preflight.nodes_of(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call) and _name(node.func) == "set_tracking_uri":
            values = [*node.args, *(one.value for one in node.keywords)]
        elif isinstance(node, ast.Assign) and any(_is_variable(target) for target in node.targets):
            values = [node.value]
        for value in values[:1]:
            text = _USER.sub("//", ast.unparse(value))
            if VARIABLE not in text and _name(value) != "get_tracking_uri":  # those are the run's own
                yield value.lineno, text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def _name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_variable(node: ast.expr) -> bool:
    """Return whether a target is ``os.environ["MLFLOW_TRACKING_URI"]``."""
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == VARIABLE
