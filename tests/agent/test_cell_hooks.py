"""What the hooks do in the job of a cell: children of multiprocessing, and tables as wide as in a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.supervise import job_hooks


def run(folder: Path, code: str, cell: str = "script.py") -> subprocess.CompletedProcess[str]:
    """Run a script with the hooks of a job."""
    environ = dict(os.environ)
    job_hooks.add(environ, str(folder), str(folder), gpus=False, cell=cell)
    (folder / "script.py").write_text(code)
    command = [sys.executable, str(folder / "script.py")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


CELL = """import multiprocessing
print("body")
K = 10
size = K
def square(x): return x * x + K
try:
    import no_such_library
except ImportError:
    no_such_library = None
context = multiprocessing.get_context({method!r})
with context.Pool(2) as pool:
    print(pool.map(square, [1, 2]))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_import_the_definitions_of_a_cell_without_its_body(method: str, tmp_path: Path) -> None:
    done = run(tmp_path, CELL.format(method=method))
    assert done.stdout.split("\n")[:2] == ["body", "[11, 14]"] and not done.stderr


def test_children_read_what_a_cell_takes_from_the_notebook(tmp_path: Path) -> None:
    (tmp_path / "_amltrain_values.py").write_text("def value_of(name): return int(10)")
    code = CELL.format(method="spawn").replace("K = 10", "K = __import__('_amltrain_values').value_of('K'); J = int(1)")
    done = run(tmp_path, f"{code}print(J)")
    assert done.stdout.split("\n")[:3] == ["body", "[11, 14]", "1"] and not done.stderr


def test_function_that_needs_the_body_fails_once(tmp_path: Path) -> None:
    code = CELL.format(method="spawn").replace("K = 10", "K = int('10')").replace("size = K", "")
    done = run(tmp_path, code)
    assert done.returncode == 1 and "NameError" in done.stderr and done.stdout.count("body") == 1


def test_script_with_a_main_guard_runs_as_everywhere(tmp_path: Path) -> None:
    code = (
        "import multiprocessing\nprint('body')\ndef f(x): return x\n"
        "if __name__ == '__main__':\n    multiprocessing.set_start_method('spawn')\n"
        "    with multiprocessing.Pool(1) as pool: print(pool.map(f, [1]))\n"
    )
    assert run(tmp_path, code, cell="").stdout.count("body") == 2  # as without the hooks


def test_line_of_an_error_in_a_child_is_that_of_the_cell(tmp_path: Path) -> None:
    done = run(tmp_path, CELL.format(method="spawn").replace("return x * x + K", "return x / 0"))
    assert 'script.py", line 5, in square' in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(("cell", "columns"), [("script.py", 20), ("", 0)])
def test_table_of_a_cell_is_as_wide_as_in_a_notebook(cell: str, columns: int, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    done = run(tmp_path, "import pandas\nprint(pandas.get_option('display.max_columns'))", cell)
    assert done.stdout.strip() == str(columns)
