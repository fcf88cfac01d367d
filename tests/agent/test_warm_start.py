"""A job that starts in an interpreter that has waited shows what it shows after a cold start."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent import notebook_runtime
from jupyter_amltrain.agent.processes import process_table
from tests import waiting_python

from .conftest import Agent, alive, until

#: Everything of a process that its script can see, as far as it does not change from run to run.
FACTS = """
import atexit, faulthandler, gc, inspect, json, locale, os, resource, signal, site, sys, threading, traceback, warnings
facts = {
    "environ": dict(sorted(os.environ.items())), "argv": sys.argv, "cwd": os.getcwd(),
    "orig_argv": getattr(sys, "orig_argv", None),
    "main": sorted((k, str(v)) for k, v in globals().items() if k.startswith("__") and k != "__builtins__"),
    "flags": str(sys.flags), "xoptions": sys._xoptions, "warnoptions": sys.warnoptions, "path": sys.path,
    "filters": str(warnings.filters), "handles": sorted(os.listdir("/proc/self/fd")), "umask": os.umask(0o22),
    "handlers": {str(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
    "mask": str(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "limits": [resource.getrlimit(n) for n in range(16)], "nice": os.nice(0), "affinity": str(os.sched_getaffinity(0)),
    "leads": os.getpid() == os.getsid(0) == os.getpgrp(), "modules": sorted(sys.modules), "gc": gc.get_threshold(),
    "meta_path": [str(type(one)) for one in sys.meta_path], "path_hooks": str(sys.path_hooks),
    "importers": sorted({*sys.path_importer_cache} - {sys.path[0]}),  # read at the next import
    "recursion": sys.getrecursionlimit(), "threads": threading.active_count(),
    "main_thread": threading.current_thread() is threading.main_thread(), "fault": faulthandler.is_enabled(),
    "streams": [str((s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.name)) for s in (
        sys.stdin, sys.stdout, sys.stderr)],
    "links": [os.readlink("/proc/self/fd/%d" % n) for n in range(3)], "locale": locale.setlocale(locale.LC_ALL),
    "stack": [(one.filename, one.lineno, one.function) for one in inspect.stack()], "traced": [
        str(sys.gettrace()), str(sys.getprofile())], "cgroup": open("/proc/self/cgroup").read(),
    "source": inspect.getsource(lambda: None), "name": open("/proc/self/comm").read(),
    "command": open("/proc/self/cmdline").read().rstrip(chr(0)), "score": open("/proc/self/oom_score_adj").read(),
    "excepthook": str(sys.excepthook is sys.__excepthook__), "site": site.ENABLE_USER_SITE,
    "environ methods": [str(type(os.environ).__dict__[n].__qualname__) for n in ("__getitem__", "__iter__")],
}
print(json.dumps(facts, indent=1, sort_keys=True, default=str))
"""
#: Variables of a job where the thread that samples its lines can be seen: it opens files at any time, and stands in the
#: report of a crash.
ALONE = {"AMLTRAIN_LINES": "0"}
SEES_THREADS = ("facts", "fault")
POOL = """
import multiprocessing
def square(x): return x * x
if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool: print(pool.map(square, [1, 2, 3]))
"""
#: Scripts, after their first line, which imports a package.
SCRIPTS = {
    "facts": FACTS,
    "end": "print('done')",
    "exit": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('not today')",
    "exit at once": "import os; print('x', flush=True); os._exit(7)",
    "error": "def f():\n    return 1 / 0\ntry: f()\nexcept ZeroDivisionError as error: raise KeyError('a') from error",
    "error in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start(); t.join()",
    "interrupted": "import os, signal\ndef f(): os.kill(os.getpid(), signal.SIGINT)\nf()",
    "fault": "import ctypes\ndef f(): ctypes.string_at(0)\nf()",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "warning": "import warnings\ndef f(): warnings.warn('careful', stacklevel=2)\nf()",
    "deprecated": "import warnings; warnings.warn('old', DeprecationWarning)",
    "at exit": "import atexit, threading as t\natexit.register(print, 1)\nt.Thread(target=print, args='t').start()",
    "stack": "import traceback, logging\ndef f(): traceback.print_stack(); logging.warning('x', stack_info=True)\nf()",
    **{f"pool {method}": POOL.format(method=method) for method in ("fork", "spawn", "forkserver")},
    "child": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import os, sys; print(sys.argv, "
    "sorted(os.environ), os.getppid() > 1)'], capture_output=True, text=True))",
}  # fmt: skip


class Notebook:
    """Runs of one script in a folder of its own, with packages of its own."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self.agent, self.folder = agent, folder
        self.packages = folder / "lib" / "site-packages"
        self.packages.mkdir(parents=True)
        self.package("warmed", "import decimal\nVALUE = 1\n")
        self.script = folder / "script.py"
        self.python = sys.executable
        self.env: dict[str, str] = {}
        self.environ = {**os.environ, "PYTHONPATH": str(self.packages), "AMLTRAIN_WARM": "600"}

    def package(self, name: str, code: str) -> None:
        (self.packages / f"{name}.py").write_text(code)

    def submit(self, code: str = "", **more: Any) -> str:
        if code:
            self.script.write_text(code)
        values = {"argv": [self.python, "-u", str(self.script), "--lr", "0.1"], "cwd": str(self.folder)}
        return self.agent.submit("", environ=self.environ, env=self.env, **{**values, **more})

    def run(self, code: str = "", **more: Any) -> tuple[str, dict[str, Any], bool]:
        """Run a script to its end: what it has printed, its state, and whether it had a waiting interpreter."""
        run = self.submit(code, **more)
        state = self.agent.wait(run)
        until(lambda: self.agent.good("info")["running"] == 0, "the freed slot")
        return self.agent.log(run).replace(run, "RUN"), state, self.is_warm(run)

    def run_copy(self, code: str, **files: str) -> tuple[str, dict[str, Any], bool]:
        """Run a script in the folder of its copy, as on another machine."""
        run = f"copy-{len(list((Path(self.agent.home) / 'runs').glob('copy-*')))}"
        staging, source = Path(self.agent.home, "staging", run), self.agent.run_folder(run) / "source"
        staging.mkdir(parents=True)
        for name, text in {"script.py": code, **files}.items():
            (staging / name).write_text(text)
        return self.run(run=run, argv=[self.python, "-u", str(source / "script.py")], cwd=str(source))

    def is_warm(self, run: str) -> bool:
        return self.reason(run) == "warm"

    def reason(self, run: str) -> str:
        return waiting_python.start_of(self.agent.run_folder(run))

    def waiting(self) -> set[int]:
        return waiting_python.waiting(self.agent.home)

    def ready(self) -> int:
        return waiting_python.ready(self.agent.home)

    def warmed(self, code: str) -> int:
        """Run a script and wait for the interpreter that follows it; its pid."""
        self.run(code)
        return self.ready()


@pytest.fixture
def notebook(agent: Agent, tmp_path: Path) -> Notebook:
    return Notebook(agent, tmp_path)


def plain(text: str) -> str:
    """What a script has printed without pids, addresses, times and names that a run has for itself."""
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    text = re.sub(r"RUN:[0-9a-f]+", "RUN:mark", text)
    return re.sub(r"(MainProcess|ForkPoolWorker-\d+|pid) ?\d*", r"\1", text)


def different(cold: str, warm: str) -> list[str]:
    """Lines that differ."""
    return list(difflib.unified_diff(plain(cold).splitlines(), plain(warm).splitlines(), n=0))


#: Those that every run of the tests compares.
FEW = ("facts", "error", "exit", "fault")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.thorough) for name in SCRIPTS]
)
def test_script_in_waiting_interpreter_shows_what_cold_start_shows(notebook: Notebook, name: str) -> None:
    code = "import warmed\n" + SCRIPTS[name]
    if name in SEES_THREADS:
        notebook.env = ALONE
    cold, state, is_warm = notebook.run(code)
    assert not is_warm
    notebook.ready()
    warm, after, is_warm = notebook.run(code)
    assert is_warm and not different(cold, warm)
    names = ("state", "reason", "exit_code", "signal", "detail", "cause")
    assert {key: after.get(key) for key in names} == {key: state.get(key) for key in names}


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["print('no')\nif :", "print('\\d')", "def f():\n    return 1\n  x"])
def test_script_that_does_not_compile_names_its_own_file(notebook: Notebook, text: str) -> None:
    code = "import warmed\n" + text
    notebook.environ["PYTHONWARNINGS"] = "default"
    cold, _, _ = notebook.run(code)
    notebook.warmed("import warmed")
    text, _, is_warm = notebook.run(code)
    assert not is_warm and str(notebook.script) in text and not different(cold, text)


