"""Open MPI for the tests of distributed jobs: found, or installed by the system's package manager."""

from __future__ import annotations

import shutil

from tools import system_packages
from tools.environment import say


def ensure() -> None:
    """Install it when we may; otherwise say in one sentence that the MPI tests are skipped."""
    if not shutil.which("mpirun"):
        system_packages.install("Open MPI", "openmpi-bin")
    if not shutil.which("mpirun"):
        say("no mpirun: the MPI tests are skipped. Type: apt install openmpi-bin")
