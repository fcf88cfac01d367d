"""State of a driver without its loop: replay of its journal, cancels and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec

from jupyter_amltrain.errors import CapacityError, TargetUnreachable, UnknownRun
from jupyter_amltrain.jobs.sweep import driver_of, search_of
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.sweeps.driver import SweepDriver, Trial
from jupyter_amltrain.sweeps.journal import ASK, REPORT, SENT, Event
from jupyter_amltrain.sweeps.samplers import Proposer

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


def make_driver(folder: Path, kernel: Any = None, target: str = "local") -> SweepDriver:
    sweep, _ = search_of({"x": "uniform(0, 5)"}, goal="maximize score", seed=1, policy="bandit(0.1)", max_trials=9)
    spec = driver_of(JobSpec(name="t", script="pass"), sweep, target)
    (folder / "job.json").write_text(json.dumps({"run": "t-1", "spec": msgspec.to_builtins(spec)}))
    driver = SweepDriver(kernel or FakeKernel(), folder, {})
    driver._journal.open()
    return driver


def test_replayed_stop_of_policy_is_known(tmp_path: Path) -> None:
    driver = make_driver(tmp_path)
    proposer, events = Proposer(driver.sweep), []
    for score in (100.0, 1.0):
        number, params = proposer.ask() or (0, {})
        events += [
            Event(op=ASK, trial=number, params=params, run_id=f"t-{number}", target="local"),
            Event(op=SENT, trial=number),
            Event(op=REPORT, trial=number, value=score),
        ]
    driver._replay(events)
    assert [trial.early for trial in driver.trials.values()] == [False, True]
    assert "bandit" in driver.trials[1].reason


def test_cancel_reaches_trial_that_is_being_submitted(tmp_path: Path) -> None:
    async def check() -> list[str]:
        kernel = FakeKernel(failures=1)
        driver = make_driver(tmp_path, kernel)
        trial = Trial(0, {}, RunHandle("local/t-0"), 0.0)
        trial.task = asyncio.ensure_future(asyncio.sleep(60))  # type: ignore[arg-type]
        task = asyncio.ensure_future(driver._cancel(trial))
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
        driver.trials[0] = trial = Trial(0, {}, RunHandle("local/t-0"), 0.0)
        driver._proposer.ask()
        trial.cancel_requested = True
        driver._follow(trial)
        await asyncio.wait([trial.task])  # type: ignore[list-item]
        await driver._end(trial)
        return trial.state

    assert finished(check()) == "canceled"


def test_target_that_can_run_no_trial_gets_no_more(tmp_path: Path) -> None:
    async def refuse() -> None:
        raise CapacityError("no GPU")

    async def check() -> tuple[list[str], list[str], str]:
        driver, left = make_driver(tmp_path, target="gpubox,local"), []
        for number, target in enumerate(("local", "gpubox")):
            driver.trials[number] = trial = Trial(number, {}, RunHandle(f"{target}/t-{number}"), 0.0)
            driver._proposer.ask()
            trial.task = asyncio.ensure_future(refuse())  # type: ignore[arg-type]
            await asyncio.wait([trial.task])
            await driver._end(trial)
            left.append(",".join(driver.targets))
        return left, [trial.state for trial in driver.trials.values()], driver._failure

    assert finished(check()) == (["gpubox", ""], ["failed", "failed"], "no GPU")
