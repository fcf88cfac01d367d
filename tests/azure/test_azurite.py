"""The blob service ends with who started it, whatever Node is on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers import until

pytestmark = pytest.mark.thorough

#: As PyPI's `node` is: a script with the real one as its child.
NODE = """#!/bin/sh
sleep 600 &
echo $! > "$CHILD"
echo "listens on http://127.0.0.1:1234"
wait
"""
START = """
import os, sys
from pathlib import Path
from tools import azurite
azurite.search_path = lambda: os.environ["PATH"]  # this environment may have a Node of its own
service = azurite.Azurite("account", "key", Path("cert"), Path("key"), Path(sys.argv[1]))
print(service.port(), flush=True)
sys.stdin.readline()
service.close()
"""


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("killed", [False, True])
def test_azurite_end_leaves_no_process(tmp_path: Path, killed: bool) -> None:
    node = tmp_path / "node"
    node.write_text(NODE)
    node.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "CHILD": str(tmp_path / "child")}
    owner = subprocess.Popen(
        [sys.executable, "-c", START, str(tmp_path)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin and owner.stdout and owner.stdout.readline() == "1234\n"
    child = psutil.Process(int((tmp_path / "child").read_text()))
    assert child.is_running()
    if killed:
        os.kill(owner.pid, signal.SIGKILL)
    else:
        owner.stdin.write("\n")
        owner.stdin.close()
    assert owner.wait(60) == (-signal.SIGKILL if killed else 0)
    until(lambda: gone(child), "the real one's end")
