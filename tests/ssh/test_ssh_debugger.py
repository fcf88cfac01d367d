"""The debugger of a run over SSH, also when the connection breaks at its prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_amltrain.errors import TargetError
from jupyter_amltrain.inside.run_debugger import RunDebugger
from tests.helpers import DEADLINE, until
from tests.inside.test_debugger import TRAIN, debugged
from tools.openssh import Sshd

from .proxy import Proxy
from .test_ssh_runs import attach

pytestmark = pytest.mark.thorough


@pytest.fixture
def proxy(sshd: Sshd) -> Iterator[Proxy]:
    made = Proxy(sshd.port)
    yield made
    made.mend()
    made.close()


def test_breakpoint_over_ssh_stops_steps_and_goes_on(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    run = api.submit(TRAIN, target="box", name="debugged", gpus=0, debug=True)
    shown = debugged(run, ["p i, total", "n", "n", "p i, total", "!total = 100", "c"])
    assert "Stopped in line" in shown and "(3, 6)" in shown and "(4, 10)" in shown
    assert run.wait(DEADLINE).state == "completed" and "found 135" in run.logs()


def test_exception_over_ssh_waits_with_its_variables(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    code = "rows = [1, 2]\ndef take(i):\n    return rows[i]\ntake(5)\n"
    run = api.submit(code, target="box", name="raises", gpus=0, debug=True)
    assert "(5, [1, 2])" in debugged(run, ["p i, rows", "q"])
    until(lambda: run.state == "failed", "the end")


def test_connection_that_breaks_at_the_prompt_leaves_the_run_stopped(api: Any, sshd: Sshd, proxy: Proxy) -> None:
    attach(api, sshd, port=proxy.port)
    run = api.submit(TRAIN, target="box", name="cut", gpus=0, debug=True)

    def read(prompt: str) -> str:
        proxy.cut()
        return "n"

    with pytest.raises((TargetError, TimeoutError)):
        RunDebugger(run._with_backend, 0, print).run(read)
    proxy.mend()
    assert until(lambda: _debugged_again(run), "the prompt")
    assert run.wait(DEADLINE).state == "completed" and "found 45" in run.logs()


def _debugged_again(run: Any) -> bool:
    try:
        return "('again', 3)" in debugged(run, ["p 'again', i", "c"])
    except TargetError:  # it connects again
        return False
