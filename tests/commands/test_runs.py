from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain import text as tables
from jupyter_amltrain.commands import run_log, runs
from jupyter_amltrain.errors import RunError

from ..helpers import until


@pytest.mark.parametrize(
    ("then", "text"),
    [(0, ""), (1001, "just now"), (990, "10 s ago"), (700, "5 min ago"), (-10_000, "3 h ago"), (-300_000, "3 d ago")],
)
def test_age_text_is_rounded(then: float, text: str) -> None:
    assert tables.ago(then, 1000.0) == text


def test_table_with_long_cell_is_cut_to_one_line() -> None:
    text = tables.table(["a", "b"], [["x\ny", "z" * 100], ["", "1"]])
    head, one, two = text.splitlines()
    assert head == "a    b" and one.startswith("x y  zzz") and one.endswith("…") and two == "     1"


def test_runs_list_counts_seconds_of_live_run(api: Any) -> None:
    run = api.submit("import time\nprint('up', flush=True)\ntime.sleep(600)")
    until(lambda: "up" in run.logs())
    (first,) = runs.listing()
    (later,) = until(lambda: [row for row in runs.listing() if row["seconds"] > (first["seconds"] or 0.0) + 0.05])
    run.cancel()
    with pytest.raises(RunError):
        run.wait(60)
    (ended,) = runs.listing()
    # By the monotonic clock of the target, the live ones by the wall clock: near each other, not ordered.
    assert ended["seconds"] == runs.listing()[0]["seconds"] > 0.0 and later["seconds"] > 0.05


@pytest.mark.thorough
def test_wait_with_writer_shows_state_and_clears_line(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_QUIET_S", 0.05)
    run = api.submit("import time\ntime.sleep(600)")
    lines: list[str] = []
    with pytest.raises(RunError, match="still running after"):
        runs.wait(run, 3.0, lines.append)
    assert any(run.handle in line and "running" in line for line in lines) and lines[-1] == ""
    run.cancel()


@pytest.mark.thorough
def test_follow_prints_whole_log(api: Any) -> None:
    source = "import sys, time\nfor i in range(20):\n    print('zeile ü', i, flush=True); time.sleep(0.05)\n"
    run = api.submit(source)
    parts: list[str] = []
    run_log.follow(run, parts.append)
    assert "".join(parts) == "".join(f"zeile ü {i}\n" for i in range(20))
    assert len([p for p in parts if p]) > 1
    parts.clear()
    run_log.follow(run, parts.append, tail=2)
    assert "".join(parts) == "zeile ü 18\nzeile ü 19\n"


@pytest.mark.parametrize("tail", [None, 5])
def test_follow_after_log_truncation_continues_at_start(api: Any, tmp_path: Path, tail: int | None) -> None:
    gate = tmp_path / "go-on"
    source = """import os, time
print("old text " * 20, flush=True)
while not os.path.exists(os.environ["GO_ON"]): time.sleep(0.02)
os.ftruncate(1, 0)
print("new", flush=True)
"""
    run = api.submit(source, env={"GO_ON": str(gate)})
    until(lambda: "old text" in run.logs())
    parts: list[str] = []

    def write(text: str) -> None:
        parts.append(text)
        gate.touch()

    run_log.follow(run, write, tail=tail)
    text = "".join(parts)
    assert text.startswith("old text") and text.endswith("\nnew\n") and text.count("new\n") == 1
