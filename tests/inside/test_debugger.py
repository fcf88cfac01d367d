"""A debugger for runs: what a person types reaches a stopped process, and what it shows comes back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError, RunFailed
from jupyter_amltrain.inside.run_debugger import RunDebugger
from tests.helpers import DEADLINE, api_of

pytestmark = pytest.mark.thorough

TRAIN = """\
def train(n):
    total = 0
    for i in range(n):
        total += i
        if i == 3:
            breakpoint()
    return total
found = train(10)
print("found", found)
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("debugger")) as module:
        yield module


def debugged(run: Any, lines: Iterable[str], rank: int = 0) -> str:
    """What a person sees who types these lines and then interrupts."""
    shown: list[str] = []
    typed = iter(lines)

    def read(prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise KeyboardInterrupt
        shown.append(prompt + line)
        return line

    RunDebugger(run._with_backend, rank, shown.append).run(read)
    return "\n".join(shown)


def test_breakpoint_shows_variables_steps_and_goes_on(api: Any) -> None:
    run = api.submit(TRAIN, debug=True)
    shown = debugged(run, ["p i, total", "n", "n", "p i, total", "w", "c"])
    assert "(3, 6)" in shown and "(4, 10)" in shown and "train()" in shown
    assert "Stopped in line" in shown
    assert run.wait(DEADLINE).state == "completed" and "found 45" in run.logs()


def test_breakpoint_of_the_debugger_stops_again(api: Any) -> None:
    run = api.submit(TRAIN, debug=True)
    shown = debugged(run, ["b 5", "c", "p 'again', i", "cl 1", "c"])
    assert "('again', 4)" in shown
    assert run.wait(DEADLINE).state == "completed"


def test_exception_waits_and_its_frames_can_be_looked_at(api: Any) -> None:
    run = api.submit("rows = [1, 2]\ndef take(i):\n    return rows[i]\ntake(5)\n", debug=True)
    shown = debugged(run, ["p i, rows", "up", "p 'outer', 'i' in dir()", "1 / 0", "q"])
    assert "IndexError in line" in shown and "(5, [1, 2])" in shown and "('outer', False)" in shown
    assert "ZeroDivisionError" in shown
    with pytest.raises(RunFailed) as error:
        run.wait(DEADLINE)
    assert "IndexError" in str(error.value)


def test_assignment_changes_the_run(api: Any) -> None:
    run = api.submit("n = 1\nbreakpoint()\nprint('n is', n)\n", debug=True)
    debugged(run, ["!n = 41 + 1", "c"])
    run.wait(DEADLINE)
    assert "n is 42" in run.logs()


def test_long_step_is_waited_for(api: Any) -> None:
    run = api.submit("import time\nbreakpoint()\ntime.sleep(6)\nx = 1\n", debug=True)
    shown = debugged(run, ["n", "n", "p 'there', x", "c"])
    assert "('there', 1)" in shown
    run.wait(DEADLINE)


def test_debugger_that_was_left_is_entered_again(api: Any) -> None:
    run = api.submit(TRAIN, debug=True)
    assert "(3, 6)" in debugged(run, ["p i, total"])
    shown = debugged(run, ["p 'second', i", "c"])
    assert "('second', 3)" in shown
    assert run.wait(DEADLINE).state == "completed"


def test_quit_ends_the_script(api: Any) -> None:
    run = api.submit(TRAIN, debug=True)
    debugged(run, ["q"])
    with pytest.raises(RunFailed) as error:
        run.wait(DEADLINE)
    assert "BdbQuit" in str(error.value)


def test_set_trace_of_pdb_stops_too(api: Any) -> None:
    run = api.submit("import pdb\nx = 7\npdb.set_trace()\nprint('end')\n", debug=True)
    assert "'x is', 7" in debugged(run, ["p 'x is', x", "c"])
    assert run.wait(DEADLINE).state == "completed"


def test_breakpoint_that_nobody_looks_at_is_passed(api: Any) -> None:
    run = api.submit(TRAIN, debug=True, env={"AMLTRAIN_DEBUG_WAIT": "0.2"})
    assert run.wait(DEADLINE).state == "completed" and "found 45" in run.logs()


def test_breakpoint_without_debugger_is_passed_and_named(api: Any) -> None:
    run = api.submit(TRAIN).wait(DEADLINE)
    assert "found 45" in run.logs() and "--debug" in run.logs()


def test_running_run_without_debugger_is_refused(api: Any) -> None:
    run = api.submit("import time\ntime.sleep(60)\n")
    with pytest.raises(CommandError) as error:
        debugged(run, itertools.repeat("n"))
    assert "--debug" in str(error.value)
    run.cancel()


def test_text_of_the_job_cannot_write_control_codes(api: Any) -> None:
    run = api.submit("text = 'a\\x1b[2Jb'\nbreakpoint()\n", debug=True)
    assert "\x1b" not in debugged(run, ["!print(text)", "p 1", "c"])
    run.wait(DEADLINE)
