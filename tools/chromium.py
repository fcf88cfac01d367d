"""Chromium for the UI tests: found, or installed by the system's package manager."""

from __future__ import annotations

import os
import shutil
import subprocess

from tools.environment import say

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def find() -> str | None:
    """Path of a Chromium on this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def ensure() -> None:
    """Install Chromium when we may; otherwise say in one sentence that the UI tests are skipped."""
    if find():
        return
    apt = shutil.which("apt-get")
    if apt and hasattr(os, "geteuid") and os.geteuid() == 0:
        say("installing Chromium by apt-get for the UI tests")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "chromium"]):
            subprocess.run([apt, *arguments], env=quiet, stdout=subprocess.DEVNULL)
    if not find():
        say("no Chromium: the UI tests are skipped. Type: apt install chromium")
