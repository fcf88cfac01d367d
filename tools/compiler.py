"""A C compiler for the tests' fake NVIDIA driver: found, or installed by the system's package manager."""

from __future__ import annotations

import shutil
import sysconfig

from tools import system_packages
from tools.environment import say

NAMES = ("cc", "gcc", "clang")


def find() -> str | None:
    """Path of a C compiler on this machine, or None."""
    own = (sysconfig.get_config_var("CC") or "").split(" ")[0]
    return next((path for name in (*NAMES, own) if name and (path := shutil.which(name))), None)


def ensure() -> None:
    """Install a compiler when we may; otherwise say in one sentence that the tests with GPUs are skipped."""
    if not find():
        system_packages.install("a C compiler", "gcc", "libc6-dev")
    if not find():
        say("no C compiler: fake GPUs are left out, their tests skipped. Type: apt install gcc libc6-dev")
