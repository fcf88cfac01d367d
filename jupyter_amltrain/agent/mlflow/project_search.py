"""Calls of a job that reach into its project: what it asks of other runs, experiments and models.

Experiments of the job have ids of their own in the job; the store knows them by their names.
"""

import contextlib
import json
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple
from urllib.parse import quote, urlencode

from . import experiment_search, registry_search, search
from .model_search import ordered_models
from .project_server import UNAVAILABLE, MlflowCall, MlflowResponse, ProjectServer
from .sink_state import EXPERIMENT_ID
from .validation import Body, Refusal

#: Tags that name a run above: one of the job's runs has only runs of the job below it.
_ABOVE = ("mlflow.parentRunId", "mlflow.rootRunId")

_MISSING = "RESOURCE_DOES_NOT_EXIST"

#: Why a call for something of the job cannot be made yet, with its kind.
NOT_YET = (
    "This %s is of the running job, and is in the project when the run is recorded. Make this call from the notebook"
    " after the run."
)


def run_columns(view: Body) -> search.Lookup:
    """Return the look-up of columns in MLflow's ``Run`` message."""

    def column(kind: str, key: str) -> Any:
        if kind == "attribute":
            value = view["info"].get({"created": "start_time", "Run name": "run_name"}.get(key, key))
            return int(value) if key in ("start_time", "end_time", "created") and value else value
        for pair in view["data"].get(kind + "s") or []:
            if pair["key"] == key:
                return float(pair["value"]) if kind == "metric" else pair.get("value")
        return None

    return column


