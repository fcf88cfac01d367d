"""Texts of a sweep: its trials, the best one, the goal; and the parts of a board that they name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.schema.run import RunState
from jupyter_amltrain.schema.sweep_board import SweepBoard
from jupyter_amltrain.text import NULL, shorten, value_text

#: Maximum parameters that the summary and the line of importance name.
_MAX_NAMED = 6
#: Maximum characters of a message.
_MAX_MESSAGE_CHARS = 300

#: State of a trial that the policy stopped; the others have the state of their run.
STOPPED_EARLY = "stopped early"

#: States in the order of a trial's life, without ``completed``.
_COUNTED = ("queued", "preparing", "running", "finalizing", STOPPED_EARLY, "failed", "lost", "canceled")


def trial_states(board: SweepBoard) -> list[str]:
    """Return the state of each trial."""
    early = set(board.early)
    return [STOPPED_EARLY if at in early else state for at, state in enumerate(board.state)]


def is_live(state: str) -> bool:
    """Whether a trial has not ended."""
    return state != STOPPED_EARLY and not (state in set(RunState) and RunState(state).terminal)


def parameters(board: SweepBoard) -> list[str]:
    """Return the parameters by importance, the others in the order of the space."""
    names = list(dict.fromkeys([*board.space, *board.params]))
    return sorted(names, key=lambda name: -board.importance.get(name, -1.0))


def shown_values(board: SweepBoard, name: str) -> Sequence[Any]:
    """Return the values of a parameter: the text ``null`` for null, ``None`` for trials without the parameter."""
    nulls = set(board.nulls.get(name, ()))
    values = board.params.get(name, ())
    return [NULL if at in nulls else value for at, value in enumerate(values)] if nulls else values


def counts_text(board: SweepBoard) -> str:
    """Return ``12 of 40 trials, 4 running, 3 stopped early, 1 failed``: of a number the trials that have ended."""
    live = 0 if board.max_trials is None else sum(map(is_live, trial_states(board)))
    total = len(board.number) + board.hidden - live
    of = "" if board.max_trials is None else f" of {board.max_trials}"
    plural = "" if (board.max_trials or total) == 1 else "s"
    counts = Counter(trial_states(board))
    return ", ".join(
        [f"{total}{of} trial{plural}", *(f"{counts[state]} {state}" for state in _COUNTED if counts[state])]
    )


def best_text(board: SweepBoard) -> str:
    """Return ``best val_accuracy 0.953 (trial 7: lr 0.0123, layers 2)``; empty without a completed trial."""
    if board.best is None:
        return ""
    values = _params_of(board, board.best)
    shown = [f"{name} {value_text(value)}" for name, value in list(values.items())[:_MAX_NAMED]]
    words = ", ".join([*shown, *(["…"] if len(values) > _MAX_NAMED else [])])
    trial = f"trial {board.number[board.best]}" + (f": {words}" if words else "")
    return f"best {board.metric} {value_text(board.value[board.best])} ({trial})"


def goal_text(board: SweepBoard) -> str:
    """Return ``maximize val_accuracy, sampling: random, early stopping: median_stopping, 4 at a time``."""
    parts = [f"{board.goal} {board.metric}"]
    parts += [f"sampling: {shorten(board.sampler, 60)}"] if board.sampler else []
    parts += [f"early stopping: {shorten(board.policy, 60)}"] if board.policy else []
    return ", ".join([*parts, *([] if board.own else [f"{board.max_concurrent} at a time"])])


def importance_text(board: SweepBoard) -> str:
    """Return ``importance: lr 61 %, layers 18 %``; empty if it is unknown."""
    shares = sorted(board.importance.items(), key=lambda item: -item[1])
    if not shares:
        return ""
    return "importance: " + ", ".join(f"{name} {_percent(share)}" for name, share in shares[:_MAX_NAMED])


def message_text(board: SweepBoard) -> str:
    """Return the message of the board in one line."""
    return shorten(board.message, _MAX_MESSAGE_CHARS)


def _params_of(board: SweepBoard, at: int) -> Mapping[str, Any]:
    columns = {name: shown_values(board, name) for name in parameters(board)}
    return {name: column[at] for name, column in columns.items() if at < len(column) and column[at] is not None}


def _percent(share: float) -> str:
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"
