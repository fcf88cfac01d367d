"""Names that people read: ids of runs, paths in outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

# No vowels and no look-alikes: nothing rude, nothing ambiguous to read aloud.
_ALPHABET = "23456789bcdfghjkmnpqrstvwxz"
_SUFFIX = 5


def slug(name: str) -> str:
    """`name` as 1 to 40 characters of ``a-z 0-9 -``."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return text or "run"


def new_run_id(name: str) -> str:
    """``<slug>-<5 characters>``: 14 million ids for each name."""
    import secrets  # not at %load_ext: it brings hashlib and base64

    return f"{slug(name)}-{''.join(secrets.choice(_ALPHABET) for _ in range(_SUFFIX))}"


def tilde(path: str) -> str:
    """`path` for people: the home folder as ``~``, bytes that are not UTF-8 as ``\ufffd``."""
    home = os.path.expanduser("~")
    if not path.isascii():
        path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if home not in ("", "/") and (path == home or path.startswith(home + os.sep)):
        return "~" + path[len(home) :]
    return path


def notebook_name(environ: Mapping[str, str] = os.environ) -> str:
    """Stem of the notebook's file name, as Jupyter Server tells its kernels; else empty."""
    path = environ.get("JPY_SESSION_NAME", "").replace("\\", "/")
    return Path(path).stem if path.endswith(".ipynb") else ""
