"""Entry -> :class:`~jupyter_amltrain.schema.sweep_board.SweepBoard`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.sweep_axes import axes_of, metric_values, trial_levels
from jupyter_amltrain.kernel.sweep_text import best_text, counts_text, goal_text
from jupyter_amltrain.schema.child_run import ChildRun, most_relevant
from jupyter_amltrain.schema.search_space import expression_text, parameter_names
from jupyter_amltrain.schema.sweep import Sweep, policy_text
from jupyter_amltrain.schema.sweep_board import MAX_BOARD_CURVES, MAX_BOARD_TRIALS, SweepBoard, TrialCurve

#: Maximum characters of a value that is a text, and of a reason; maximum reasons.
_MAX_VALUE_CHARS, _MAX_REASON_CHARS, _MAX_REASONS = 40, 200, 60
#: Maximum parameters of trials that a job runs itself: each model may have others.
_MAX_OWN_PARAMS = 10
#: Points of all curves together.
_MAX_POINTS = 3000


def board_of(entry: Entry) -> SweepBoard | None:
    """Return the board of a sweep, or of a job with trials of its own; ``None`` for any other run."""
    sweep, own = entry.run.spec.sweep, entry.run.spec.own_trials
    trials = most_relevant(entry.children.runs, MAX_BOARD_TRIALS)
    if sweep is not None:
        return _board(entry, trials, parameter_names(sweep.space), _search(sweep))
    if own is None or (not trials and entry.run.status.state.terminal):
        return None
    search = SweepBoard(
        metric=own.objective.metric,
        goal=own.objective.goal,
        sampler=own.searcher,
        max_trials=own.max_trials,
        own=True,
    )
    return _board(entry, trials, _own_names(trials), search)


def _search(sweep: Sweep) -> SweepBoard:
    """Return the board of a sweep without its trials."""
    return SweepBoard(
        metric=sweep.objective.metric,
        goal=sweep.objective.goal,
        sampler=sweep.sampler,
        policy=policy_text(sweep.policy) if sweep.policy is not None else "",
        space={name: expression_text(expression) for name, expression in sweep.space.items()},
        max_trials=sweep.limits.max_trials,
        max_concurrent=sweep.limits.max_concurrent,
    )


def _own_names(trials: Sequence[ChildRun]) -> list[str]:
    """Return the parameters that most trials have, in the order in which they appear."""
    counts = Counter(name for trial in trials for name in trial.params)
    most = {name for name, _ in counts.most_common(_MAX_OWN_PARAMS)}
    return [name for name in counts if name in most]


def _board(entry: Entry, trials: Sequence[ChildRun], names: Sequence[str], search: SweepBoard) -> SweepBoard:
    reasons = [(i, trial.detail) for i, trial in enumerate(trials) if trial.detail and trial.ended is not None]
    board = msgspec.structs.replace(
        search,
        number=tuple(i if trial.number is None else trial.number for i, trial in enumerate(trials)),
        state=tuple(trial.state for trial in trials),
        value=tuple(None if trial.value is None else float(f"{trial.value:.7g}") for trial in trials),
        seconds=tuple(None if trial.seconds is None else round(trial.seconds, 1) for trial in trials),
        handle=tuple(trial.handle for trial in trials),
        params={name: tuple(_value(trial.params.get(name)) for trial in trials) for name in names},
        nulls={name: at for name in names if (at := _nulls(name, trials))},
        early=tuple(i for i, trial in enumerate(trials) if trial.early),
        reason={str(i): text[:_MAX_REASON_CHARS] for i, text in reasons[-_MAX_REASONS:]},
        curves=_curves(trials),
        best=next((i for i, trial in enumerate(trials) if trial.best), None),
        importance={name: round(share, 4) for name, share in entry.children.importance.items()},
        hidden=entry.children.hidden + len(entry.children.runs) - len(trials),
        message=entry.children.message,
    )
    return drawn(board)


def drawn(board: SweepBoard) -> SweepBoard:
    """Return a board with its axes, colors and texts."""
    return msgspec.structs.replace(
        board,
        axes=axes_of(board),
        levels=trial_levels(metric_values(board), board.goal),
        counts_text=counts_text(board),
        best_text=best_text(board),
        goal_text=goal_text(board),
    )


def _nulls(name: str, trials: Sequence[ChildRun]) -> tuple[int, ...]:
    return tuple(i for i, trial in enumerate(trials) if name in trial.params and trial.params[name] is None)


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if value is None or isinstance(value, bool | int):
        return value
    text = str(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[: _MAX_VALUE_CHARS - 1]}…"


def _curves(trials: Sequence[ChildRun]) -> tuple[TrialCurve, ...]:
    """Return the curves of the best trial, of those that run, and of the newest ones."""
    with_curve = [i for i, trial in enumerate(trials) if len(trial.steps) > 1]
    ranked = sorted(with_curve, key=lambda i: (not trials[i].best, trials[i].ended is not None, -i))[:MAX_BOARD_CURVES]
    curves, left = [], _MAX_POINTS
    for i in ranked:
        trial = trials[i]
        left -= len(trial.steps)
        if left < 0:
            break
        values = tuple(None if value is None else float(f"{value:.5g}") for value in trial.values)
        curves.append(TrialCurve(trial=i, step=trial.steps, value=values))
    return tuple(sorted(curves, key=lambda curve: curve.trial))
