"""When a job's Python keeps the variables of the lines that raised: only when an exception has ended its script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.supervise import job_hooks


def run(
    folder: Path, code: str, *arguments: str, python: str = sys.executable, **more: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a script with the hooks of a job; return also what is kept of its failure, by process."""
    environ = {**os.environ, **more}
    job_hooks.add(environ, str(folder), str(folder), gpus=False, cell="script.py")
    (folder / "script.py").write_text(code)
    command = [python, *(arguments or (str(folder / "script.py"),))]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, cwd=folder)
    files = (folder / "failure").glob("*.json") if (folder / "failure").exists() else ()
    return done, {file.stem: json.loads(file.read_text()) for file in files}


def named(content: dict[str, Any]) -> dict[str, str]:
    """Return the variables that the failing lines name."""
    frames = [frame for error in content["errors"] for frame in error["frames"]]
    return {one["name"]: one.get("text", "") for frame in frames for one in frame["values"] if one["named"]}


FAILS = "def f(rows, i):\n    return rows[i]\nf([1, 2], 7)\n"


def test_failed_script_keeps_its_variables(tmp_path: Path) -> None:
    done, kept = run(tmp_path, FAILS)
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1 and done.stderr.endswith("out of range\n")
    assert named(kept["rank-0"])["i"] == "7" and kept["rank-0"]["errors"][0]["type"] == "IndexError"


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_each_python_keeps_the_same(version: str, tmp_path: Path) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    python = str(found[-1]) if found else f"python{version}"
    try:
        subprocess.run([python, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip(f"Python {version} is not on this machine")
    done, kept = run(tmp_path, FAILS, python=python, PYTHONPATH="")
    (error,) = kept["rank-0"]["errors"]
    assert done.returncode == 1 and error["type"] == "IndexError"
    assert [(frame["line"], frame["function"]) for frame in error["frames"]] == [(2, "f"), (3, "<module>")]
    assert named(kept["rank-0"]) == {"rows": "[1, 2]", "i": "7"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("print('well')", ()),
        ("import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(1)", ()),
        ("import os\ntry:\n    1 / 0\nfinally:\n    os._exit(3)", ()),
        ("import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", ()),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", ()),
        ("import os\npid = os.fork()\nif not pid: 1 / 0\nos.waitpid(pid, 0)", ()),
        (
            "import multiprocessing\ndef f(x): return 1 / x\nif __name__ == '__main__':\n"
            "    p = multiprocessing.get_context('spawn').Process(target=f, args=(0,)); p.start(); p.join()",
            (),
        ),
        ("x = (", ()),
    ],
    ids=["ends", "exit", "_exit", "thread", "terminated", "forked", "spawned", "syntax"],
)
def test_nothing_is_kept_unless_an_exception_ends_the_script(
    code: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    _, kept = run(tmp_path, code, *arguments)
    assert not any(one["errors"][0]["frames"] for one in kept.values())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "before",
    [
        "import sys\nsys.excepthook = lambda *error: None",
        "import sys\nsys.excepthook = lambda *error: 1 / 0",
        "import sys\nsys.meta_path[:] = [one for one in sys.meta_path if type(one).__module__ != 'sitecustomize']",
        "import atexit\natexit.register(lambda: 1 / 0)",
        "import os\nos.environ['RANK'] = '5'",
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)",
    ],
    ids=["excepthook", "bad-excepthook", "meta-path", "exit-handler", "rank", "alarm"],
)
def test_own_handlers_of_a_script_do_not_matter(before: str, tmp_path: Path) -> None:
    done, kept = run(tmp_path, f"{before}\n{FAILS}")
    assert done.returncode == 1 and named(kept["rank-0"])["i"] == "7"


def test_module_run_by_name_keeps_its_variables(tmp_path: Path) -> None:
    _, kept = run(tmp_path, FAILS, "-m", "script")
    assert named(kept["rank-0"])["i"] == "7"


def test_interrupted_script_shows_where_it_was(tmp_path: Path) -> None:
    done, kept = run(tmp_path, "import os, signal\nstep = 3\nos.kill(os.getpid(), signal.SIGINT); print(step)")
    assert done.returncode == -signal.SIGINT
    assert kept["rank-0"]["errors"][0]["type"] == "KeyboardInterrupt" and named(kept["rank-0"])["step"] == "3"


def test_memory_error_shows_what_was_there(tmp_path: Path) -> None:
    code = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nparts = []\n" + (
        "while True:\n    size = 50_000_000\n    parts.append(bytearray(size))\n"
    )
    done, kept = run(tmp_path, code)
    assert done.returncode == 1 and kept["rank-0"]["errors"][0]["type"] == "MemoryError"
    assert named(kept["rank-0"])["size"] == "50000000"


def test_error_in_a_worker_shows_the_call_of_the_script(tmp_path: Path) -> None:
    code = (
        "import multiprocessing\ndef f(x): return 1 / x\nif __name__ == '__main__':\n    items = [0, 1]\n"
        "    with multiprocessing.get_context('fork').Pool(1) as pool: pool.map(f, items)\n"
    )
    _, kept = run(tmp_path, code)
    (error,) = kept["rank-0"]["errors"]
    assert error["type"] == "ZeroDivisionError" and named(kept["rank-0"]) == {"pool": "", "items": "[0, 1]"}


def test_rank_writes_a_file_of_its_own(tmp_path: Path) -> None:
    _, kept = run(tmp_path, FAILS, RANK="3", WORLD_SIZE="4")
    assert list(kept) == ["rank-3"]


def test_hook_can_be_turned_off(tmp_path: Path) -> None:
    assert run(tmp_path, FAILS, AMLTRAIN_FAILURE="0")[1] == {}


def test_values_that_hang_do_not_hold_up_the_end(tmp_path: Path) -> None:
    code = (
        "import time\nclass A:\n    def __getattribute__(self, name): time.sleep(60)\n"
        "    __repr__ = __len__ = __getattribute__\na = A()\ndef f(a): return [a, 1 / 0]\nf(a)\n"
    )
    done, kept = run(tmp_path, code)
    assert done.returncode == 1 and "a" in named(kept["rank-0"])


def test_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "failure").write_text("a file")
    done = run_only(tmp_path, FAILS)
    assert done.returncode == 1 and done.stderr.endswith("out of range\n")


def run_only(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the hooks of a job."""
    environ = dict(os.environ)
    job_hooks.add(environ, str(folder), str(folder), gpus=False, cell="script.py")
    (folder / "script.py").write_text(code)
    return subprocess.run(
        [sys.executable, str(folder / "script.py")], env=environ, capture_output=True, text=True, timeout=60
    )


def test_start_imports_nothing_more(tmp_path: Path) -> None:
    code = "import sys; print(sorted(sys.modules))"
    done, _ = run(tmp_path, code)
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    more = set(json.loads(done.stdout.replace("'", '"'))) - set(json.loads(plain.replace("'", '"')))
    assert more <= {"atexit", "sitecustomize"}
