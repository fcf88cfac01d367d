"""The board of a sweep as text and HTML: summary, and table of the best trials."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from jupyter_amltrain.kernel.sweep_text import (
    best_text,
    counts_text,
    goal_text,
    importance_text,
    is_live,
    message_text,
    parameters,
    shown_values,
    trial_states,
)
from jupyter_amltrain.output.run_table import MAX_PARAMS, RunTable
from jupyter_amltrain.schema.sweep_board import SweepBoard
from jupyter_amltrain.text import counted, seconds_text, shorten, value_text

#: Maximum trials of the text and of the HTML.
TABLE_TRIALS = 10

#: Maximum characters of the reason for the end of a trial.
_MAX_REASON_CHARS = 60


def best_first(board: SweepBoard, limit: int) -> list[int]:
    """Return the positions of at most `limit` trials: the best values, then trials without a value."""
    sign = 1 if board.goal == "minimize" else -1

    def rank(at: int) -> tuple[bool, float, int]:
        value = board.value[at]
        return value is None, 0.0 if value is None else sign * value, board.number[at]

    return sorted(range(len(board.number)), key=rank)[:limit]


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
                "" if is_live(states[at]) else shorten(board.reason.get(str(at), ""), _MAX_REASON_CHARS),
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
    lines = [f"and {counted(hidden, 'more trial')}"] if hidden else []
    return lines + ([f"{counted(columns, 'more parameter')} without a column"] if columns else [])


def _is_numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
