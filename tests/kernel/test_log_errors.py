"""What a log's end says: the error, of a group its first one, and the line of the cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.kernel.log_errors import cell_line, last_error, last_line
from jupyter_amltrain.kernel.outcome_text import failure_reason
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle


def run_with(reason: str = "exit", detail: str = "exited with code 1", signal: int | None = None) -> Run:
    status = RunStatus(state=RunState.FAILED, reason=reason, detail=detail, exit_code=1, signal=signal)
    spec = JobSpec(name="digits", cell="x", script_name="digits.py")
    return Run(handle=make_handle("local", "digits-1"), spec=spec, status=status, created=0.0)


def log_of(code: str, folder: Path, *flags: str) -> str:
    """What Python writes for a script that ends with an error."""
    (folder / "source").mkdir()
    path = folder / "source" / "digits.py"
    path.write_text(code)
    done = subprocess.run([sys.executable, *flags, str(path)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode
    return done.stdout + done.stderr


GROUP = """\
def f():
    raise ValueError("deep")
def g():
    try:
        f()
    except Exception as error:
        return error
raise ExceptionGroup("outer", [g(), ExceptionGroup("inner", [KeyError("k")])])
"""

TASKS = """\
import asyncio
async def bad(n):
    await asyncio.sleep(0.01)
    raise RuntimeError(f"task {n}")
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(bad(1))
        group.create_task(bad(2))
asyncio.run(main())
"""

NESTED = 'raise ExceptionGroup("a", [ExceptionGroup("b", [OSError("x"), OSError("y")]), ValueError("z")])\n'


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of exceptions came with Python 3.11")
@pytest.mark.parametrize(
    ("code", "text", "line"),
    [
        (GROUP, "ExceptionGroup: outer (2 sub-exceptions), first ValueError: deep", 2),
        (
            TASKS,
            "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions), first RuntimeError: task 1",
            4,
        ),
        (
            NESTED,
            "ExceptionGroup: a (2 sub-exceptions), first ExceptionGroup: b (2 sub-exceptions), first OSError: x",
            1,
        ),
        (f"try:\n    1 / 0\nexcept ZeroDivisionError:\n    {NESTED}", "ExceptionGroup: a (2 sub-exceptions)", 4),
        ("try:\n    raise ExceptionGroup('a', [OSError()])\nexcept ExceptionGroup:\n    1 / 0", "ZeroDivisionError", 4),
    ],
    ids=["group", "tasks", "nested", "while handling", "before"],
)
def test_group_names_its_first_exception_and_the_count(code: str, text: str, line: int, tmp_path: Path) -> None:
    log = "begin\n" + log_of(code, tmp_path)
    assert last_error(log).startswith(text) and cell_line(run_with(), log) == line
    assert text in (failure_reason(run_with(), log) or "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    "code", ["import ctypes\ndef f():\n    ctypes.string_at(0)\nf()\n", "import os\n\nos.abort()\n"]
)
def test_crash_names_the_line_of_the_cell(code: str, tmp_path: Path) -> None:
    log = log_of(code, tmp_path, "-X", "faulthandler")
    run = run_with("signal", "killed by SIGSEGV", 11)
    assert cell_line(run, log) == 3
    assert (failure_reason(run, log) or "").startswith("Killed by SIGSEGV in line 3")
    assert failure_reason(run, "no stack") == "Killed by SIGSEGV."


def test_text_of_exit_is_named(tmp_path: Path) -> None:
    log = log_of("import sys\nprint('begin')\nsys.exit('no data in train/')\n", tmp_path)
    assert last_line(log) == "no data in train/"
    assert (failure_reason(run_with(), log) or "").endswith("no data in train/.")
    assert failure_reason(run_with(), "") == "Exited with code 1."