@pytest.mark.thorough
def test_failed_script_in_waiting_interpreter_keeps_its_variables(notebook: Notebook) -> None:
    notebook.warmed("import warmed")
    run = notebook.submit("import warmed\ndef f(rows, i):\n    return rows[i]\nf([1], 7)")
    notebook.agent.wait(run)
    (error,) = json.loads((notebook.agent.run_folder(run) / "failure" / "rank-0.json").read_text())["errors"]
    assert notebook.is_warm(run) and error["type"] == "IndexError"
    assert [(one["file"], one["line"]) for one in error["frames"]] == [
        (str(notebook.script), 3),
        (str(notebook.script), 4),
    ]
    assert [value["text"] for value in error["frames"][0]["values"]] == ["[1]", "7"]


def test_script_that_shows_values_starts_warm(notebook: Notebook) -> None:
    shutil.copy(notebook_runtime.__file__, notebook.folder / f"{notebook_runtime.MODULE}.py")
    code = f"{notebook_runtime.INSTALL}\nimport warmed\ndisplay(warmed.VALUE)"
    cold, _, _ = notebook.run(code)
    notebook.ready()
    warm, _, is_warm = notebook.run(code)
    assert is_warm and cold == warm == "1\n"


@pytest.mark.thorough
def test_package_with_own_module_and_kept_open_starts_warm(notebook: Notebook) -> None:
    """As PyTorch: ``torch.ops`` is an object with the name of a file, and a handler of its log keeps ``open``."""
    package = (
        "import sys, types\n"
        "class Ops(types.ModuleType):\n    __file__ = '_ops.py'\n"
        "sys.modules['warmed.ops'] = Ops('ops')\n"
        "class Handler:\n    def __init__(self): self.open = open\n"
        "HANDLER = Handler()\n"
    )
    notebook.package("warmed", package)
    code = "import warmed\nprint(warmed.HANDLER.open is open, type(open).__name__)"
    cold, _, _ = notebook.run(code)
    notebook.ready()
    warm, _, is_warm = notebook.run(code)
    assert is_warm and cold == warm == "True builtin_function_or_method\n"


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("name", ["facts", "error", "fault"])
def test_script_in_waiting_interpreter_of_each_python(notebook: Notebook, version: str, name: str) -> None:
    command = [shutil.which(f"python{version}") or "false", "-c", "import sys; print(sys.executable)"]
    notebook.python = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if not notebook.python:
        pytest.skip(f"Python {version} is not on this machine")
    code = "import warmed\n" + SCRIPTS[name]
    if name in SEES_THREADS:
        notebook.env = ALONE
    cold, _, _ = notebook.run(code)
    notebook.ready()
    warm, _, is_warm = notebook.run(code)
    assert is_warm and not different(cold, warm)


