"""Parts of the agent's server that need no connection."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from jupyter_amltrain.agent import serve


def put(path: Path, content: str, days: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    then = time.time() - 86400 * days
    os.utime(path, (then, then))


def test_sweep_keeps_files_of_recent_submits(tmp_path: Path) -> None:
    for name in ("used", "old", "new"):
        put(tmp_path / name, name, 1 if name == "new" else 100)
    put(tmp_path / ".part-x", "torn", 100)
    put(tmp_path / "manifests" / "recent", json.dumps([["main.py", "used", False]]), 2)
    put(tmp_path / "manifests" / "past", json.dumps([["main.py", "old", False]]), 90)
    serve.sweep(str(tmp_path), time.time())
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["new", "recent", "used"]


@pytest.mark.parametrize(
    "change", [{"main.py": ("a", True)}, {"main.py": ("b", False)}, {"other.py": ("a", False)}, {}]
)
def test_manifest_digest_depends_on_name_mode_and_content(change: dict[str, tuple[str, bool]]) -> None:
    base = {"main.py": ("a", False)}
    assert serve.manifest_digest(base) == serve.manifest_digest(dict(base)) != serve.manifest_digest(change)


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for number in range(9):
        put(tmp_path / str(number), "x", number)
    serve.prune(str(tmp_path), 5)
    assert len(list(tmp_path.iterdir())) == 9  # up to twice as many stay
    serve.prune(str(tmp_path), 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]
