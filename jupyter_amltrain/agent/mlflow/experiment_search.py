"""Search for experiments: filters of the job's own, and their order beside those of the project."""

from typing import Any, List

from . import search
from .validation import Body

_ATTRIBUTES = ("name", "experiment_id", "creation_time", "last_update_time")
_FILTER = search.SearchColumns({"attribute": "attribute", "tag": "tag", "tags": "tag"}, _ATTRIBUTES)
_ORDER = search.SearchColumns({"attribute": "attribute"}, _ATTRIBUTES)


def matching(experiments: List[Body], body: Body) -> List[Body]:
    """Return the ``Experiment`` messages that a search asks for, in order.

    Raises
    ------
    Refusal
        The filter or the order is not valid.
    """
    if body.get("view_type") == "DELETED_ONLY":  # the job cannot delete its own
        experiments = []
    return ordered(search.select(experiments, body.get("filter"), _columns, _FILTER), body)


def ordered(experiments: List[Body], body: Body) -> List[Body]:
    """Return ``Experiment`` messages in the order of a search: by default the newest first."""
    order_by = search.texts(body.get("order_by")) or ["creation_time DESC"]
    experiments = sorted(experiments, key=lambda experiment: int(experiment["experiment_id"]))
    return search.ordered(experiments, order_by, _columns, _ORDER)


def _columns(experiment: Body) -> search.Lookup:
    def column(kind: str, key: str) -> Any:
        if kind == "tag":
            return next((tag.get("value", "") for tag in experiment.get("tags") or [] if tag["key"] == key), None)
        value = experiment.get(key)
        return int(value or 0) if key.endswith("_time") else value

    return column
