"""The lines of a run as a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_amltrain.inside.line_report import LineReport

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "process", "thread", "file", "line", "function", "code", "seconds", "share", "total_seconds", "total_share", "cpu",
    "gpu", "waits", "memory",
)  # fmt: skip


def frame_of(report: LineReport) -> pandas.DataFrame:
    """Return one row for each line of each thread, main threads first, then by the time in the line.

    Columns: ``process`` and ``thread`` (names; empty for the main ones), ``file`` (empty for the cell or script of the
    run), ``line`` (0 for time outside of the user's files), ``function``, ``code``; ``seconds`` and ``share`` (of the
    time of the process) in the line and in libraries that it calls; ``total_seconds`` and ``total_share`` with the
    user's own lines that it calls; ``cpu`` (share of the total in which the thread computed), ``gpu`` (mean
    utilization of the run's GPUs while the line ran, percent; NaN without a GPU), ``waits`` (seconds by what it waits
    for) and ``memory`` (growth of the host's memory in the line, bytes).
    """
    import pandas

    rows = [
        (
            use.process, use.thread, use.file, use.line, use.function, use.text, use.own, use.share, use.total,
            use.total_share, use.busy, float("nan") if use.gpu is None else use.gpu, use.waits, use.memory,
        )
        for use in report.lines
    ]  # fmt: skip
    return pandas.DataFrame(rows, columns=list(COLUMNS))
