"""Rows of steps and trials, made of what run history and MLflow say, without a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.azure import job_body, mirror_store
from jupyter_amltrain.azure.service import children
from jupyter_amltrain.azure.service.mirror_files import MirrorFiles
from jupyter_amltrain.errors import CommandError, TargetUnreachable
from jupyter_amltrain.schema.child_run import MAX_CHILDREN, MAX_CURVE_POINTS, ChildRun, ChildRuns, most_relevant
from tests.azure.conftest import ROOT

RECORDED = ROOT / "azureml_emulator" / "data" / "recordings" / "02_pipeline_two_steps_failed_children.json"
SECONDS = "2026-11-22T10:00:{:02d}.1234567+00:00"


class Answer(NamedTuple):
    status: int
    json: Any


class Service:
    """Both APIs of a workspace, with the requests to them."""

    history, mlflow, name = "history", "mlflow", "lab"
    subscription, resource_group, workspace, tenant = "s", "g", "w", ""

    def __init__(self, found: list[dict[str, Any]], metrics: dict[str, Any], job: dict[str, Any] | None = None) -> None:
        self.found, self.metrics, self.job = found, metrics, job
        self.requests: list[str] = []
        self.curves: dict[str, list[dict[str, Any]]] = {}
        self.data = self.arm = self

    def pages(self, path: str, **more: Any) -> list[dict[str, Any]]:
        return self.found[::-1]

    def get(self, path: str, **more: Any) -> Answer:
        if path.startswith("jobs/"):
            return Answer(200 if self.job else 404, self.job)
        run_id = more["params"]["run_id"]
        self.requests.append(run_id)
        if path.endswith("get-history"):
            return Answer(200, {"metrics": self.curves.get(run_id, [])})
        metrics = self.metrics.get(run_id)
        if isinstance(metrics, Exception):
            raise metrics
        return Answer(404, None) if metrics is None else Answer(200, {"run": {"data": {"metrics": metrics}}})


def trial(number: int, status: str = "Completed", **more: Any) -> dict[str, Any]:
    ended = status in ("Completed", "Failed", "Canceled")
    times = {"createdUtc": SECONDS.format(number % 60), "startTimeUtc": SECONDS.format(number % 60)}
    end = {"endTimeUtc": SECONDS.format(59)} if ended else {}
    return {"runId": f"s_{number}", "displayName": f"s_{number}", "status": status, **times, **end, **more}


def metric(value: Any, key: str = "loss", timestamp: int = 1) -> dict[str, Any]:
    return {"key": key, "value": value, "timestamp": timestamp}


def sweep(goal: str = "Minimize", metric: str = "loss") -> dict[str, Any]:
    return {"properties": {"jobType": "Sweep", "objective": {"goal": goal, "primaryMetric": metric}}}


def looked(
    folder: Path, service: Service, job_type: str = "sweep", ended: bool = True, **parent: Any
) -> tuple[ChildRun, ...]:
    (folder / "job.json").write_text(json.dumps({"spec": {"job_type": job_type}}))
    mirror = MirrorFiles(folder)
    place: Any = service
    children.update_children(mirror, place, "s", parent=parent, now=1e9, period=0.0, ended=ended)
    mirror.save()
    return mirror_store.children(folder).runs


def test_recorded_steps_have_names_and_failure_causes(tmp_path: Path) -> None:
    found = json.loads(RECORDED.read_text())["entries"][-1]["response"]["value"]
    runs = looked(tmp_path, Service(found, {}), "pipeline")
    assert len(runs) == 2 and {run.kind for run in runs} == {"step"}
    second = next(run for run in runs if run.name == "hello_world_inline_commandjob_2")
    assert second.state == "failed" and "Authentication failed" in second.detail and len(second.detail) <= 200
    assert second.seconds == pytest.approx(202.53, abs=0.01)
    assert second.url == f"https://ml.azure.com/runs/{second.id}?wsid=/subscriptions/s/resourcegroups/g/workspaces/w"


@pytest.mark.parametrize(("goal", "best"), [("Minimize", "s_1"), ("Maximize", "s_0")])
def test_best_trial_without_service_choice_follows_goal(tmp_path: Path, goal: str, best: str) -> None:
    metrics = {"s_0": [metric(0.5)], "s_1": [metric(0.1)], "s_2": [metric(0.01)]}
    service = Service([trial(0), trial(1), trial(2, "Failed")], metrics, sweep(goal))
    runs = looked(tmp_path, service, ended=False)
    assert [run.id for run in runs if run.best] == [best]


@pytest.mark.parametrize("where", ["properties", "tags"])
def test_best_trial_named_by_service_is_used(tmp_path: Path, where: str) -> None:
    service = Service([trial(0), trial(1)], {"s_0": [metric(0.5)], "s_1": [metric(0.1)]}, sweep())
    name = "best_child_run_id" if where == "properties" else "automl_best_child_run_id"
    runs = looked(tmp_path, service, **{where: {name: "s_0"}})
    assert [run.best for run in runs] == [True, False]


def test_primary_metric_spelling_of_service_is_matched(tmp_path: Path) -> None:
    job = {"properties": {"jobType": "AutoML", "taskDetails": {"primaryMetric": "AUCWeighted"}}}
    service = Service([trial(0)], {"s_0": [metric(0.2, "log_loss", 9), metric(0.9, "AUC_weighted")]}, job)
    (run,) = looked(tmp_path, service, "automl")
    assert (run.metric, run.value, run.best) == ("AUC_weighted", 0.9, False)


def test_step_shows_last_logged_metric(tmp_path: Path) -> None:
    points = [metric(1, "rows", 3), metric(2, "loss", 5), metric(3, "system/cpu", 9)]
    (run,) = looked(tmp_path, Service([trial(0)], {"s_0": points}), "pipeline")
    assert (run.metric, run.value) == ("loss", 2.0)


def test_ended_child_metrics_are_read_once(tmp_path: Path) -> None:
    service = Service([trial(0), trial(1, "Running")], {"s_0": [metric(0.5)]}, sweep())
    looked(tmp_path, service, ended=False)
    service.metrics["s_1"] = [metric(0.25)]
    runs = looked(tmp_path, service, ended=False)
    assert sorted(service.requests) == ["s_0", "s_1", "s_1"]
    assert [run.value for run in runs] == [0.5, 0.25]


def test_child_metrics_after_read_error_are_retried(tmp_path: Path) -> None:
    service = Service([trial(0)], {"s_0": TargetUnreachable("away")}, sweep())
    assert looked(tmp_path, service, ended=False)[0].metric == ""
    with pytest.raises(TargetUnreachable):  # the last poll is repeated: nothing is read after it
        looked(tmp_path, service)
    service.metrics["s_0"] = [metric("NaN")]
    assert looked(tmp_path, service)[0] == msgspec.structs.replace(
        looked(tmp_path, service)[0], metric="loss", value=None
    )


def test_metrics_that_stay_unreadable_do_not_hold_up_the_end(tmp_path: Path) -> None:
    service = Service([trial(0)], {"s_0": TargetUnreachable("away")}, sweep())
    with pytest.raises(TargetUnreachable):
        looked(tmp_path, service)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jupyter_amltrain.azure.service.metrics._RETRY_PERIOD_S", -1.0)
        assert looked(tmp_path, service)[0].metric == ""


def test_unknown_child_state_is_shown_as_is(tmp_path: Path) -> None:
    (run,) = looked(tmp_path, Service([trial(0, "Bypassed")], {}), "pipeline")
    assert run.state == "bypassed"


def test_many_trials_keep_best_and_newest(tmp_path: Path) -> None:
    many = [trial(0, createdUtc=f"2026-11-22T10:00:00.{n:07d}", runId=f"s_{n}") for n in range(1300)]
    metrics = {f"s_{n}": [metric(1.0)] for n in range(1300)}
    runs = looked(tmp_path, Service(many, metrics, sweep()), properties={"best_child_run_id": "s_7"})
    kept = mirror_store.children(tmp_path)
    assert len(runs) == MAX_CHILDREN and kept.hidden == 1300 - MAX_CHILDREN
    assert runs[0].id == "s_7" and runs[0].best and runs[-1].id == "s_1299"


def test_unchanged_children_are_not_written(tmp_path: Path) -> None:
    service: Any = Service([trial(0)], {}, sweep())
    looked(tmp_path, service)
    mirror = MirrorFiles(tmp_path)
    children.update_children(mirror, service, "s", parent={}, now=2e9, period=0.0, ended=False)
    assert "children" not in mirror.grown


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60),
    st.integers(min_value=1, max_value=40),
)
def test_children_selection_keeps_order_best_and_live(states: list[tuple[bool, bool]], limit: int) -> None:
    runs = tuple(
        ChildRun(id=str(i), name=str(i), best=best, ended=1.0 if ended else None)
        for i, (best, ended) in enumerate(states)
    )
    kept = most_relevant(runs, limit)
    assert len(kept) == min(limit, len(runs)) and [int(run.id) for run in kept] == sorted(int(r.id) for r in kept)
    gone = [run for run in runs if run not in kept]
    assert not any(run.best for run in gone) or all(run.best for run in kept)
    assert not any(run.ended is None for run in gone) or all(run.best or run.ended is None for run in kept)


def test_child_is_found_by_name_id_or_prefix_only() -> None:
    runs = ChildRuns(runs=(ChildRun(id="a1", name="prep"), ChildRun(id="b2", name="prep"), ChildRun(id="c3", name="x")))
    assert runs.find("x").id == runs.find("c").id == "c3" and runs.find("b2").id == "b2"
    for name in ("prep", "nobody", ""):
        with pytest.raises(CommandError):
            runs.find(name)


def test_metric_written_after_the_end_of_its_child_is_read_at_the_end_of_the_parent(tmp_path: Path) -> None:
    service = Service([trial(0)], {}, sweep())
    (early,) = looked(tmp_path, service, ended=False)
    assert (early.metric, early.value) == ("", None)
    looked(tmp_path, service, ended=False)
    assert service.requests == ["s_0"]  # while the parent lives, not again
    service.metrics["s_0"] = [metric(0.5)]
    (late,) = looked(tmp_path, service)
    assert (late.metric, late.value) == ("loss", 0.5)


SPACE = {"lr": ["loguniform", [-9.0, 0.0]], "layers": ["choice", [[1, 2]]], "flag": ["choice", [[True, False]]]}


def searched(
    folder: Path, service: Service, policy: str | None = "MedianStopping", period: float = 0.0, **parent: Any
) -> list[ChildRun]:
    """Rows of a sweep whose search is known."""
    termination = {"earlyTermination": {"policyType": policy}} if policy else {}
    body = {**sweep()["properties"], "searchSpace": SPACE, **termination}
    spec = job_body.spec_of_foreign_job("s", body)
    (folder / "job.json").write_text(json.dumps({"spec": msgspec.to_builtins(spec)}))
    mirror = MirrorFiles(folder)
    place: Any = service
    now = 1.0 + float(mirror.facts.get("children_due") or 1e9)  # later than the reading before
    children.update_children(mirror, place, "s", parent=parent, now=now, period=period, ended=False)
    mirror.save()
    return list(mirror_store.children(folder).runs)


def values(number: int, status: str = "Completed", **more: Any) -> dict[str, Any]:
    text = json.dumps({"lr": "0.01", "layers": "2.0", "flag": "True"})
    return trial(number, status, tags={"hyperparameters": text}, **more)


def test_trials_of_sweep_have_numbers_and_typed_values(tmp_path: Path) -> None:
    service = Service([values(10), values(2), trial(3)], {})
    rows = searched(tmp_path, service, tags={"s_3": '{"lr": 0.5}', "s_2": "not JSON"})
    assert [row.number for row in rows] == [2, 3, 10]
    assert rows[0].params == {"lr": 0.01, "layers": 2, "flag": True} and rows[1].params == {"lr": 0.5}
    assert type(rows[0].params["layers"]) is int


@pytest.mark.parametrize(
    ("policy", "parent", "early"),
    [("MedianStopping", "Running", True), (None, "Running", False), ("MedianStopping", "CancelRequested", False)],
)
def test_canceled_trial_is_early_only_by_policy(tmp_path: Path, policy: str | None, parent: str, early: bool) -> None:
    service = Service([values(0, "Canceled")], {})
    searched(tmp_path, service, policy, status="Running")
    (row,) = searched(tmp_path, service, policy, status=parent)
    assert row.early is early and bool(row.detail) is early


@pytest.mark.parametrize(("parent", "early"), [("Running", False), ("Completed", True), ("Canceled", False)])
def test_trial_just_canceled_is_early_once_its_sweep_has_completed(tmp_path: Path, parent: str, early: bool) -> None:
    service = Service([values(0, "Running")], {})
    searched(tmp_path, service, status="Running")
    service.found[0]["status"] = "Canceled"
    (row,) = searched(tmp_path, service, status=parent)
    assert row.early is early


def test_trial_is_not_early_by_a_sweep_that_was_read_before_it(tmp_path: Path) -> None:
    service = Service([values(0, "Canceled")], {})
    found = [searched(tmp_path, service, period=10.0, status="Running")[0].early for _ in range(4)]
    assert found == [False, False, True, True]  # once the sweep was read again: its details are up to 20 s old


def test_trial_that_was_stopped_early_remains_so_when_its_sweep_is_canceled(tmp_path: Path) -> None:
    service = Service([values(0, "Canceled"), values(1, "Running")], {})
    searched(tmp_path, service, status="Running")
    searched(tmp_path, service, status="Running")
    service.found[1]["status"] = "Canceled"
    rows = searched(tmp_path, service, status="Canceled")
    assert [row.early for row in rows] == [True, False]


def test_curve_is_read_of_trial_that_reports_more_than_once(tmp_path: Path) -> None:
    points = [{"value": 1 / (n + 1), "step": n, "timestamp": n} for n in range(500)]
    service = Service([values(0), values(1)], {"s_0": [metric(0.002) | {"step": 499}], "s_1": [metric(0.5)]})
    service.curves["s_0"] = points
    first, second = searched(tmp_path, service)
    assert len(first.steps) == MAX_CURVE_POINTS and (first.steps[0], first.steps[-1]) == (0, 499)
    assert first.values[0] == 1.0 and second.steps == ()
    service.curves.clear()
    assert searched(tmp_path, service)[0].steps == first.steps and service.requests.count("s_0") == 2


def test_foreign_sweep_of_unknown_form_has_no_search() -> None:
    body = {**sweep()["properties"], "searchSpace": {"x": ["new", [1]]}}
    assert job_body.spec_of_foreign_job("s", body).sweep is None
