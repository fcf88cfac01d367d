"""Calls of a job that reach into its project: what it asks of other runs, experiments and models.

The job's own experiment has the id :data:`~.sink_state.EXPERIMENT_ID` in the job, and another one in the store.
"""

import json
from typing import Any, Callable, List, Optional, Set, Tuple
from urllib.parse import quote, urlencode

from . import search
from .latest import rank
from .project_server import UNAVAILABLE, MlflowCall, MlflowResponse, ProjectServer
from .sink_state import EXPERIMENT_ID
from .validation import Body, Refusal, missing

#: Tags that name a run above: one of the job's runs has only runs of the job below it.
_ABOVE = ("mlflow.parentRunId", "mlflow.rootRunId")

_MISSING = "RESOURCE_DOES_NOT_EXIST"


def ordered(items: List[Any], order_by: List[str], columns: Callable[[Any], search.Lookup]) -> List[Any]:
    """Return items in the order of a search; those without a value of a column come last."""
    for column in reversed(order_by):
        kind, key, descending = search.order(column)
        known = [item for item in items if columns(item)(kind, key) is not None]
        unknown = [item for item in items if columns(item)(kind, key) is None]
        if kind == "metric":
            known.sort(key=lambda item: rank(columns(item)(kind, key), descending))
        else:
            known.sort(key=lambda item: columns(item)(kind, key), reverse=descending)
        items = known + unknown
    return items


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
    experiment_name
        Name of the experiment of the job's own run.
    """

    def __init__(self, server: ProjectServer, experiment_name: str) -> None:
        self.server = server
        self._experiment_name = experiment_name
        self._real_id: Optional[str] = None

    def forward(self, request: MlflowCall, path: str, body: Body) -> MlflowResponse:
        """Pass a call on, with the store's id of the job's own experiment.

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
        count = int(body.get("max_results") or 1000)
        taken, token, skip = _token(body.get("page_token"))
        theirs: List[Body] = []
        further: Optional[str] = None
        if token is not None and not _only_own(body, own_ids):
            answer = self._stored_runs(dict(body, max_results=count, page_token=token))
            theirs, further = (answer.get("runs") or [])[skip:], answer.get("next_page_token") or None
        fresh = [self._inward(run) for run in theirs if run["info"]["run_id"] not in own_ids]
        together = sorted(own[taken:] + fresh, key=_newest)
        together = ordered(together, body.get("order_by") or [], run_columns)
        page = together[:count]
        shown = {run["info"]["run_id"] for run in page}
        mine = len(shown & own_ids)
        left = [at for at, run in enumerate(theirs) if run["info"]["run_id"] not in shown | own_ids]
        result: Body = {"runs": page}
        if left:
            result["next_page_token"] = json.dumps([taken + mine, token, skip + left[0]])
        elif further or taken + mine < len(own):
            result["next_page_token"] = json.dumps([taken + mine, further, 0])
        return result

    def joined(self, op: str, key: str, body: Body, own: List[Body], name: str) -> Body:
        """Return the response to another search: the job's own objects, then those of the store.

        Parameters
        ----------
        key
            Name of the list in the response.
        own
            The job's objects that match.
        name
            Attribute that tells whether an object of the store is one of the job's.
        """
        method = "POST" if op == "experiments/search" else "GET"
        answer = _if_available(lambda: self.server.json(method, _with_query(op, body), body))
        names = {item[name] for item in own}
        theirs = [item for item in answer.get(key) or [] if item[name] not in names]
        if op == "experiments/search":  # the id is that of the job's own experiment here
            theirs = [item for item in theirs if item["experiment_id"] != EXPERIMENT_ID]
        result = {key: [*([] if body.get("page_token") else own), *theirs]}
        if answer.get("next_page_token"):
            result["next_page_token"] = answer["next_page_token"]
        return result

    def _stored_runs(self, body: Body) -> Body:
        def found() -> Body:
            experiments = self._experiments(body.get("experiment_ids") or [])
            return (
                self.server.json("POST", "runs/search", dict(body, experiment_ids=experiments)) if experiments else {}
            )

        return _if_available(found)

    def _own_experiment(self) -> Optional[str]:
        """Return the store's id of the job's own experiment; ``None`` if the store does not have it yet."""
        if self._real_id is None:
            try:
                query = "experiments/get-by-name?" + urlencode({"experiment_name": self._experiment_name})
                self._real_id = str(self.server.json("GET", query, {})["experiment"]["experiment_id"])
            except Refusal as refusal:
                if refusal.code != _MISSING:
                    raise
        return self._real_id

    def _experiments(self, ids: List[str]) -> List[str]:
        found = [self._own_experiment() if one == EXPERIMENT_ID else one for one in ids]
        return [one for one in found if one is not None]

    def _inward(self, run: Body) -> Body:
        if run["info"]["experiment_id"] == self._real_id:
            run["info"]["experiment_id"] = EXPERIMENT_ID
        return run

    def _outward(self, value: Any) -> Any:
        """Return a body, or a part of it, with the store's id of the job's own experiment."""
        if isinstance(value, list):
            return [self._outward(one) for one in value]
        if not isinstance(value, dict):
            return value
        body = {name: self._outward(part) for name, part in value.items()}
        if "experiment_id" in body:
            body["experiment_id"] = self._stored_id(body["experiment_id"])
        if isinstance(body.get("experiment_ids"), list):
            body["experiment_ids"] = [self._stored_id(one) for one in body["experiment_ids"]]
        return body

    def _stored_id(self, experiment: Any) -> Any:
        if experiment != EXPERIMENT_ID:
            return experiment
        if (real := self._own_experiment()) is None:
            raise missing("The job's experiment is not in the project's store yet.")
        return real


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


def _only_own(body: Body, own_ids: Set[str]) -> bool:
    """Return whether a filter asks for runs below a run of the job."""
    try:
        clauses = search.parse(body.get("filter") or "")
    except ValueError:
        return False
    return any(
        clause.kind == "tag" and clause.key in _ABOVE and clause.op == "=" and clause.value.strip("'\"") in own_ids
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


def _with_query(op: str, body: Body) -> str:
    if op == "experiments/search" or not body:
        return op
    return op + "?" + urlencode(body, doseq=True)
