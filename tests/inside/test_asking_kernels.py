"""Several kernels ask one run at once, and one of them is killed in the middle of a question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.protocol import ASKS, POKES
from tests.helpers import api_of, until

pytestmark = pytest.mark.thorough

#: 10,000 steps again and again, each of which counts; a lost one stops the run.
LOOP = """
import os, time
pokes = rounds = count = 0
while not os.path.exists(END):
    before = count
    for step in range(10_000):
        count += 1
        if step % 200 == 0:
            time.sleep(0.001)
    rounds += 1
    assert count == before + 10_000
print("whole", count == 10_000 * rounds, pokes)
"""
#: A kernel that asks 40 times.
ASKER = """
import sys
import jupyter_amltrain as aml
run = aml.attach(sys.argv[1])
for _ in range(20):
    assert 0 <= int(run.peek("count - before")) <= 10_000
    run.poke("pokes += 1")
print("done")
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("kernels")) as module:
        yield module


def kernel(code: str, handle: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, handle],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ,
    )


def started(api: Any, end: Path, name: str) -> Any:
    run = api.submit(f"END = {str(end)!r}\n{LOOP}", name=name)
    until(lambda: run.state == "running" and run.stack().threads, "the run")
    return run


def test_two_kernels_that_ask_at_once_lose_nothing(api: Any, tmp_path: Path) -> None:
    run = started(api, tmp_path / "end", "two")
    kernels = [kernel(ASKER, run.handle) for _ in range(2)]
    texts = [one.communicate(timeout=240)[0] for one in kernels]
    (tmp_path / "end").touch()
    run.wait(60)
    assert [text.splitlines()[-1:] for text in texts] == [["done"]] * 2
    assert run.logs() == "whole True 40\n"
    rows = [json.loads(line) for line in Path(run.run.folder, POKES).read_text().splitlines()]
    assert len(rows) == 40 and not any(row["error"] for row in rows)
    assert len(run.run.status.pokes) == 20 and not list(Path(run.run.folder, ASKS).iterdir())


def test_kernel_killed_during_a_question_harms_nothing(api: Any, tmp_path: Path) -> None:
    run = started(api, tmp_path / "end", "killed")
    begun, go = tmp_path / "begun", tmp_path / "go"
    text = f"pokes += 1\nopen({str(begun)!r}, 'w').close()\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    killed = kernel(f"import sys, jupyter_amltrain as aml\naml.attach(sys.argv[1]).poke({text!r})", run.handle)
    until(begun.exists, "the statement")
    killed.kill()
    killed.communicate()
    go.touch()
    assert until(lambda: run.peek("pokes"), "an answer") == "1"
    (kept,) = until(lambda: run.record().pokes, "the record of the statement")
    assert kept.text.startswith("pokes += 1")
    (tmp_path / "end").touch()
    run.wait(60)
    assert run.logs() == "whole True 1\n"
