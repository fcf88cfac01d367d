"""Chromium for the UI tests: found, or installed by the system's package manager."""

from __future__ import annotations

import shutil

from tools import system_packages
from tools.environment import say

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def find() -> str | None:
    """Path of a Chromium on this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def ensure() -> None:
    """Install Chromium when we may; otherwise say in one sentence that the UI tests are skipped."""
    if not find():
        system_packages.install("Chromium", "chromium")
    if not find():
        say("no Chromium: the UI tests are skipped. Type: apt install chromium")
