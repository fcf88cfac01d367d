"""Runs that one cell has submitted, as one table: the content of the cell's output.

It is the data of the MIME type ``application/vnd.amltrain.runs+json`` and the reply to the
front end's ``group`` request.
"""

from __future__ import annotations

from typing import Any

import msgspec

GROUP_MIME = "application/vnd.amltrain.runs+json"
GROUP_SCHEMA = 1
#: Maximum runs of a group that are listed.
MAX_GROUP_RUNS = 100
#: Maximum points of a curve.
MAX_CURVE_POINTS = 40


class GroupColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter, metric or result of the runs.

    Attributes
    ----------
    kind
        ``param``, ``metric``, ``result``, or ``scaling`` of the widths of a measurement.
    goal
        ``min`` or ``max`` if the name of the metric says which values are better; else empty.
    """

    name: str
    kind: str
    goal: str = ""


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a group.

    Attributes
    ----------
    name
        The run's name, or its id if other runs of the group have the same name.
    error
        Why the run failed, one line.
    created, started, ended
        Unix seconds.
    values
        One text for each column; empty if the run has no such value.
    best
        Positions of the columns in which this run has the best value.
    curve
        The group's metric over its steps: 0 to 100 between the least and greatest value of all runs, -1 for a gap.
    """

    handle: str
    name: str
    state: str
    reason: str = ""
    error: str = ""
    reachable: bool = True
    cancel_requested: bool = False
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    values: tuple[str, ...] = ()
    best: tuple[int, ...] = ()
    curve: tuple[int, ...] = ()


class RunGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a cell, in the order of their submission.

    Attributes
    ----------
    handles
        Handles of all runs, including those that are not listed.
    hidden
        Number of runs that are not listed: the oldest ones.
    same
        Parameters with the same value in all runs.
    curve
        Name of the metric that the curves show; empty without one.
    verdict
        Sentences about the widths of a measurement.
    done
        Whether every run has ended.
    seen_at
        Unix seconds.
    """

    schema: int = GROUP_SCHEMA
    handles: tuple[str, ...]
    rows: tuple[GroupRow, ...]
    hidden: int = 0
    columns: tuple[GroupColumn, ...] = ()
    same: dict[str, Any] = {}
    curve: str = ""
    verdict: tuple[str, ...] = ()
    done: bool = False
    seen_at: float = 0.0
