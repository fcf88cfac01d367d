"""State of a driver without its loop: replay of its journal, cancels and refusals."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import pytest

from jupyter_amltrain.errors import CapacityError, TargetUnreachable, UnknownRun
from jupyter_amltrain.jobs.sweep import driver_of, search_of
from jupyter_amltrain.kernel.driven_runs import cancel
from jupyter_amltrain.kernel.driver_process import DriverJob
from jupyter_amltrain.schema.child_run import MAX_CURVE_POINTS
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.sweeps.driver import SweepDriver
from jupyter_amltrain.sweeps.samplers import Proposer
from jupyter_amltrain.sweeps.sweep_event import ASK, REPORT, SENT, TELL, Event, points_fields
from jupyter_amltrain.sweeps.trial import Trial

T = TypeVar("T")


def finished(check: Coroutine[Any, Any, T]) -> T:
    """Run it in a thread: the browser tests leave an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, check).result(60)


class FakeKernel:
    """A kernel whose store has the runs in `runs`, and whose first cancels fail."""

    def __init__(self, failures: int = 0) -> None:
        self.runs: dict[str, Any] = {}
        self.store = SimpleNamespace(get=self.runs.get)
        self.failures, self.canceled = failures, []  # type: ignore[var-annotated]
        self.loop = SimpleNamespace(start=lambda job, name: asyncio.ensure_future(job), offload=asyncio.to_thread)

    async def find(self, handle: str) -> str:
        raise UnknownRun(handle)

    async def cancel(self, handle: str) -> None:
        if self.failures:
            self.failures -= 1
            raise TargetUnreachable("no answer")
        self.canceled.append(handle)


def make_driver(
    folder: Path, kernel: Any = None, target: str = "local", policy: str | None = "bandit(0.1)", **slots: int
) -> SweepDriver:
    sweep, _ = search_of({"x": "uniform(0, 5)"}, goal="maximize score", seed=1, policy=policy, max_trials=9)
    spec = driver_of(JobSpec(name="t", script="pass"), sweep, target, slots)
    (folder / "job.json").write_text(json.dumps({"run": "t-1", "spec": msgspec.to_builtins(spec)}))
    driver = SweepDriver(DriverJob.read(kernel or FakeKernel(), folder, {}))
    driver._journal.open()
    return driver


def events_of(driver: SweepDriver, *reports: dict[str, Any]) -> list[Event]:
    """Proposal, submit and one report of one trial after another."""
    proposer, events = Proposer(driver.sweep), []
    for fields in reports:
        number, params = proposer.ask() or (0, {})
        events += [
            Event(op=ASK, trial=number, params=params, run_id=f"t-{number}", target="local"),
            Event(op=SENT, trial=number),
            Event(op=REPORT, trial=number, **fields),
        ]
    return events


@pytest.mark.parametrize(
    "reports",
    [
        [{"steps": (3, 4), "values": (90.0, 100.0)}, {"steps": (3, 4), "values": (50.0, 1.0)}],
        [{"step": 4, "value": 100.0}, {"step": 4, "value": 1.0}],  # of an earlier version
    ],
)
def test_replayed_stop_of_policy_is_known(tmp_path: Path, reports: list[dict[str, Any]]) -> None:
    driver = make_driver(tmp_path)
    driver._replay(events_of(driver, *reports))
    assert [trial.early for trial in driver.results.trials.values()] == [False, True]
    assert [trial.steps[-1] for trial in driver.results.trials.values()] == [4, 4]
    assert "bandit" in driver.results.trials[1].reason


def test_replayed_report_of_several_values_stops_trial_at_first_bad_one(tmp_path: Path) -> None:
    driver = make_driver(tmp_path)
    driver._replay(
        events_of(driver, {"steps": (0, 1), "values": (50.0, 100.0)}, {"steps": (0, 1), "values": (1.0, 100.0)})
    )
    assert [trial.early for trial in driver.results.trials.values()] == [False, True]
    assert "report 1" in driver.results.trials[1].reason


