"""Logged models (MLflow 3.x) as rows; 2.x has no tables for them."""

from __future__ import annotations

import json

from jupyter_amltrain.tracking.rows import Record, Replay


def change_model(replay: Replay, op: str, body: Record, added: Record) -> None:
    """Replay one record of a logged model."""
    if op == "logged-models":
        _create_model(replay, body, added)
        return
    path = op.split("/")
    row = replay.row("SqlLoggedModel", path[1])
    if len(path) > 2:
        _model_pairs(replay, path[1], int(row.experiment_id), body)
        return
    from mlflow.entities import LoggedModelStatus

    status = (body.get("status") or "READY").replace("LOGGED_MODEL_", "")
    row.status = LoggedModelStatus(status.replace("UPLOAD_", "")).to_int()
    row.last_updated_timestamp_ms = added["t"]


def _create_model(replay: Replay, body: Record, added: Record) -> None:
    from mlflow.entities import LoggedModelStatus

    model_id, experiment = added["id"], replay.experiment_of(body.get("experiment_id"))
    if replay.session.get(replay.tables.SqlLoggedModel, model_id) is None:
        replay.session.add(
            replay.tables.SqlLoggedModel(
                model_id=model_id,
                experiment_id=experiment,
                name=added["name"],
                artifact_location=replay.store.location(experiment, "models", model_id),
                creation_timestamp_ms=added["t"],
                last_updated_timestamp_ms=added["t"],
                model_type=body.get("model_type"),
                status=LoggedModelStatus.PENDING.to_int(),
                lifecycle_stage="active",
                source_run_id=body.get("source_run_id"),
            )
        )
        replay.session.flush()
    _model_pairs(replay, model_id, experiment, body)


def _model_pairs(replay: Replay, model_id: str, experiment: int, body: Record) -> None:
    for kind in ("param", "tag"):
        for item in body.get(kind + "s") or []:
            pair = {f"{kind}_key": item["key"], f"{kind}_value": item.get("value") or ""}
            table = f"SqlLoggedModel{kind.capitalize()}"
            replay.merge(table, model_id=model_id, experiment_id=experiment, **pair)


def append_history(replay: Replay, run_id: str, body: Record) -> None:
    """Add to the tag in which MLflow 2.x keeps the models of a run."""
    key = "mlflow.log-model.history"  # what MLflow 2.x shows as the run's models
    row = replay.session.get(replay.tables.SqlTag, (key, run_id))
    history = json.loads(row.value) if row is not None else []
    model = json.loads(body["model_json"])
    if model not in history:
        text = json.dumps([*history, model])
        replay.merge("SqlTag", key=key, run_uuid=run_id, value=text)
