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
from tests.azure.desk import QUICK, SIZE
from tests.places import place, until

pytestmark = pytest.mark.thorough

Line = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def line(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """Begins a command line, in a shell whose workspace is connected."""
    azure.control("/reset")
    with place(tmp_path_factory.mktemp("shell"), **{**azure.environ, **QUICK}):
        begin = [sys.executable, "-m", "jupyter_amltrain.cli", "compute"]

        def begun(*words: str) -> subprocess.Popen[str]:
            pipe = subprocess.PIPE
            return subprocess.Popen([*begin, *words], stdout=pipe, stderr=pipe, text=True, start_new_session=True)

        where = ["--subscription", azure.subscription, "--resource-group", azure.resource_group]
        _, said = (connecting := begun("connect", *where, "--workspace", azure.workspace)).communicate(timeout=60)
        assert connecting.returncode == 0, said
        yield begun


def interrupted(line: Line, at: str, *words: str) -> str:
    """What is said after Ctrl-C, which comes when `at` is told."""
    process = line(*words)
    assert process.stderr is not None
    for told in process.stderr:
        if told.startswith(at):
            break
    else:
        pytest.fail(f"{at!r} was not told")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    _, said = process.communicate(timeout=60)
    lines = [one for one in said.splitlines() if one.startswith("amltrain:")]
    assert process.returncode == 130 and len(lines) == 1 and said.splitlines()[-1] == lines[0], said
    return lines[0]


def listed(line: Line) -> str:
    said, _ = line("list").communicate(timeout=60)
    return said


def test_interrupted_create_continues_at_azure(azure: Azure, line: Line) -> None:
    azure.control("/switch", create_seconds=4)
    create = ("create", "cpu", "--kind", "amlcompute", "--size", SIZE, "--yes")
    said = interrupted(line, "Creating: ", *create)
    assert "'cpu' is still being created in Azure" in said and said.endswith("amltrain compute list")
    assert "cpu" in listed(line)
    until(lambda: " ready " in listed(line))
    said = interrupted(line, "Deleting: ", "delete", "cpu", "--yes")
    assert "'cpu' is still being deleted in Azure" in said
    until(lambda: "There is no compute 'cpu'" in listed(line))


def test_interrupted_create_request_is_unconfirmed(azure: Azure, line: Line, tmp_path: Path) -> None:
    azure.control("/switch", create_seconds=0.1)
    said = interrupted(
        line, "Sending the request to Azure", "create", "perhaps", "--kind", "amlcompute", "--size", SIZE, "--yes"
    )
    assert "Azure may or may not have received the request for 'perhaps'" in said
    assert "perhaps" in listed(line)  # it may bill: nobody forgets it
    assert azure.control("/problems")["problems"] == []
