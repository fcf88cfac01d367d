"""When the trials of a search with a limit of time end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from jupyter_amltrain.automl.job.clock import Clock, Deadline
from tests.helpers import until


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Signals that have arrived."""
    found: list[int] = []
    before = signal.signal(signal.SIGVTALRM, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGVTALRM, before)


def test_longer_fit_ends_the_trials_earlier() -> None:
    clock = Clock(60.0, time.time() - 15, 0.0, 100)
    assert not clock.is_due(0.0) and clock.is_due(30.0)


def test_slow_beginning_leaves_more_for_the_end() -> None:
    quick, slow = Clock(600.0, time.time() - 5, 0.0, 100), Clock(600.0, time.time() - 100, 0.0, 100)
    assert quick.left and quick.for_trials and slow.left and slow.for_trials
    assert quick.left - quick.for_trials < slow.left - slow.for_trials


def test_earlier_attempts_count() -> None:
    assert Clock(60.0, time.time(), 59.0, 100).is_due(0.0)


def test_without_limit_nothing_is_due() -> None:
    clock = Clock(None, time.time() - 1e6, 0.0, 100)
    assert clock.left is None and clock.for_trials is None and not clock.is_due(1e6)


def test_deadline_interrupts_until_it_is_closed(stopped: list[int]) -> None:
    deadline = Deadline(Clock(60.0, time.time() - 59, 0.0, 100), lambda: 0.0, signal.SIGVTALRM)
    deadline.start()
    until(lambda: len(stopped) > 1, "two signals")
    deadline.close()
    assert deadline.is_passed and not deadline.is_alive()


def test_first_trial_is_not_interrupted(stopped: list[int]) -> None:
    fits: list[float | None] = [None]
    deadline = Deadline(Clock(60.0, time.time() - 90, 0.0, 100), lambda: fits[0], signal.SIGVTALRM)
    deadline.start()
    time.sleep(0.6)
    assert not stopped
    fits[0] = 0.0
    until(lambda: bool(stopped), "a signal")
    deadline.close()
