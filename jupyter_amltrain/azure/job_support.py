"""Support table: which kind of target runs which kind of job, on this machine and on Azure's computes. No I/O.

The rows and their sources are in ``job_support.json``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

#: Requested feature -> its column in the table, and its name in a message.
WHAT = {
    "command": ("command", "a script or command"),
    "gpu": ("gpu", "a script that needs GPUs"),
    "nodes": ("command", "a job of several nodes"),
    "sweep": ("sweep", "a sweep (hyperparameter tuning)"),
    "automl": ("automl_now", "an AutoML job"),
    "pipeline": ("pipeline_now", "a pipeline"),
    "spark": ("spark", "a Spark job"),
}
#: Alternatives by feature or target, if not a cluster.
_INSTEAD = {
    "spark": "Attach a Synapse Spark pool (%aml_compute attach NAME --kind synapse-spark --resource-id ID)"
    " or use serverless.",
    "synapse-spark": "It runs jobs of type: spark. For this, use a cluster:"
    " %aml_compute create NAME --kind amlcompute --size SIZE",
    "vm": "Reach the machine over SSH: %aml_compute attach NAME --kind ssh --resource-id ID --user USER",
    "databricks": "Run it with Databricks' own jobs, or on a cluster:"
    " %aml_compute create NAME --kind amlcompute --size SIZE",
    "hdinsight": "Run it with HDInsight's own tools, attach a Synapse Spark pool for Spark,"
    " or use a cluster: %aml_compute create NAME --kind amlcompute --size SIZE",
}
_CLUSTER = "Use a cluster: %aml_compute create NAME --kind amlcompute --size SIZE"


@functools.lru_cache(maxsize=1)
def table() -> Mapping[str, Any]:
    """Return the table: ``source``, ``date``, ``note``, and ``kinds`` by tag of the target."""
    text = resources.files("jupyter_amltrain.azure").joinpath("job_support.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def row(kind: str) -> Mapping[str, str]:
    """Return the row of a kind of target; empty if the table has none."""
    columns: Mapping[str, str] = table()["kinds"].get(kind, {})
    return columns


def unsupported_reason(kind: str, what: str) -> str | None:
    """Return why a kind of target cannot run a job, with an alternative; ``None`` if it can.

    Parameters
    ----------
    kind
        Tag of the target: ``amlcompute``, ``vm``, ...
    what
        A key of :data:`WHAT`.
    """
    columns = row(kind)
    column, words = WHAT[what]
    if not columns:
        return None
    if columns["command"] == "no" and columns["spark"] == "no":  # whatever it is
        return f"Azure ML v2 runs no jobs on {_a(columns)}. {columns.get('remark', '')} {_INSTEAD.get(kind, _CLUSTER)}"
    if what == "nodes" and kind == "instance":
        return f"{_begin(_a(columns))} is one machine: it runs no jobs on several nodes. {_CLUSTER}"
    if columns[column] == "no":
        instead = _INSTEAD.get(what) or _INSTEAD.get(kind) or _CLUSTER
        return f"{_begin(_a(columns))} cannot run {words}. {instead}"
    return None


def unsupported_type_reason(kind: str, job_type: str) -> str | None:
    """As :func:`unsupported_reason`, for the ``type`` of an ``az ml`` file (:mod:`jupyter_amltrain.schema.az_yaml`).

    A machine with our agent runs ``command``, and the steps of a ``pipeline``, whatever Azure's documentation says
    about a local computer.
    """
    what = job_type if job_type in WHAT else "pipeline"  # import: a step that the service carries out
    if job_type in ("command", "pipeline") or kind != "local":
        return unsupported_reason(kind, what)
    columns, words = row("local"), WHAT[what][1] if job_type in WHAT else f"a job of type: {job_type}"
    instead = "Run the sweep with: %aml_sweep FILE" if what == "sweep" else _INSTEAD.get(what) or _CLUSTER
    return f"{_begin(_a(columns))} cannot run {words} of a YAML file as one job. {instead}"


def _a(columns: Mapping[str, str]) -> str:
    title = columns["title"]
    title = title if title.startswith(("Azure", "Synapse", "Kubernetes")) else title.lower()
    return f"{'an' if title[0] in 'AEIOaeio' else 'a'} {title}"


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]
