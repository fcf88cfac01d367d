"""pytest plugin: a skip that nobody allowed fails the run.

A skipped test looks like a passed one in the closing line; so every reason that may skip stands
here, and anything else is an error. Loaded by ``make test`` with ``-p tools.skips``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

#: Regular expressions of reasons, matched from their start.
ALLOWED = (
    r"no Chromium on this machine",
    # Only when they are asked for (-m gpu): the fast tier leaves them out.
    r"no (NVIDIA GPU|torch|safetensors|pynvml) on this machine",
    r"the labextension is not built",
    # It is in the extra `test`: only an environment made without it goes without.
    r"notebook is not installed",
    r"needs Linux",
    r"needs root",
    # A container or a user without privileges: cgroups, mounts and namespaces cannot be made there.
    r"needs the right to ",
    # `make test-azure` installs it; a run of pytest by hand may go without.
    r"azure-ai-ml 1\.33\.0 is not in build/",
    r"no C compiler",
    # Installed when we are root.
    r"no (OpenSSH server|Slurm) on this machine",
    # In the extra `test`; installed when we are root.
    r"PyTorch is not installed",
    r"mpirun is not installed",
    r"(DeepSpeed|FLAML|Ray|TensorFlow|mpi4py) is not installed",
    r"Python 3\.\d+ is not on this machine",
)

_refused: list[tuple[str, str]] = []


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason of a skip as its author wrote it."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _look(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = reason_of(report)
        if not any(re.match(allowed, reason) for allowed in ALLOWED):
            _refused.append((report.nodeid, reason))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the skips of tests."""
    _look(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Collect the skips of whole modules."""
    _look(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn a green run with a refused skip red."""
    if _refused and session.exitstatus == 0 and not hasattr(session.config, "workerinput"):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the refused skips."""
    for name, reason in _refused:
        terminalreporter.write_line(f"NOT ALLOWED TO SKIP {name}: {reason} (tools/skips.py lists what may)", red=True)
