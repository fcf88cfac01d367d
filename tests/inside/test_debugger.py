"""A debugger for runs: what a person types reaches a stopped process, and what it shows comes back."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_amltrain.agent.asking import kinds
from jupyter_amltrain.agent.asking.asked_run import AskedRun
from jupyter_amltrain.agent.debugging import debug_hook, debugger
from jupyter_amltrain.agent.protocol import ASKS, AgentError
from jupyter_amltrain.errors import CommandError, RunFailed
from jupyter_amltrain.inside.run_debugger import RunDebugger
from tests.helpers import DEADLINE, api_of, until

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


#: A full disk for the job alone: its writes fail from the line that a person types until the next one of the script.
FULL_DISK = """import resource
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
breakpoint()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print("end")
"""


@pytest.mark.parametrize(
    "line",
    [
        "!resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))",
        "!import os, shutil; shutil.rmtree(os.environ['AMLTRAIN_DEBUG'])",
    ],
    ids=["full", "gone"],
)
def test_answer_that_cannot_be_written_is_an_error_and_the_run_goes_on(api: Any, line: str) -> None:
    run = api.submit(FULL_DISK, debug=True)
    with pytest.raises(CommandError) as error:
        debugged(run, [line, *["n"] * 9])
    assert error.value.code == "debug.files" and "\n" not in str(error.value)
    assert run.wait(DEADLINE).state == "completed" and "end" in run.logs()


def test_run_whose_debugger_has_no_folder_any_more_goes_on(api: Any) -> None:
    run = api.submit(TRAIN, debug=True)
    folder = Path(run.run.folder) / debug_hook.FOLDER
    until(lambda: list(folder.glob(f"*{debug_hook.STOP}")), "the breakpoint")
    shutil.rmtree(folder)
    assert run.wait(DEADLINE).state == "completed" and "found 45" in run.logs()


def test_line_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / ASKS).mkdir()
    (tmp_path / debug_hook.FOLDER).mkdir()
    (tmp_path / debug_hook.FOLDER / f"7{debug_hook.STOP}").write_text('{"pid": 7, "rank": 0}')
    run = AskedRun(str(tmp_path), {"spec": {"debug": True}}, list)
    assert kinds.answer(run, {"kind": "debug", "text": None})["state"] == "stopped"
    monkeypatch.setattr(debugger, "_send", full)
    with pytest.raises(AgentError) as error:
        kinds.answer(run, {"kind": "debug", "text": "n"})
    assert error.value.code == "debug.files" and os.strerror(errno.ENOSPC) in str(error.value)


def test_process_of_a_distributed_run_is_debugged_alone(api: Any) -> None:
    code = "import os\nrank = int(os.environ['AMLTRAIN_RANK'])\nif rank == 1:\n    breakpoint()\nprint('rank', rank)\n"
    run = api.submit(code, debug=True, distribution="tensorflow", processes=2)
    assert "('it', 1)" in debugged(run, ["p 'it', rank", "c"], rank=1)
    assert run.wait(DEADLINE).state == "completed"


@pytest.mark.parametrize("end", ["breakpoint()", "1 / 0"], ids=["breakpoint", "exception"])
def test_notebook_as_a_job_is_debugged_in_its_cell(api: Any, tmp_path: Path, end: str) -> None:
    cells = ["rows = [1, 2]", f"def take(i):\n    {end}\n    return rows[i]\nfound = take(1)", "print('found', found)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, tmp_path / "train.ipynb")
    run = api.submit(tmp_path / "train.ipynb", debug=True, name="notebook")
    shown = debugged(run, ["p 'it', i, rows", "up", "p 'outer', 'i' in dir()", "c" if end[0] == "b" else "q"])
    assert "('it', 1, [1, 2])" in shown and "('outer', False)" in shown
    until(lambda: run.status.state.terminal, "the end")
    assert run.state == ("completed" if end[0] == "b" else "failed")
    assert ("found 2" if end[0] == "b" else "ZeroDivisionError") in run.logs()


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
