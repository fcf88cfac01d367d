"""The board of a sweep: the part of a sweep's record that shows its trials, by columns and bounded."""

from __future__ import annotations

from typing import Any

import msgspec

#: Maximum trials of a board, and of its curves.
MAX_BOARD_TRIALS, MAX_BOARD_CURVES = 1000, 60


class TrialCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The primary metric of one trial.

    Attributes
    ----------
    trial
        Position of the trial in the columns of the board.
    value
        ``None`` for NaN and infinite values.
    """

    trial: int
    step: tuple[int, ...]
    value: tuple[float | None, ...]


class TrialAxis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An axis of the parallel coordinates. Its units are values, powers of ten, or the positions of categories.

    Attributes
    ----------
    name
        Parameter; empty for the metric.
    kind
        ``linear``, ``log`` or ``category``.
    low, high
        Ends of the axis, in its units, as the `ticks`.
    categories
        Values of a category axis, in order.
    """

    name: str = ""
    title: str
    kind: str = "linear"
    low: float = 0.0
    high: float = 1.0
    ticks: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    categories: tuple[Any, ...] = ()


class SweepBoard(msgspec.Struct, frozen=True, kw_only=True):
    """Trials of a sweep in the order of their numbers.

    Attributes
    ----------
    metric, goal
        The primary metric; ``maximize`` or ``minimize``.
    sampler, policy
        As they are typed; an empty policy for none.
    space
        Expression of each searched parameter, as it is typed.
    max_trials
        ``None`` for all points of a grid.
    own
        Whether the job runs the trials in its own process: its log and figures are about them.
    number, state, value, seconds, handle
        One item for each trial: its number, a state of a run, the last finite value of the metric, the run time, and
        the handle of its run (empty if it has none of its own).
    params
        Values by parameter, one item for each trial; ``None`` where a trial does not have the parameter, and at the
        positions of `nulls`.
    nulls
        Positions of the trials whose value is null, by parameter.
    early
        Positions of the trials that the policy stopped.
    reason
        Why trials were stopped or failed, by position as text.
    best
        Position of the best completed trial.
    importance
        Share of each parameter in the differences of the metric, from 0 to 1; empty if unknown.
    hidden
        Number of further trials.
    message
        What the sweep waits for, or why it ended; one sentence.
    axes
        Axes of the parameters by importance, then that of the metric.
    levels
        Color of each trial, from 0 for the worst value; -1 without a value.
    counts_text, best_text, goal_text
        Summary of the trials, the best one, and what is searched for.
    """

    metric: str
    goal: str
    sampler: str
    policy: str = ""
    space: dict[str, str] = {}
    max_trials: int | None = None
    max_concurrent: int = 1
    own: bool = False
    number: tuple[int, ...] = ()
    state: tuple[str, ...] = ()
    value: tuple[float | None, ...] = ()
    seconds: tuple[float | None, ...] = ()
    handle: tuple[str, ...] = ()
    params: dict[str, tuple[Any, ...]] = {}
    nulls: dict[str, tuple[int, ...]] = {}
    early: tuple[int, ...] = ()
    reason: dict[str, str] = {}
    curves: tuple[TrialCurve, ...] = ()
    best: int | None = None
    importance: dict[str, float] = {}
    hidden: int = 0
    message: str = ""
    axes: tuple[TrialAxis, ...] = ()
    levels: tuple[int, ...] = ()
    counts_text: str = ""
    best_text: str = ""
    goal_text: str = ""
