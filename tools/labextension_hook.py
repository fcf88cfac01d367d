"""Hatch build hook: builds the labextension and puts it under ``share/jupyter/labextensions``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SKIP = "AMLTRAIN_SKIP_LABEXTENSION"
NAME = "jupyter-amltrain"
ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "jupyter_amltrain" / "labextension"


def skipped() -> bool:
    """Whether the person who builds asked for a package without the labextension."""
    return os.environ.get(SKIP, "") not in ("", "0")


def labextension_is_built_here() -> bool:
    """False when skipped, and in an unpacked sdist, which carries the built bundle."""
    unpacked_sdist = (ROOT / "PKG-INFO").exists() and (BUNDLE / "package.json").exists()
    return not skipped() and not unpacked_sdist


def build(production: bool = True) -> None:
    """Install the front-end's packages from ``yarn.lock`` and build the bundle.

    Raises
    ------
    RuntimeError
        ``jlpm`` is not installed, or the build failed (its own output says why).
    """
    jlpm = shutil.which("jlpm")
    if jlpm is None:
        raise RuntimeError(
            "Cannot build the labextension: jlpm is not on PATH. "
            "Type: pip install jupyter-builder, "
            f"or install without the labextension by {SKIP}=1."
        )
    for arguments in (["install", "--immutable"], ["build:prod" if production else "build"]):
        done = subprocess.run([jlpm, *arguments], cwd=ROOT)
        if done.returncode:
            raise RuntimeError(
                f"Cannot build the labextension: 'jlpm {' '.join(arguments)}' failed with "
                f"exit code {done.returncode}, see its output above. "
                f"To install without the labextension, set {SKIP}=1."
            )


class LabextensionHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Adds the built bundle to wheels (also editable ones) and builds it before an sdist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if labextension_is_built_here():
            build(production=version != "editable")
        if self.target_name == "wheel" and not skipped():
            place = f"share/jupyter/labextensions/{NAME}"
            build_data["shared_data"][str(BUNDLE)] = place
            build_data["shared_data"][str(ROOT / "install.json")] = f"{place}/install.json"
