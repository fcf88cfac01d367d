"""IPython in a real terminal: one line that is rewritten while a run is waited for."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="needs Linux or macOS: a pseudo-terminal")

DEADLINE = 90.0
CODE = """
get_ipython().run_line_magic("load_ext", "jupyter_amltrain")
from jupyter_amltrain.commands import runs
runs._QUIET_S = 0.2
get_ipython().run_cell("%%aml_submit --name term --wait\\nimport os, time\\n"
                       "while not os.path.exists({gate!r}): time.sleep(0.02)")
get_ipython().run_cell("%aml_runs list")
"""


def _ipython(script: Path, until_seen: str, then: Callable[[], None]) -> str:
    """All that a terminal got from IPython; `then` is called when it has shown a text."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(script)]
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen, end = b"", time.monotonic() + DEADLINE
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 1.0)[0]:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # how Linux says that the other side is closed
                    break
                seen += data
                if until_seen.encode() in seen:
                    then()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert time.monotonic() < end, seen.decode()
    return seen.decode()


@pytest.mark.thorough
def test_terminal_wait_line_is_rewritten_and_cleared(home: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = tmp_path / "session.ipy"
    script.write_text(CODE.format(gate=str(gate)))
    text = _ipython(script, "  running", gate.touch)
    assert text.count("\r\x1b[Klocal/term-") >= 1
    # Wiped before the next line is printed.
    wiped = text.rindex("\r\x1b[K")
    assert not text[wiped:].startswith("\r\x1b[Klocal/")
    assert "completed" in text[wiped:]
