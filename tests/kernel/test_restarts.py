"""Runs that start again, as a notebook sees them: state, record, error, metrics of all attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_amltrain.commands.runs import show_text
from jupyter_amltrain.errors import RunFailed, SpecError
from tests.helpers import api_of, until

#: Fails at its last line but in attempt `good`.
ATTEMPTS = """
import os
folder = os.environ["AML_CHECKPOINT_DIR"]
attempt = len(os.listdir(folder)) + 1
open(os.path.join(folder, str(attempt)), "w").close()
print("attempt", attempt)
if attempt == 1:
    raise ValueError("first")
if attempt != good:
    raise KeyError("later")
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("restarts"), AMLTRAIN_RESTART_PAUSE="0.05") as module:
        yield module


def test_completed_run_shows_its_attempts(api: Any) -> None:
    run = api.submit(ATTEMPTS, params={"good": 2}, max_restarts=3, out=["attempt"], name="again").wait(90)
    assert run.result("attempt") == 2 and run.status.attempt == 2 and run.record().attempt == 2
    assert run.logs().count("attempt 1\n") == run.logs().count("attempt 2\n") == 1
    text = show_text(run)
    assert "completed  attempt 2" in text and "1 of 3" in text and "exited with code 1" in text


def test_failed_run_names_last_error_and_number_of_attempts(api: Any) -> None:
    run = api.submit(ATTEMPTS, params={"good": 0}, max_restarts=2, name="never")
    with pytest.raises(RunFailed) as raised:
        run.wait(90)
    assert "KeyError" in str(raised.value) and "3 attempts" in str(raised.value)
    assert "first" not in raised.value.log_tail and "first" in run.logs()


def test_kernel_follows_run_back_to_queued(api: Any) -> None:
    code = "import time\nprint('up', flush=True)\ntime.sleep(600)"
    run = api.submit(code, max_restarts=1, simulate_preemption=1.0, name="spot")
    until(lambda: run.status.attempt == 2 and run.status.state == "running", "the second attempt")
    assert run.status.attempts[0].reason == "preempted"
    run.cancel()
    until(lambda: run.status.state.terminal, "the end")
    assert run.status.state == "canceled"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_restarts": 101}, "max_restarts"),
        ({"simulate_preemption": 5}, "simulate_preemption"),
        ({"simulate_preemption": -5, "max_restarts": 1}, "simulate_preemption"),
    ],
)
def test_invalid_restarts_are_refused(api: Any, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as raised:
        api.submit("1", **fields)
    assert raised.value.field == field
