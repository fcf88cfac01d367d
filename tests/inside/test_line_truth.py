"""Sampled shares of lines against those that scripts measure themselves."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

import pytest

from tests.inside.sampled import run_sampled
from tests.inside.true_scripts import SCRIPTS


def differences(script: str, folder: Path) -> dict[str, tuple[float, float]]:
    """Return sampled and true part of the time of each line."""
    folder.mkdir()
    run = run_sampled(folder, script)
    assert run.done.returncode == 0, run.done.stderr
    # Of the whole process, whose imports count, too.
    whole = sum(use.own for use in run.report.lines if not use.process and not use.thread)
    ratio = run.report.seconds / whole
    assert run.spent
    return {label: (round(run.share(label) * ratio, 3), round(part, 3)) for label, part in run.spent.items()}


def means(runs: list[dict[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Return the means of sampled and of true parts: a run of ten seconds has a hundred samples on a slow machine."""
    return {
        label: (statistics.mean(run[label][0] for run in runs), statistics.mean(run[label][1] for run in runs))
        for label in runs[0]
    }


#: See docs/inside.md: reads between bursts of Python of some 200 µs, in which the thread gives the lock away, and
#: bursts of 4 ms, behind which Linux lets the thread wait on a machine of two processors.
WEAK = ("rows_of_a_file", "short_bursts")


@pytest.mark.soak  # shares of time need a machine with nothing else to do
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.xfail(strict=False)] if name in WEAK else []) for name in SCRIPTS]
)
def test_share_of_each_line_is_within_5_points(name: str, tmp_path: Path) -> None:
    for module in ("torch", "numpy"):
        if f"import {module}" in SCRIPTS[name] and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    runs = []
    for number in range(4):
        runs.append(differences(SCRIPTS[name], tmp_path / str(number)))
        if all(abs(sampled - true) < 0.05 for sampled, true in means(runs).values()):
            return
    pytest.fail(str(runs))