@pytest.mark.thorough
def test_waiting_interpreter_has_imported_before_job(notebook: Notebook) -> None:
    code = "import warmed, os, time\nprint(time.time(), warmed.BORN, os.getppid())"
    notebook.package("warmed", "import time\nBORN = time.time()\n")
    pid = notebook.warmed(code)
    score = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    time.sleep(0.3)
    text, state, is_warm = notebook.run(code)
    now, born, parent = map(float, text.split())
    assert is_warm and now - born > 0.3 and score == "1000"
    assert state["rank"]["pid"] == pid and parent == state["supervisor"]["pid"]


@pytest.mark.thorough
def test_random_states_of_two_warm_runs_differ(notebook: Notebook) -> None:
    code = "import warmed\nimport random\nprint(random.random(), hash('text'))"
    notebook.package("warmed", "import random\n")
    texts = set()
    for _ in range(3):
        notebook.warmed(code)
        text, _, is_warm = notebook.run()
        assert is_warm
        texts |= set(text.split())
    assert len(texts) == 6


def other_variable(notebook: Notebook) -> None:
    notebook.environ["OMP_NUM_THREADS"] = "1"


def other_import(notebook: Notebook) -> None:
    notebook.script.write_text("import decimal\nimport warmed")


def statement_before_import(notebook: Notebook) -> None:
    notebook.script.write_text("import os; os.environ['X'] = '1'\nimport warmed")


