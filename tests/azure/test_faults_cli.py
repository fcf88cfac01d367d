"""Ctrl-C in a shell while something is done with a compute: what becomes of it is one line, and true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.azure.conftest import Azure
from tests.azure.notebook_session import QUICK, SIZE
from tests.helpers import state_root, until

pytestmark = pytest.mark.thorough

Line = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def line(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """Begins a command line, in a shell whose workspace is connected."""
    azure.control("/reset")
    with state_root(tmp_path_factory.mktemp("shell"), **{**azure.environ, **QUICK}):
        begin = [sys.executable, "-m", "jupyter_amltrain.cli", "compute"]

        def begun(*words: str) -> subprocess.Popen[str]:
            pipe = subprocess.PIPE
            return subprocess.Popen([*begin, *words], stdout=pipe, stderr=pipe, text=True, start_new_session=True)

        where = ["--subscription", azure.subscription, "--resource-group", azure.resource_group]
        _, output = (connecting := begun("connect", *where, "--workspace", azure.workspace)).communicate(timeout=60)
        assert connecting.returncode == 0, output
        yield begun


def interrupted(line: Line, at: str, *words: str) -> str:
    """The message after Ctrl-C, which is sent once `at` is printed."""
    process = line(*words)
    assert process.stderr is not None
    for printed in process.stderr:
        if printed.startswith(at):
            break
    else:
        pytest.fail(f"{at!r} was not printed")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    _, output = process.communicate(timeout=60)
    lines = [one for one in output.splitlines() if one.startswith("amltrain:")]
    assert process.returncode == 130 and len(lines) == 1 and output.splitlines()[-1] == lines[0], output
    return lines[0]


def listed(line: Line) -> str:
    output, _ = line("list").communicate(timeout=60)
    return output


def test_interrupted_create_continues_at_azure(azure: Azure, line: Line) -> None:
    azure.control("/switch", create_seconds=4)
    create = ("create", "cpu", "--kind", "amlcompute", "--size", SIZE, "--yes")
    message = interrupted(line, "Creating: ", *create)
    assert "still being created" in message and message.endswith("amltrain compute list")
    assert "cpu" in listed(line)
    until(lambda: " ready " in listed(line))
    message = interrupted(line, "Deleting: ", "delete", "cpu", "--yes")
    assert "still being deleted" in message
    until(lambda: "There is no compute 'cpu'" in listed(line))


def test_interrupted_create_request_is_unconfirmed(azure: Azure, line: Line, tmp_path: Path) -> None:
    azure.control("/switch", create_seconds=0.1)
    message = interrupted(
        line, "Sending the request to Azure", "create", "perhaps", "--kind", "amlcompute", "--size", SIZE, "--yes"
    )
    assert "'perhaps'" in message and "may" in message
    assert "perhaps" in listed(line)  # it may bill: nobody forgets it
    assert azure.control("/problems")["problems"] == []
