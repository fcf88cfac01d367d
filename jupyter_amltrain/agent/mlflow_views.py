"""MLflow's messages and searches over what a job has logged (:class:`.mlflow_state.State`)."""

from typing import Any, Dict, List, Optional

from . import mlflow_filter
from .mlflow_limits import Body, invalid
from .mlflow_state import Run, State


def run_view(state: State, run: Run) -> Body:
    """MLflow's ``Run`` message."""
    info: Body = {"run_id": run.run_id, "run_uuid": run.run_id, "run_name": run.name}
    info.update(experiment_id=run.experiment, user_id=run.user, status=run.status, start_time=run.start)
    info["lifecycle_stage"] = "active" if run.active else "deleted"
    info["artifact_uri"] = state.uri("runs", run.run_id, "artifacts")
    if run.end:
        info["end_time"] = run.end
    data = {
        "metrics": list(run.metrics.values()),
        "params": _pairs(run.params),
        "tags": _pairs(run.tags),
    }
    inputs = {"dataset_inputs": run.datasets, "model_inputs": list(run.models_in.values())}
    outputs = {"model_outputs": list(run.models_out.values())}
    return {"info": info, "data": data, "inputs": inputs, "outputs": outputs}


def model_view(state: State, model_id: str) -> Body:
    """MLflow's ``LoggedModel`` message."""
    model = state.model(model_id)
    return {
        "info": model["info"],
        "data": {"params": model["params"], "metrics": list(model["metrics"].values())},
    }


def search_runs(state: State, body: Body) -> Body:
    """Answer to ``runs/search``."""
    clauses = _parsed(body.get("filter"))
    view = body.get("run_view_type") or "ACTIVE_ONLY"
    found = [
        run
        for run in state.runs.values()
        if run.experiment in (body.get("experiment_ids") or [])
        and (view == "ALL" or run.active == (view == "ACTIVE_ONLY"))
        and mlflow_filter.matches(clauses, run.column)
    ]
    found.sort(key=lambda run: -run.start)
    for column in reversed(body.get("order_by") or []):
        kind, key, descending = mlflow_filter.order(column)
        known = [run for run in found if run.column(kind, key) is not None]
        unknown = [run for run in found if run.column(kind, key) is None]
        known.sort(key=lambda run: run.column(kind, key), reverse=descending)
        found = known + unknown
    at, count = int(body.get("page_token") or 0), int(body.get("max_results") or 1000)
    answer: Body = {"runs": [run_view(state, run) for run in found[at : at + count]]}
    if at + count < len(found):
        answer["next_page_token"] = str(at + count)
    return answer


def search_models(state: State, body: Body) -> Body:
    """Answer to ``logged-models/search``."""
    clauses = _parsed(body.get("filter"))
    wanted = body.get("experiment_ids") or []
    models = [
        model_view(state, model_id)
        for model_id, model in state.models.items()
        if model["info"]["experiment_id"] in wanted and mlflow_filter.matches(clauses, _model_column(model))
    ]
    return {"models": models[: int(body.get("max_results") or 100)]}


def _parsed(text: Optional[str]) -> List[mlflow_filter.Clause]:
    try:
        return mlflow_filter.parse(text or "")
    except ValueError as error:
        raise invalid(str(error)) from None


def _model_column(model: Body) -> mlflow_filter.Lookup:
    def column(kind: str, key: str) -> Any:
        if kind == "metric":
            values = [p["value"] for (name, _), p in model["metrics"].items() if name == key]
            return float(values[-1]) if values else None
        if kind in ("tag", "param"):
            pairs = model["info"]["tags"] if kind == "tag" else model["params"]
            return next((p.get("value") for p in pairs if p["key"] == key), None)
        value = model["info"].get(key)
        return value.replace("LOGGED_MODEL_", "") if key == "status" and value else value

    return column


def _pairs(values: Dict[str, str]) -> List[Body]:
    return [{"key": key, "value": value} for key, value in values.items()]
