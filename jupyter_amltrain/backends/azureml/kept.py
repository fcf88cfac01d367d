"""What the Azure process keeps on disk of a region, and the kernel reads without asking anybody."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from pathlib import Path
from typing import Any


def path(root: Path, what: str, subscription: str, region: str) -> Path:
    """The file of ``sizes`` or ``quota`` of a region, below the state root."""
    name = "-".join(re.sub(r"[^a-z0-9]+", "", part.lower()) for part in (what, region, subscription))
    return root / "azure" / ".kept" / f"{name}.json"


def drop_quotas(root: Path, subscription: str) -> None:
    """Forget the quotas of a subscription: something has just been changed there."""
    end = f"-{re.sub(r'[^a-z0-9]+', '', subscription.lower())}.json"
    for file in (root / "azure" / ".kept").glob("quota-*.json"):
        if file.name.endswith(end):
            with contextlib.suppress(OSError):
                file.unlink()


def read(file: Path) -> tuple[list[dict[str, Any]], float] | None:
    """The rows and when they were asked for (Unix seconds); ``None`` when there are none."""
    try:
        found = file.stat()
        return _read(file, found.st_mtime_ns, found.st_size)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@functools.lru_cache(maxsize=16)
def _read(file: Path, changed: int, size: int) -> tuple[list[dict[str, Any]], float]:
    value = json.loads(file.read_text(encoding="utf-8"))
    return list(value["rows"]), float(value["at"])