def module_beside_script(notebook: Notebook) -> None:
    (notebook.folder / "decimal.py").write_text("")


def changed_package(notebook: Notebook) -> None:
    notebook.package("warmed", SETTINGS + "\n")


def changed_setting(notebook: Notebook) -> None:
    (notebook.folder / "setting").write_text("2")


def created_setting(notebook: Notebook) -> None:
    (notebook.folder / "other").write_text("2")


def new_package(notebook: Notebook) -> None:
    notebook.package("new", "")


CHANGES = [
    *(other_variable, other_import, statement_before_import, module_beside_script, changed_package, new_package),
    *(changed_setting, created_setting),
]
#: A package that reads its settings when it is imported.
SETTINGS = """import decimal
from builtins import open as first
VALUE = []
for name in ("setting", "other"):
    try:
        with open(name) as file: VALUE.append(file.read())
    except OSError: pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES)
def test_job_that_could_differ_starts_cold(notebook: Notebook, change: Callable[[Notebook], None]) -> None:
    notebook.package("warmed", SETTINGS)
    (notebook.folder / "setting").write_text("1")
    code = "import warmed\nprint(warmed.VALUE, open is warmed.first, type(open).__name__)"
    notebook.warmed(code)
    assert notebook.run()[0] == "['1'] True builtin_function_or_method\n"
    pid = notebook.ready()
    change(notebook)
    run = notebook.submit()
    assert notebook.agent.wait(run)["state"] == "completed"
    assert notebook.reason(run) not in ("", "warm")
    until(lambda: not alive(pid), "the end of the interpreter")


@pytest.mark.thorough
def test_machine_with_free_slots_prepares_next_run_while_one_runs(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMLTRAIN_CPU_SLOTS", "8")
    agent, stop = notebook.agent, notebook.folder / "stop"
    code = "import warmed\nimport os, time\nprint('up')\nwhile not os.path.exists('stop'): time.sleep(0.02)"
    first = notebook.submit(code)
    agent.running(first, "up")
    notebook.ready()
    second = notebook.submit()
    agent.running(second, "up")
    assert notebook.is_warm(second) and not notebook.is_warm(first)
    stop.touch()
    assert {agent.wait(run)["state"] for run in (first, second)} == {"completed"}


@pytest.mark.thorough
def test_job_with_other_arguments_and_folder(notebook: Notebook) -> None:
    code = "import warmed\nimport sys\nprint(sys.argv[1:])"
    notebook.warmed(code)
    argv = [sys.executable, "-u", str(notebook.script), "--lr", "0.2", "--epochs", "3"]
    text, _, is_warm = notebook.run(argv=argv)
    assert is_warm and text.strip() == "['--lr', '0.2', '--epochs', '3']"
    notebook.ready()
    assert not notebook.run(cwd="/")[2]


@pytest.mark.thorough
def test_job_in_copy_of_its_code_shows_what_cold_start_shows(notebook: Notebook) -> None:
    notebook.env = ALONE
    notebook.package("warmed", SETTINGS + "from multiprocessing.process import ORIGINAL_DIR as FIRST\n")
    code = "import warmed\n" + FACTS + "import multiprocessing.process\nprint(multiprocessing.process.ORIGINAL_DIR)"
    cold, _, _ = notebook.run_copy(code)
    notebook.ready()
    warm, state, is_warm = notebook.run_copy(code)
    assert is_warm and not different(cold.replace("copy-0", "copy"), warm.replace("copy-1", "copy"))
    notebook.ready()
    text, _, is_warm = notebook.run_copy("import warmed\nprint(warmed.VALUE)", setting="1")
    assert not is_warm and text == "['1']\n"


@pytest.mark.thorough
def test_package_that_reads_the_working_folder_is_imported_in_that_of_the_job(notebook: Notebook) -> None:
    notebook.package("warmed", "import pathlib\nFOLDER = pathlib.Path.cwd()\n")
    code = "import warmed\nimport os\nprint(str(warmed.FOLDER) == os.getcwd())"
    notebook.run_copy(code)
    notebook.ready()
    text, _, is_warm = notebook.run_copy(code)
    assert not is_warm and text == "True\n"
    notebook.warmed(code)
    text, _, is_warm = notebook.run()
    assert is_warm and text == "True\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    [
        "print('hello')",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "import socket\nS = socket.socket()",
        "import subprocess, sys\nP = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3)'])",
        "import os\nRUN = os.environ['AMLTRAIN_RUN']",
        "import os\nALL = dict(os.environ)",
        "import os\nos.environ['AML_OUTPUT_DIR'] = '/tmp'",
        "raise ImportError('no')",
        "import sys\nsys.exit(5)",
        "import os\nos._exit(6)",
        "import os\nos.abort()",
    ],
)
def test_package_whose_import_does_more_starts_cold(notebook: Notebook, code: str) -> None:
    notebook.package("warmed", code + "\n")
    cold, state, _ = notebook.run("import warmed\nprint('end')")
    warm, after, is_warm = notebook.run()
    assert not is_warm and not different(cold, warm)
    assert (after["state"], after["exit_code"], after["signal"]) == (
        state["state"], state["exit_code"], state["signal"])  # fmt: skip


def test_setting_zero_keeps_no_interpreter(notebook: Notebook) -> None:
    notebook.environ["AMLTRAIN_WARM"] = "0"
    notebook.run("import warmed")
    assert not notebook.run()[2] and not notebook.waiting()


@pytest.mark.thorough
def test_interpreter_ends_after_idle_time(notebook: Notebook) -> None:
    notebook.environ["AMLTRAIN_WARM"] = "1"
    notebook.run("import warmed")

    def found_ended() -> bool:  # on a busy machine it may still import after these seconds
        time.sleep(3)
        run = notebook.submit()
        assert notebook.agent.wait(run)["state"] == "completed"
        return "ended" in notebook.reason(run)

    until(found_ended, "a run whose interpreter had ended")
    until(lambda: not notebook.waiting(), "the end of the interpreter of that run")


def test_interpreter_larger_than_limit_is_not_kept(notebook: Notebook) -> None:
    notebook.environ["AMLTRAIN_WARM_MEMORY"] = "1"
    notebook.run("import warmed")
    run = notebook.submit()
    notebook.agent.wait(run)
    assert "large" in notebook.reason(run)


@pytest.mark.thorough
def test_interpreter_killed_while_it_waits_starts_job_cold(notebook: Notebook) -> None:
    os.kill(notebook.warmed("import warmed\nprint('up')"), signal.SIGKILL)
    text, state, is_warm = notebook.run()
    assert state["state"] == "completed" and text == "up\n" and not is_warm


@pytest.mark.thorough
def test_interpreter_stopped_while_it_waits_starts_job_cold(notebook: Notebook) -> None:
    pid = notebook.warmed("import warmed\nprint('up')")
    os.kill(pid, signal.SIGSTOP)
    text, state, is_warm = notebook.run()
    assert state["state"] == "completed" and text == "up\n" and not is_warm
    until(lambda: not alive(pid), "the end of the interpreter")


@pytest.mark.thorough
@pytest.mark.parametrize("killed", ["supervisor", "dispatcher"])
def test_interpreter_ends_with_those_that_started_it(notebook: Notebook, killed: str) -> None:
    pid = notebook.warmed("import warmed\nprint('up')")
    rows = process_table()
    os.kill(rows[pid].parent if killed == "supervisor" else notebook.agent.dispatcher(), signal.SIGKILL)
    until(lambda: not alive(pid), "the end of the interpreter")
    assert notebook.run()[1]["state"] == "completed"


@pytest.mark.thorough
def test_interpreter_ends_with_dispatcher_of_older_version(notebook: Notebook) -> None:
    pid = notebook.warmed("import warmed\nprint('up')")
    lock = Path(notebook.agent.queue, "dispatcher.lock")
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "protocol": 0}))
    text, _, is_warm = notebook.run()
    assert text == "up\n" and not is_warm
    until(lambda: not alive(pid), "the end of the interpreter")


@pytest.mark.thorough
def test_of_two_jobs_at_once_each_has_its_own_process(notebook: Notebook) -> None:
    pid = notebook.warmed("import warmed\nimport os\nprint(os.getpid())")
    runs = [notebook.submit(), notebook.submit()]
    pids = [notebook.agent.wait(run)["rank"]["pid"] for run in runs]
    assert pids[0] == pid != pids[1] and [int(notebook.agent.log(run)) for run in runs] == pids


@pytest.mark.thorough
def test_job_with_other_visible_devices_starts_cold(notebook: Notebook) -> None:
    notebook.warmed("import warmed\nimport os\nprint(os.environ.get('CUDA_VISIBLE_DEVICES'))")
    notebook.environ["CUDA_VISIBLE_DEVICES"] = "0"
    text, _, is_warm = notebook.run()
    assert not is_warm and text == "0\n"


LONG = "import warmed\nimport os, time\nif os.fork() == 0: os.setpgid(0, 0)\nprint('up'); time.sleep(600)"


@pytest.mark.thorough
@pytest.mark.parametrize("killed", ["supervisor", "both", "none"])
def test_end_of_warm_run_leaves_no_process(notebook: Notebook, killed: str) -> None:
    agent = notebook.agent
    notebook.warmed("import warmed")
    run = notebook.submit(LONG)
    state = agent.running(run, "up\nup")
    assert notebook.is_warm(run)
    pids = [row.pid for row in process_table().values() if row.session == state["rank"]["pid"]]
    if killed == "none":
        agent.good("cancel", run=run)
    for name in {"supervisor": ("supervisor",), "both": ("guardian", "supervisor")}.get(killed, ()):
        os.kill(state[name]["pid"], signal.SIGKILL)
    assert agent.wait(run)["state"] == ("canceled" if killed == "none" else "lost")
    until(lambda: not agent.left() and not any(map(alive, pids)), "the last process")


@pytest.mark.thorough
def test_processes_of_warm_run_are_those_of_telemetry(notebook: Notebook) -> None:
    agent = notebook.agent
    notebook.warmed("import warmed")
    run = notebook.submit("import warmed\nimport subprocess\nprint('up')\nsubprocess.run(['sleep', '600'])")
    agent.running(run, "up")
    counts: Any = until(lambda: [row[4] for row in agent.ticks(run) if row[4]][-1:], "a sample")
    assert notebook.is_warm(run) and counts[0] in (1, 2)
    until(lambda: agent.ticks(run)[-1][4] == 2, "both processes")
