"""Questions to a run over SSH, also when the connection breaks in the middle of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import TargetError
from tests.helpers import until
from tools.openssh import Sshd

from .proxy import Proxy
from .test_ssh_runs import attach

pytestmark = pytest.mark.thorough

JOB = """
import os, time
count = total = 0
while not os.path.exists(GATE):
    count += 1
    total += count
    time.sleep(0.002)
print("whole", total == count * (count + 1) // 2, pokes)
"""


@pytest.fixture
def proxy(sshd: Sshd) -> Iterator[Proxy]:
    made = Proxy(sshd.port)
    yield made
    made.thaw()
    made.mend()
    made.close()


@pytest.mark.parametrize("manner", ["cut", "frozen"])
def test_connection_that_breaks_during_a_question_harms_nothing(
    api: Any, sshd: Sshd, proxy: Proxy, tmp_path: Path, manner: str
) -> None:
    attach(api, sshd, port=proxy.port)
    gate, begun, go = (tmp_path / name for name in ("gate", "begun", "go"))
    run = api.submit(f"pokes = 0\nGATE = {str(gate)!r}\n{JOB}", target="box", name="asked", gpus=0)
    until(lambda: run.state == "running", "the run")
    assert until(lambda: int(run.peek("count")) > 0 and "time.sleep" in str(run.stack()), "an answer")
    errors: list[Exception] = []

    def poke() -> None:
        text = f"pokes += 1\nopen({str(begun)!r}, 'w').close()\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
        try:
            run.poke(text)
        except (TargetError, TimeoutError) as error:
            errors.append(error)

    thread = threading.Thread(target=poke)
    thread.start()
    until(begun.exists, "the statement")
    proxy.cut() if manner == "cut" else proxy.freeze()
    go.touch()
    if manner == "cut":
        thread.join(90)
        proxy.mend()
        assert errors
    else:
        proxy.thaw()
        thread.join(90)
    assert until(lambda: _peek(run, "pokes") == "1", "an answer")
    (kept,) = until(lambda: run.record().pokes, "the record of the statement")
    assert kept.text.startswith("pokes += 1") and not kept.error
    gate.touch()
    run.wait(120)
    assert run.logs() == "whole True 1\n"


def _peek(run: Any, text: str) -> str:
    try:
        return str(run.peek(text))
    except TargetError:  # it connects again
        return ""
