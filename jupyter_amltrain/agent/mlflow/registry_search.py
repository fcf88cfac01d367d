"""Search in the model registry: filters of the job's own models and versions, and orders beside the project's."""

from typing import Any, Dict, List

from . import search
from .validation import Body

#: Tag of prompts, which MLflow's client excludes from its searches for models.
_IS_PROMPT = "mlflow.prompt.is_prompt"

_KINDS = {"attribute": "attribute", "tag": "tag", "tags": "tag"}
_ORDER_KINDS = {"attribute": "attribute"}
_TIMES = ("creation_timestamp", "last_updated_timestamp")

#: Columns of filters and of orders, as MLflow's store has them.
_MODELS = search.SearchColumns(_KINDS, ("name",))
_MODEL_ORDER = search.SearchColumns(_ORDER_KINDS, ("name", "timestamp", "last_updated_timestamp"))
_VERSIONS = search.SearchColumns(_KINDS, ("name", "version_number", "run_id", "source_path"))
_VERSION_ORDER = search.SearchColumns(_ORDER_KINDS, ("name", "version_number", *_TIMES))

#: Fields of MLflow's messages, where a column has another name.
_FIELDS = {"version_number": "version", "source_path": "source"}
#: In an order of registered models ``timestamp`` is MLflow's recommended name of the time of the last change; its
#: database store knows no order by the time of creation (``SearchUtils.VALID_TIMESTAMP_ORDER_BY_KEYS``).
_MODEL_FIELDS = {"timestamp": "last_updated_timestamp"}


def matching_models(views: List[Body], body: Body) -> List[Body]:
    """Return the ``RegisteredModel`` messages that a search asks for, in order.

    Raises
    ------
    Refusal
        The filter or the order is not valid.
    """
    return ordered_models(search.select(views, body.get("filter"), _columns, _MODELS), body)


def matching_versions(views: List[Body], body: Body) -> List[Body]:
    """Return the ``ModelVersion`` messages that a search asks for, in order.

    Raises
    ------
    Refusal
        The filter or the order is not valid.
    """
    return ordered_versions(search.select(views, body.get("filter"), _columns, _VERSIONS), body)


def ordered_models(views: List[Body], body: Body) -> List[Body]:
    """Return ``RegisteredModel`` messages in the order of a search: by default by name."""
    views = sorted(views, key=lambda view: str(view["name"]))
    return search.ordered(views, search.texts(body.get("order_by")), _model_columns, _MODEL_ORDER)


def ordered_versions(views: List[Body], body: Body) -> List[Body]:
    """Return ``ModelVersion`` messages in the order of a search: by default the one that changed last is first."""
    views = sorted(views, key=lambda view: (str(view["name"]), -int(view["version"])))
    order_by = search.texts(body.get("order_by")) or ["last_updated_timestamp DESC"]
    return search.ordered(views, order_by, _columns, _VERSION_ORDER)


def _columns(view: Body) -> search.Lookup:
    def column(kind: str, key: str) -> Any:
        if kind == "tag":
            tags: Dict[str, str] = {tag["key"]: tag.get("value", "") for tag in view.get("tags") or []}
            return tags.get(key, "false" if key == _IS_PROMPT else None)
        value = view.get(_FIELDS.get(key, key))
        return int(value) if value and (key in _TIMES or key == "version_number") else value

    return column


def _model_columns(view: Body) -> search.Lookup:
    columns = _columns(view)
    return lambda kind, key: columns(kind, _MODEL_FIELDS.get(key, key))
