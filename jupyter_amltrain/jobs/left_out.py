"""Data that the ignore files leave out of ``--source``, named before the run misses it. Blocks on the disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jupyter_amltrain.text import bytes_text

#: What nobody misses in a run: made by tools again, or not for the job.
_NO_DATA = frozenset(
    {"build", "dist", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".idea", ".vscode",
     ".eggs", "htmlcov", "site", "mlruns", "wandb", "lightning_logs", "outputs", "logs", "venv", "env", ".DS_Store"}
)  # fmt: skip
_NO_DATA_SUFFIXES = (".pyc", ".pyo", ".egg-info", ".log", ".so", ".o", "~", ".swp", ".db")
#: Smallest size that is named, number of names, and entries of a folder that are counted.
MIN_BYTES, MAX_NAMES, MAX_ENTRIES = 100_000, 3, 5_000


def note_of(root: str, names: Sequence[str]) -> str:
    """Return a sentence about the largest of the ignored files and folders `names` below `root`; empty for none."""
    sizes: dict[str, int] = {}
    texts: dict[str, str] = {}
    for name in names:
        last = os.path.basename(name.rstrip("/"))
        if last not in _NO_DATA and not last.endswith(_NO_DATA_SUFFIXES):
            size, is_whole = _size(os.path.join(root, name))
            if size >= MIN_BYTES:
                sizes[name] = size
                texts[name] = f"{name} ({'' if is_whole else 'over '}{bytes_text(size)})"
    largest = sorted(sizes, key=lambda name: -sizes[name])
    if not largest:
        return ""
    shown = ", ".join(texts[name] for name in largest[:MAX_NAMES])
    more = f" and {len(largest) - MAX_NAMES} more" if len(largest) > MAX_NAMES else ""
    file = ".amlignore" if (Path(root) / ".amlignore").exists() else ".gitignore"
    return f"Left out of the code by {file}: {shown}{more}. Pass data that the run needs: --input data=PATH."


def _size(path: str) -> tuple[int, bool]:
    """Return the bytes of a file or folder, and whether all of it was counted."""
    if not os.path.isdir(path):
        try:
            return os.lstat(path).st_size, True
        except OSError:
            return 0, True
    total = count = 0
    for folder, _, files in os.walk(path):
        for name in files:
            count += 1
            if count > MAX_ENTRIES:
                return total, False
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total, True