def test_ended_trial_has_curve_of_bounded_size_after_replay(tmp_path: Path) -> None:
    driver = make_driver(tmp_path)
    values = (*map(float, range(5000)), "nan")
    events = events_of(driver, {"steps": tuple(range(5001)), "values": values})
    driver._replay(events)
    curve = driver.results.trials[0].curve
    again = make_driver(tmp_path, policy=None)
    again._replay(
        [*events[:2], Event(op=TELL, trial=0, state="completed", value=4999.0, ended=1.0, **points_fields(curve))]
    )
    row = again.results.row(again.results.trials[0], is_best=True)
    assert 2 < len(row.steps) <= MAX_CURVE_POINTS and row.steps[0] == 0 and row.steps[-1] == 5000
    assert row.value == 4999.0 and row.values[-1] is None and len(again.results.trials[0].values) <= MAX_CURVE_POINTS


def test_end_in_journal_of_earlier_version_has_curve_of_its_reports(tmp_path: Path) -> None:
    driver = make_driver(tmp_path)
    events = events_of(driver, {"step": 7, "value": 3.0})
    driver._replay([*events, Event(op=TELL, trial=0, state="completed", value=3.0, ended=1.0)])
    assert driver.results.row(driver.results.trials[0], is_best=True).steps == (7,)


def test_trial_without_values_fails_no_sweep_whose_metrics_are_not_read_again(tmp_path: Path) -> None:
    driver = make_driver(tmp_path, policy=None)
    end = Event(op=TELL, trial=0, state="completed", ended=1.0)
    driver._replay([event for event in [*events_of(driver, {}, {}), end] if event.op != REPORT])
    finished(driver._check_limits())
    assert not driver._failure


def test_cancel_reaches_trial_that_is_being_submitted() -> None:
    async def check() -> list[str]:
        kernel = FakeKernel(failures=1)
        trial = Trial(0, {}, RunHandle("local/t-0"), 0.0)
        trial.task = asyncio.ensure_future(asyncio.sleep(60))  # type: ignore[arg-type]
        task = asyncio.ensure_future(cancel(kernel, trial))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        kernel.runs[trial.handle] = object()
        trial.sent = True
        await asyncio.wait_for(task, 20)
        trial.task.cancel()
        return kernel.canceled

    assert finished(check()) == ["local/t-0"]


def test_canceled_trial_is_not_submitted(tmp_path: Path) -> None:
    async def check() -> str:
        driver = make_driver(tmp_path)
        driver.results.trials[0] = trial = Trial(0, {}, RunHandle("local/t-0"), 0.0)
        driver._search.ask(len(driver._search.points) + 1)
        trial.cancel_requested = True
        driver._follow(trial)
        await asyncio.wait([trial.task])  # type: ignore[list-item]
        await driver._end(trial)
        return trial.state

    assert finished(check()) == "canceled"


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ({"big": 8, "small": 1}, {"big": 8, "small": 1}),
        ({"big": 4, "small": 2}, {"big": 6, "small": 3}),
        ({}, {"big": 5, "small": 4}),
        ({"small": 2}, {"big": 5, "small": 4}),  # an unknown number is the average of the others
    ],
)
def test_targets_share_trials_in_proportion_to_their_slots(
    tmp_path: Path, slots: dict[str, int], expected: dict[str, int]
) -> None:
    driver = make_driver(tmp_path, target="big,small", **slots)
    for number in range(9):
        driver.results.trials[number] = Trial(number, {}, RunHandle(f"{driver._next_target()}/t-{number}"), 0.0)
    assert Counter(trial.target for trial in driver.results.trials.values()) == expected


def test_target_that_can_run_no_trial_gets_no_more(tmp_path: Path) -> None:
    async def refuse() -> None:
        raise CapacityError("no GPU")

    async def check() -> tuple[list[str], list[str], str]:
        driver, left = make_driver(tmp_path, target="gpubox,local"), []
        for number, target in enumerate(("local", "gpubox")):
            driver.results.trials[number] = trial = Trial(number, {}, RunHandle(f"{target}/t-{number}"), 0.0)
            driver._search.ask(len(driver._search.points) + 1)
            trial.task = asyncio.ensure_future(refuse())  # type: ignore[arg-type]
            await asyncio.wait([trial.task])
            await driver._end(trial)
            left.append(",".join(driver.targets))
        return left, [trial.state for trial in driver.results.trials.values()], driver._failure

    assert finished(check()) == (["gpubox", ""], ["failed", "failed"], "no GPU")