class ProjectSearch:
    """The store of the project, as a job sees it.

    Parameters
    ----------
    experiments
        The job's experiments by their ids in the job.
    """

    def __init__(self, server: ProjectServer, experiments: Mapping[str, Body]) -> None:
        self.server = server
        self._own = experiments
        #: Ids of the store by those of the job, of experiments that the store has.
        self._stored_ids: Dict[str, str] = {}

    def name_of(self, experiment_id: str) -> Optional[str]:
        """Return the name of an experiment of the store; ``None`` if it does not have it, or does not answer."""
        try:
            answer = self.server.json("GET", "experiments/get?" + urlencode({"experiment_id": experiment_id}), {})
            return str(answer["experiment"]["name"])
        except Refusal:
            return None

    def forward(self, request: MlflowCall, path: str, body: Body) -> MlflowResponse:
        """Pass a call on, with the store's ids of the job's own experiments; the response has the job's.

        Raises
        ------
        Refusal
            The server does not answer.
        """
        if request.data and "json" not in (request.content_type or "json"):
            return self.server.ask(request)
        known = self._outward(body)
        target = quote(path)
        if request.method == "GET":
            target += "?" + urlencode(known, doseq=True) if known else ""
            response = self.server.ask(request._replace(target=target, data=b""))
        else:
            response = self.server.ask(request._replace(target=target, data=json.dumps(known).encode()))
        if response.rest is None and "/mlflow/" in path and b'"experiment_id"' in response.data:
            with contextlib.suppress(ValueError):
                answer = json.loads(response.data)
                for own in list(self._own):
                    self._stored_experiment(own)
                return response._replace(data=json.dumps(self._inward(answer)).encode())
        return response

    def runs(self, body: Body, own: List[Body], own_ids: Set[str]) -> Body:
        """Return the response to ``runs/search``: a page of the job's runs and those of the store.

        Parameters
        ----------
        own
            The job's runs that match, in order.
        own_ids
            All runs of the job: the store may have them already.
        """
        only_own = _names_own(body, "tag", _ABOVE, own_ids)
        return self._merged(_RUNS, body, own, lambda run: run["info"]["run_id"] in own_ids, only_own)

    def models(self, body: Body, own: List[Body], own_ids: Set[str], own_runs: Set[str]) -> Body:
        """Return the response to ``logged-models/search``: a page of the job's models and those of the store.

        Parameters
        ----------
        own
            The job's models that match, in order.
        own_ids
            All models of the job: the store may have them already.
        own_runs
            Ids of the job's runs.
        """
        only_own = _names_own(body, "attribute", ("source_run_id", "model_id"), own_ids | own_runs)
        return self._merged(_MODELS, body, own, lambda model: model["info"]["model_id"] in own_ids, only_own)

    def experiments(self, body: Body, own: List[Body], own_names: Set[str]) -> Body:
        """Return the response to ``experiments/search``: a page of the job's experiments and those of the store.

        Parameters
        ----------
        own
            The job's experiments that match, in order.
        own_names
            All experiments of the job.
        """

        def is_own(experiment: Body) -> bool:  # the id is that of the job's own experiment here
            return experiment["name"] in own_names or experiment["experiment_id"] == EXPERIMENT_ID

        return self._merged(_EXPERIMENTS, body, own, is_own)

    def registry(self, op: str, body: Body, own: List[Body], own_names: Set[str]) -> Body:
        """Return the response to a search of the registry: a page of what the job and the store have.

        Parameters
        ----------
        op
            ``registered-models/search`` or ``model-versions/search``.
        own
            The job's models or versions that match, in order.
        own_names
            All models that the job has registered: in the job, their versions are its own.
        """
        return self._merged(_REGISTRY[op], body, own, lambda item: item["name"] in own_names)

    def _merged(
        self, kind: "_Search", body: Body, own: List[Body], is_own: Callable[[Body], bool], only_own: bool = False
    ) -> Body:
        """Return a page of a search over the job's own objects and those of the store, in one order."""
        count = int(body.get("max_results") or kind.page_size)
        taken, token, skip = _token(body.get("page_token"))
        stored: List[Tuple[Body, Optional[str], int]] = []  #: with the token of its page, and its index there
        if only_own:
            token = None
        while token is not None and len(stored) < count:  # fewer could leave out one that comes before an own one
            answer = self._stored(kind, dict(body, max_results=count, page_token=token))
            items = answer.get(kind.key) or []
            new = [(self._inward(item), token, at) for at, item in enumerate(items) if not is_own(item)]
            stored += [entry for entry in new if entry[2] >= skip]
            token, skip = (answer.get("next_page_token") or None) if items else None, 0
        merged = [*own[taken:], *(item for item, _, _ in stored)]
        page = kind.ordered(merged, body)[:count]
        shown = {id(item) for item in page}
        taken += sum(id(item) in shown for item in own[taken:])
        result: Body = {kind.key: page}
        rest = [[place, at] for item, place, at in stored if id(item) not in shown]
        if rest:
            result["next_page_token"] = json.dumps([taken, *rest[0]])
        elif token or taken < len(own):
            result["next_page_token"] = json.dumps([taken, token, 0])
        return result

    def _stored(self, kind: "_Search", body: Body) -> Body:
        def found() -> Body:
            if kind.method == "GET":
                query = {key: value for key, value in body.items() if value}
                return self.server.json("GET", kind.op + "?" + urlencode(query, doseq=True), {})
            if kind is _EXPERIMENTS:
                return self.server.json("POST", kind.op, body)
            found = [self._stored_experiment(one) for one in body.get("experiment_ids") or []]
            experiments = [one for one in found if one is not None]
            return self.server.json("POST", kind.op, dict(body, experiment_ids=experiments)) if experiments else {}

        return _if_available(found)

    def _stored_experiment(self, experiment_id: str) -> Optional[str]:
        """Return the store's id of an experiment; ``None`` for one of the job that the store does not have yet."""
        own = self._own.get(experiment_id)
        if own is None:
            return experiment_id
        if experiment_id not in self._stored_ids:
            query = "experiments/get-by-name?" + urlencode({"experiment_name": own["name"]})
            try:
                self._stored_ids[experiment_id] = str(self.server.json("GET", query, {})["experiment"]["experiment_id"])
            except Refusal as refusal:
                if refusal.code != _MISSING:
                    raise
        return self._stored_ids.get(experiment_id)

    def _inward(self, value: Any) -> Any:
        """Return what the store has answered, or a part of it, with the job's ids of its own experiments."""
        if isinstance(value, list):
            return [self._inward(one) for one in value]
        if not isinstance(value, dict):
            return value
        body = {name: self._inward(part) for name, part in value.items()}
        if "experiment_id" in body:
            known = (own for own, stored in self._stored_ids.items() if stored == str(body["experiment_id"]))
            body["experiment_id"] = next(known, body["experiment_id"])
        return body

    def _outward(self, value: Any) -> Any:
        """Return a body, or a part of it, with the store's ids of the job's own experiments."""
        if isinstance(value, list):
            return [self._outward(one) for one in value]
        if not isinstance(value, dict):
            return value
        body = {name: self._outward(part) for name, part in value.items()}
        if "experiment_id" in body:
            body["experiment_id"] = self._stored_id(body["experiment_id"])
        if isinstance(body.get("experiment_ids"), list):
            # one that the job has made may be listed by its id in the job: the server does not look for all of them
            known = [(one, self._stored_experiment(str(one))) for one in body["experiment_ids"]]
            body["experiment_ids"] = [self._stored_id(one) if one == EXPERIMENT_ID else at or one for one, at in known]
        return body

    def _stored_id(self, experiment: Any) -> Any:
        if (stored := self._stored_experiment(str(experiment))) is None:
            raise Refusal("INVALID_STATE", NOT_YET % "experiment")
        return stored


