"""The board of a sweep as text and HTML: summary, and table of the best trials."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.output.run_table import MAX_PARAMS, NULL, RunTable, value_text
from jupyter_amltrain.schema.run import RunState
from jupyter_amltrain.schema.sweep_board import SweepBoard
from jupyter_amltrain.text import seconds_text

#: Maximum trials of the text and of the HTML.
TABLE_TRIALS = 10

#: Maximum parameters that the summary and the line of importance name.
_MAX_NAMED = 6
#: Maximum characters of a message, and of the reason for the end of a trial.
_MAX_MESSAGE_CHARS, _MAX_REASON_CHARS = 300, 60

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


def best_first(board: SweepBoard, limit: int) -> list[int]:
    """Return the positions of at most `limit` trials: the best values, then trials without a value."""
    sign = 1 if board.goal == "minimize" else -1

    def rank(at: int) -> tuple[bool, float, int]:
        value = board.value[at]
        return value is None, 0.0 if value is None else sign * value, board.number[at]

    return sorted(range(len(board.number)), key=rank)[:limit]


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
    """Return ``12 of 40 trials, 4 running, 3 stopped early, 1 failed``."""
    total = len(board.number) + board.hidden
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
    """Return ``maximize val_accuracy, sampling: random, early stopping: median(5), 4 at a time``."""
    parts = [f"{board.goal} {board.metric}"]
    parts += [f"sampling: {_cut(board.sampler, 60)}"] if board.sampler else []
    parts += [f"early stopping: {_cut(board.policy, 60)}"] if board.policy else []
    return ", ".join([*parts, f"{board.max_concurrent} at a time"])


def importance_text(board: SweepBoard) -> str:
    """Return ``importance: lr 61 %, layers 18 %``; empty if it is unknown."""
    shares = sorted(board.importance.items(), key=lambda item: -item[1])
    if not shares:
        return ""
    return "importance: " + ", ".join(f"{name} {_percent(share)}" for name, share in shares[:_MAX_NAMED])


def message_text(board: SweepBoard) -> str:
    """Return the message of the board in one line."""
    return _cut(board.message, _MAX_MESSAGE_CHARS)


def trial_table(board: SweepBoard, limit: int = TABLE_TRIALS) -> RunTable:
    """Return the table of the best `limit` trials, with the most important parameters."""
    names = parameters(board)[:MAX_PARAMS]
    states = trial_states(board)
    shown = best_first(board, limit)
    titles = ["trial", "state", board.metric, *names, "ran", "reason"]
    rows, drawn = [], {}
    for row, at in enumerate(shown):
        params = [shown_values(board, name) for name in names]
        value = value_text(board.value[at])
        rows.append(
            [
                str(board.number[at]),
                states[at],
                f"{value} (best)" if at == board.best else value,
                *(value_text(column[at]) if at < len(column) else "" for column in params),
                "" if board.seconds[at] is None else seconds_text(board.seconds[at]),
                "" if is_live(states[at]) else _cut(board.reason.get(str(at), ""), _MAX_REASON_CHARS),
            ]
        )
        if at == board.best:
            drawn[row, 2] = f"<b>{html.escape(value)}</b> (best)"
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    numbers = frozenset([0, 2, *(3 + i for i, name in enumerate(names) if _is_numeric(shown_values(board, name)))])
    return RunTable(titles=titles, rows=rows, numbers=numbers, optional=[], same={}, drawn=drawn)


def sweep_lines(board: SweepBoard) -> list[str]:
    """Return the board as text: summary, the best trials, and how many further ones there are."""
    lines = ["; ".join(filter(None, [counts_text(board), best_text(board)])), goal_text(board)]
    lines += [text for text in (message_text(board), importance_text(board)) if text]
    if board.number:
        lines += trial_table(board).text().splitlines()
    return lines + _more(board)


def sweep_html(board: SweepBoard) -> str:
    """Return the board as HTML, for front ends without the extension and for exports."""
    best = best_text(board)
    head = f"<div><b>{html.escape(counts_text(board))}</b>{html.escape(f'; {best}' if best else '')}</div>"
    rest = [text for text in (goal_text(board), message_text(board), importance_text(board)) if text]
    head += "".join(f"<div>{html.escape(text)}</div>" for text in rest)
    table = trial_table(board).html() if board.number else ""
    return head + table + "".join(f"<div>{html.escape(text)}</div>" for text in _more(board))


def _more(board: SweepBoard) -> list[str]:
    hidden = board.hidden + max(0, len(board.number) - TABLE_TRIALS)
    columns = max(0, len(parameters(board)) - MAX_PARAMS)
    lines = [f"and {hidden} more trial{'' if hidden == 1 else 's'}"] if hidden else []
    return lines + ([f"{columns} more parameter{'' if columns == 1 else 's'} without a column"] if columns else [])


def _params_of(board: SweepBoard, at: int) -> Mapping[str, Any]:
    columns = {name: shown_values(board, name) for name in parameters(board)}
    return {name: column[at] for name, column in columns.items() if at < len(column) and column[at] is not None}


def _percent(share: float) -> str:
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _is_numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _cut(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
