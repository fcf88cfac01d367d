"""Table of several runs: the parameters that differ, the last values of their metrics."""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jupyter_amltrain.schema.run import DAMAGED, NOT_WRITTEN, Run, RunHandle, RunState
from jupyter_amltrain.text import NULL, ago, counted, seconds_text, shorten, silence, table, value_text

#: Maximum columns of parameters, of metrics and of results.
MAX_PARAMS, MAX_METRICS, MAX_OUTPUTS = 5, 4, 2

#: Maximum characters of the heading of a column.
_MAX_TITLE_CHARS = 20


class RunTable(NamedTuple):
    """A table of runs.

    Attributes
    ----------
    titles
        Headings of the columns.
    rows
        One text for each column, by run.
    numbers
        Positions of columns with numbers.
    optional
        Positions of the columns that a narrow terminal leaves out, the first to go last.
    same
        Parameters that all runs have in common.
    drawn
        HTML of cells, by row and column, where it is more than their text.
    """

    titles: list[str]
    rows: list[list[str]]
    numbers: frozenset[int]
    optional: list[int]
    same: dict[str, Any]
    drawn: Mapping[tuple[int, int], str] = {}

    def text(self, width: int | None = None) -> str:
        """Return the table as text; at most `width` characters wide, if its first columns allow it."""
        shown = set(range(len(self.titles)))
        while True:
            columns = sorted(shown)
            text = table([self.titles[i] for i in columns], [[row[i] for i in columns] for row in self.rows])
            rest = [i for i in self.optional if i in shown]
            if width is None or not rest or max(map(len, text.splitlines())) <= width:
                break
            shown.remove(rest[-1])
        hidden = len(self.titles) - len(shown)
        notes = [f"{counted(hidden, 'more column')} in a wider terminal"] if hidden else []
        return "\n".join([text, *notes, *self._notes()])

    def html(self) -> str:
        """Return the table as HTML, for the output of a cell."""
        style = [' style="text-align: right"' if i in self.numbers else "" for i in range(len(self.titles))]
        head = "".join(f"<th{s}>{html.escape(t)}</th>" for s, t in zip(style, self.titles, strict=True))
        body = "".join(
            "<tr>"
            + "".join(f"<td{style[i]}>{self.drawn.get((k, i)) or html.escape(text)}</td>" for i, text in enumerate(row))
            + "</tr>"
            for k, row in enumerate(self.rows)
        )
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self._notes())
        return (
            f'<div style="overflow-x: auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
            + notes
        )

    def _notes(self) -> list[str]:
        if not self.same:
            return []
        return ["The same in all: " + ", ".join(f"{name}={value_text(value)}" for name, value in self.same.items())]


def run_table(
    runs: Sequence[Run], metrics: Mapping[RunHandle, Mapping[str, float]], now: float | None = None
) -> RunTable:
    """Build the table of runs.

    Parameters
    ----------
    metrics
        Last value of each metric, by handle.
    """
    now = time.time() if now is None else now
    params, same = varying([run.spec.params for run in runs])
    outputs, _ = varying([run.outputs for run in runs], always=True)
    logged = Counter(name for run in runs for name in metrics.get(run.handle, ()) if name not in run.spec.params)
    names = [name for name, _ in logged.most_common(MAX_METRICS)]
    experiments = len({run.experiment for run in runs}) > 1
    columns: list[tuple[str, list[str], bool, bool]] = [  # title, texts, number, optional
        ("run", [run.handle for run in runs], False, False),
        ("state", [state_text(run) for run in runs], False, False),
        ("submitted", [ago(run.created, now) for run in runs], False, False),
        ("ran", [_ran(run, now) for run in runs], True, False),
    ]
    columns += [(name, [_param_text(run, name) for run in runs], True, True) for name in params]
    columns += [
        (name, [value_text(metrics.get(run.handle, {}).get(name)) for run in runs], True, True) for name in names
    ]
    results = [name for name in outputs if name not in names][:MAX_OUTPUTS]
    columns += [(name, [value_text(run.outputs.get(name)) for run in runs], True, True) for name in results]
    if experiments:
        columns.append(("experiment", [run.experiment for run in runs], False, True))
    return RunTable(
        titles=[shorten(title, _MAX_TITLE_CHARS) for title, *_ in columns],
        rows=[list(row) for row in zip(*(texts for _, texts, *_ in columns), strict=True)],
        numbers=frozenset(i for i, column in enumerate(columns) if column[2]),
        optional=[i for i, column in enumerate(columns) if column[3]],
        same=same if len(runs) > 1 else {},
    )


def varying(values: Sequence[Mapping[str, Any]], *, always: bool = False) -> tuple[list[str], dict[str, Any]]:
    """Return the names whose values differ between mappings, at most :data:`MAX_PARAMS`, and the common values.

    Parameters
    ----------
    always
        List common names, too.
    """
    names = dict.fromkeys(name for mapping in values for name in mapping)
    same = {
        name: values[0][name]
        for name in names
        if all(name in mapping and _equal(mapping[name], values[0][name]) for mapping in values)
    }
    if always or len(values) == 1:
        return list(names)[:MAX_PARAMS], {}
    return [name for name in names if name not in same][:MAX_PARAMS], same


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def run_seconds(run: Run, now: float) -> float | None:
    """Return the seconds that the script has run, including a current phase; ``None`` before it starts."""
    seconds = [p.seconds for p in run.status.phases if p.name == "running" and p.seconds is not None]
    if run.status.state is RunState.RUNNING:
        # The target's clock may differ from the kernel's.
        seconds += [max(now - p.start, 0.0) for p in run.status.phases if p.name == "running" and p.end is None]
    return sum(seconds) if seconds else None


def _ran(run: Run, now: float) -> str:
    seconds = run_seconds(run, now)
    return "" if seconds is None else seconds_text(seconds)


def state_text(run: Run) -> str:
    """Return the state of a run with what a reader has to know about it."""
    status = run.status
    words = DAMAGED if status.reason == DAMAGED else status.state.value
    if status.reason == NOT_WRITTEN:
        words += " (disk full: may be outdated)"
    if run.cancel_requested and not status.state.terminal:
        words += " (cancel requested)"
    return words if run.reachable else f"{words} ({silence(run.seen_at)})"


def _param_text(run: Run, name: str) -> str:
    value = run.spec.params.get(name)
    return NULL if value is None and name in run.spec.params else value_text(value)


def frame_rows(runs: Iterable[Run], metrics: Mapping[RunHandle, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return one flat mapping for each run: facts, then ``params.*``, ``metrics.*``, ``outputs.*`` and ``tags.*``."""
    now = time.time()
    return [
        {
            "handle": run.handle,
            "name": run.spec.name,
            "target": run.target,
            "experiment": run.experiment,
            "state": run.status.state.value,
            "created": run.created,
            "seconds": run_seconds(run, now),
            **{f"params.{name}": value for name, value in run.spec.params.items()},
            **{f"metrics.{name}": value for name, value in metrics.get(run.handle, {}).items()},
            **{f"outputs.{name}": value for name, value in run.outputs.items()},
            **{f"tags.{name}": value for name, value in run.spec.tags.items()},
        }
        for run in runs
    ]
