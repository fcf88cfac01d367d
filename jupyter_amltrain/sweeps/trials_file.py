"""File of a driver's run folder with the trials of its sweep, which kernels read: never larger than they accept."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from jupyter_amltrain.kernel.streams import downsample
from jupyter_amltrain.schema.child_run import (
    CHILDREN,
    MAX_CHILDREN_BYTES,
    MAX_CURVE_POINTS,
    ChildRun,
    ChildRuns,
    most_relevant,
)

#: Points of all curves together: up to 2,500 trials have whole curves, 10,000 trials have 10 points each.
MAX_POINTS = 100_000


def thinned(trials: Iterable[ChildRun], points: int) -> tuple[ChildRun, ...]:
    """Return trials whose curves have at most so many points; 0 for none."""
    return tuple(trial if len(trial.steps) <= points else _with_points(trial, points) for trial in trials)


def _with_points(trial: ChildRun, points: int) -> ChildRun:
    values = [float("nan") if value is None else value for value in trial.values]
    keep = downsample(values, points) if points else []
    return msgspec.structs.replace(
        trial, steps=tuple(trial.steps[i] for i in keep), values=tuple(trial.values[i] for i in keep)
    )


class TrialsFile:
    """The file in a folder.

    The more trials there are and the larger they are, the fewer points their curves have. Trials that do not fit even
    without curves are hidden.

    Attributes
    ----------
    points
        Maximum points of a curve; never more than in the version before.
    """

    def __init__(self, folder: Path, limit: int = MAX_CHILDREN_BYTES) -> None:
        self._path, self._limit = folder / CHILDREN, limit
        self._written = b""
        self.points = MAX_CURVE_POINTS

    def write(self, trials: ChildRuns) -> None:
        """Write a new version unless nothing has changed. Blocks on the disk."""
        data = self._encode(trials)
        if data == self._written and self._path.exists():
            return
        new = self._path.with_name(f".{CHILDREN}.new")
        new.write_bytes(data)
        os.replace(new, self._path)
        self._written = data

    def _encode(self, trials: ChildRuns) -> bytes:
        while self.points and self.points * len(trials.runs) > MAX_POINTS:
            self.points //= 2
        while len(data := _json(trials, self.points)) > self._limit:
            if self.points:
                self.points //= 2
                continue
            shown = most_relevant(trials.runs, int(0.9 * len(trials.runs) * self._limit / len(data)))
            hidden = trials.hidden + len(trials.runs) - len(shown)
            trials = msgspec.structs.replace(trials, runs=shown, hidden=hidden)
        return data


def _json(trials: ChildRuns, points: int) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(trials, runs=thinned(trials.runs, points)))
