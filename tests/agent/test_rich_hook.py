"""Consoles of `rich` in a job: the log is a terminal for them, other files are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.supervise import job_hooks

BAR = """
from rich.progress import Progress
with Progress() as bars:
    bar = bars.add_task("train", total=100)
    bars.update(bar, completed=40, refresh=True)
    bars.update(bar, completed=100)
"""


def written(folder: Path, code: str, log: str = "log/rank-0.txt", **env: str) -> str:
    """Return what code writes into a file of a run folder, in a Python with the hooks."""
    environ = {**{key: value for key, value in os.environ.items() if "COLOR" not in key}, "TERM": "xterm-256color"}
    job_hooks.add(environ, str(folder), str(folder), gpus=False)
    path = folder / log
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        subprocess.run(
            [sys.executable, "-c", code],
            env=environ | env,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=True,
        )
    return path.read_text()


def test_bar_in_log_is_drawn_while_it_moves(tmp_path: Path) -> None:
    text = written(tmp_path, BAR)
    assert " 40%" in text and "100%" in text and "\x1b[2K" in text


@pytest.mark.thorough
def test_bar_in_log_is_drawn_twice_a_second_at_most(tmp_path: Path) -> None:
    code = "import time\n" + BAR.replace("refresh=True)", "refresh=True)\n    time.sleep(2)")
    assert written(tmp_path, code).count(" 40%") <= 6


def test_text_in_log_has_its_colors(tmp_path: Path) -> None:
    assert "\x1b[1;31mbold" in written(tmp_path, "import rich\nrich.print('[bold red]bold')")


def test_colors_that_somebody_turned_off_stay_off(tmp_path: Path) -> None:
    assert "\x1b" not in written(tmp_path, "import rich\nrich.print('[bold red]bold')", NO_COLOR="1")


def test_other_files_of_the_job_are_no_terminals(tmp_path: Path) -> None:
    code = (
        "import io, subprocess, sys\nfrom rich.console import Console\n"
        "text = io.StringIO()\nConsole(file=text).print('[red]one')\n"
        "child = 'import rich; rich.print(\\'[red]two\\')'\n"
        "done = subprocess.run([sys.executable, '-c', child], capture_output=True, text=True)\n"
        "print(repr(text.getvalue() + done.stdout))"
    )
    assert written(tmp_path, code) == "'one\\ntwo\\n'\n"
    assert "\x1b" not in written(tmp_path, "import rich\nrich.print('[red]three')", log="log-of-mine/out.txt")
