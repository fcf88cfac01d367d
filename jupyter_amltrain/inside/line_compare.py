"""Lines of several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jupyter_amltrain.inside.line_report import LineReport
from jupyter_amltrain.text import shorten

#: Lines that are compared, those that take most of the time of a run, and the least part of it.
MAX_LINES, MIN_SHARE = 12, 0.02
#: Difference of the parts of the time from which two runs differ in a line, and seconds of runs that are compared:
#: a second has twenty samples.
MIN_DIFFERENCE, MIN_SECONDS = 0.05, 5.0

_Key = tuple[str, str, str]


class _Sum:
    """Time of a line, and of the GPUs while it ran."""

    def __init__(self) -> None:
        self.seconds = self.share = self.gpu = self.gpu_s = 0.0

    def facts(self) -> dict[str, Any]:
        gpu = round(self.gpu / self.gpu_s, 1) if self.gpu_s else None
        return {"share": round(self.share, 4), "seconds": round(self.seconds, 2), "gpu": gpu}


def compared_lines(reports: Sequence[LineReport | None]) -> list[dict[str, Any]]:
    """Return rows as :func:`jupyter_amltrain.commands.run_compare.comparison` has them, longest lines first.

    A line is known by its file, function and text, because its number differs after an edit. Values are objects with
    ``share`` (of the time of the main threads), ``seconds`` and ``gpu`` (percent); ``None`` where the run has no such
    line.
    """
    columns = [_sums(report) if report and report.seconds >= MIN_SECONDS else {} for report in reports]
    if not any(columns):
        return []
    longest = {key: max(column[key].share for column in columns if key in column) for one in columns for key in one}
    keys = sorted((key for key, share in longest.items() if share >= MIN_SHARE), key=lambda key: -longest[key])
    rows = []
    for file, function, text in keys[:MAX_LINES]:
        found = [column.get((file, function, text)) for column in columns]
        shares = [one.share if one else 0.0 for one in found]
        rows.append(
            {
                "group": "lines",
                "name": shorten(f"{file}: {text}" if file else text),
                "values": [one.facts() if one else None for one in found],
                "differs": max(shares) - min(shares) >= MIN_DIFFERENCE,
            }
        )
    return rows


def _sums(report: LineReport) -> dict[_Key, _Sum]:
    """Return the time in the lines of the main threads; equal lines of a function count together."""
    sums: dict[_Key, _Sum] = {}
    for use in report.lines:
        if use.line and not use.process and not use.thread and use.text:
            one = sums.setdefault((use.file, use.function, use.text), _Sum())
            one.seconds += use.own
            one.share += use.share
            if use.gpu is not None:
                one.gpu += use.gpu * use.own
                one.gpu_s += use.own
    return sums


def compared_text(value: dict[str, Any]) -> str:
    """Return the time of a line in one run: ``61 %, 154 s, GPU 4 %``."""
    gpu = "" if value["gpu"] is None else f", GPU {value['gpu']:.0f} %"
    return f"{100 * value['share']:.0f} %, {value['seconds']:.3g} s{gpu}"
