"""Sampled shares of lines against those that scripts measure themselves."""

from __future__ import annotations

import importlib.util
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


#: A read between bursts of Python gives the lock away before this thread has waited for it: it then sees the read.
IN_READS = ("rows_of_a_file",)
WEAK = pytest.mark.xfail(reason="see docs/inside.md, How it works", strict=False)


@pytest.mark.soak  # shares of time need a machine with nothing else to do
@pytest.mark.parametrize("name", [pytest.param(name, marks=[WEAK] if name in IN_READS else []) for name in SCRIPTS])
def test_share_of_each_line_is_within_5_points(name: str, tmp_path: Path) -> None:
    for module in ("torch", "numpy"):
        if f"import {module}" in SCRIPTS[name] and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    found = []
    for number in range(3):  # others may have used all processors meanwhile
        found.append(differences(SCRIPTS[name], tmp_path / str(number)))
        if all(abs(sampled - true) < 0.05 for sampled, true in found[-1].values()):
            return
    pytest.fail(str(found))