class _Search(NamedTuple):
    """A search whose objects are the job's and the store's."""

    op: str
    #: Name of the list in the response.
    key: str
    #: Size of a page if the request has none.
    page_size: int
    #: Sorts objects as a request asks.
    ordered: Callable[[List[Body], Body], List[Body]]
    #: How MLflow's server is asked.
    method: str = "POST"


def _ordered_runs(runs: List[Body], body: Body) -> List[Body]:
    return search.ordered(sorted(runs, key=_newest), body.get("order_by") or [], run_columns)


_RUNS = _Search("runs/search", "runs", 1000, _ordered_runs)
_MODELS = _Search(
    "logged-models/search", "models", 100, lambda views, body: ordered_models(views, body.get("order_by") or [])
)
_EXPERIMENTS = _Search("experiments/search", "experiments", 1000, experiment_search.ordered)
_REGISTRY = {
    "registered-models/search": _Search(
        "registered-models/search", "registered_models", 100, registry_search.ordered_models, "GET"
    ),
    "model-versions/search": _Search(
        "model-versions/search", "model_versions", 10_000, registry_search.ordered_versions, "GET"
    ),
}


def _newest(run: Body) -> Tuple[int, str]:
    """Return the key of MLflow's order of runs that equal each other otherwise."""
    return -int(run["info"].get("start_time") or 0), run["info"]["run_id"]


def _if_available(ask: Callable[[], Body]) -> Body:
    """Return the response of the server, or an empty one if it does not answer: the job's own objects are left."""
    try:
        return ask()
    except Refusal as refusal:
        if refusal.code != UNAVAILABLE:
            raise
        return {}


def _names_own(body: Body, kind: str, keys: Tuple[str, ...], own_ids: Set[str]) -> bool:
    """Return whether a filter asks for objects that only the job can have: below one of its runs, or by id."""
    try:
        clauses = search.parse(body.get("filter") or "")
    except ValueError:
        return False
    return any(
        clause.kind == kind and clause.key in keys and clause.op == "=" and clause.value.strip("'\"") in own_ids
        for clause in clauses
    )


def _token(text: Any) -> Tuple[int, Optional[str], int]:
    """Return the number of own runs before a page, the store's token, and its runs to skip.

    The token is ``None`` after the store's last page.
    """
    if not text:
        return 0, "", 0
    own, token, skip = json.loads(text)
    return int(own), token, int(skip)
