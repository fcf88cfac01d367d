"""Programs that no Python package brings: by the system's package manager, when we may."""

from __future__ import annotations

import os
import shutil
import subprocess

from tools.environment import say


def install(what: str, *packages: str) -> None:
    """Install Debian packages when we are root; says that it does. Whether it worked is for the caller to look."""
    apt = shutil.which("apt-get")
    if not apt or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    say(f"installing {what} by apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", *packages]):
        subprocess.run([apt, *arguments], env=quiet, stdout=subprocess.DEVNULL)
