"""Questions that a job's Python answers: where its threads are, what a value is, statements that change it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.agent.asking import kinds, questions
from jupyter_amltrain.agent.asking.asked_run import AskedRun
from jupyter_amltrain.agent.protocol import ASKS, POKES, AgentError
from jupyter_amltrain.agent.supervise import job_hooks
from jupyter_amltrain.backends.transport import agent_error
from tests.conftest import end_all
from tests.helpers import until
from tests.other_user import OTHER_UID, needs_root, run_as_other_user

#: Begins a script: `step()` writes that the script runs, and waits a little.
PRELUDE = """
import os, time
def step(seconds=0.005):
    open("up", "w").close()
    time.sleep(seconds)
"""


def kill_tree(pid: int) -> None:
    """Kill a process and its children."""
    whole = psutil.Process(pid)
    for one in [*whole.children(recursive=True), whole]:
        one.kill()


def running(folder: Path, members: Callable[[], Iterable[int]] = list) -> AskedRun:
    return AskedRun(str(folder), {"spec": {"script_name": "script.py"}}, members)


class Job:
    """A script that runs with the hooks of a job, in a folder like that of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self, script: str, python: str = sys.executable) -> None:
        (self.folder / ASKS).mkdir()
        (self.folder / "script.py").write_text(PRELUDE + script)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AMLTRAIN_")}
        (self.folder / "ranks").mkdir()
        environ["AMLTRAIN_STACK"] = str(self.folder / "ranks" / "0.stack")
        environ["AMLTRAIN_LINES"] = "0"  # its thread would be one more
        job_hooks.add(environ, str(self.folder), str(self.folder / "hooks"), gpus=False)
        self.process = subprocess.Popen(
            [python, str(self.folder / "script.py")], env=environ, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        until((self.folder / "up").exists, "the script")

    def pids(self) -> list[int]:
        assert self.process is not None
        whole = psutil.Process(self.process.pid)
        return [one.pid for one in [whole, *whole.children(recursive=True)]]

    def ask(self, kind: str, text: str = "", rank: int = 0) -> dict[str, Any]:
        payload = {"kind": kind, "text": text, "rank": rank, "who": "test"}
        return kinds.answer(running(self.folder, self.pids), payload)

    def peek(self, text: str) -> str:
        (answer,) = self.ask("peek", text)["answers"]
        return str(answer.get("error") or answer["text"])

    def poke(self, text: str) -> str:
        (answer,) = self.ask("poke", text)["answers"]
        return str(answer.get("error", ""))

    def end(self) -> str:
        """Let the script end; what it has printed."""
        assert self.process is not None
        (self.folder / "end").touch()
        text, _ = self.process.communicate(timeout=120)
        return text


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    if job.process is not None and job.process.poll() is None:
        kill_tree(job.process.pid)
        job.process.communicate()


LOOP = """
rate = 0.1
def train():
    patience, epoch = 3, 0
    while not os.path.exists("end"):
        epoch += 1
        step()  # here
    return patience
print(train(), rate)
"""


def test_stack_has_calls_of_each_thread(job: Job) -> None:
    job.start(
        "import threading\nthreading.Thread(target=threading.Event().wait, name='w', daemon=True).start()\n" + LOOP
    )
    reply = job.ask("stack")
    (answer,) = reply["answers"]
    main, other = answer["threads"]
    assert main["main"] and [call[2].split(".")[-1] for call in main["calls"]][-2:] == ["train", "<module>"]
    assert other["name"] == "w" and any(call[2].endswith("wait") for call in other["calls"]) and not reply["silent"]
    assert all("hooks" not in call[0] for one in answer["threads"] for call in one["calls"])


def test_forked_process_answers_for_itself(job: Job) -> None:
    fork = (
        "import multiprocessing as m\nm.set_start_method('fork')\nm.Process(target=time.sleep, args=(600,)).start()\n"
    )
    job.start(fork + LOOP)
    until(lambda: len(job.ask("stack")["answers"]) == 2, "both processes")
    assert len(job.ask("peek", "epoch")["answers"]) == 1


def test_peek_sees_names_of_module_and_of_running_function(job: Job) -> None:
    job.start(LOOP)
    assert job.peek("[rate * i for i in range(patience)]") == "[0.0, 0.1, 0.2]"
    assert int(job.peek("epoch")) > 0


@pytest.mark.thorough
@pytest.mark.parametrize(("text", "word"), [
    ("1/0", "ZeroDivisionError"), ("(", "SyntaxError"), ("missing", "NameError"),
    ("__import__('sys').exit(3)", "SystemExit"), ("[step(0.01) for _ in range(10000)]", "1 s"),
    ("[x for x in iter(int, 1)]", "1 s"),
])  # fmt: skip
def test_expression_that_fails_leaves_the_job_alone(job: Job, text: str, word: str) -> None:
    job.start(LOOP)
    assert word in job.peek(text)
    assert job.end() == "3 0.1\n"


def test_poke_sets_names_of_module_and_of_running_function(job: Job) -> None:
    job.start(LOOP)
    assert not job.poke("rate = 0.5; patience += 4; fresh = [1]")
    assert job.peek("rate, patience, fresh") == "(0.5, 7, [1])"
    assert job.end() == "7 0.5\n"
    (row,) = map(json.loads, (job.folder / POKES).read_text().splitlines())
    assert row["text"].startswith("rate = 0.5") and row["error"] == "" and "test" in row["who"] and row["time"] > 0


def test_poke_that_raises_keeps_what_it_has_set_and_its_error(job: Job) -> None:
    job.start(LOOP)
    assert "ZeroDivisionError" in job.poke("rate = 2\n1/0")
    assert job.peek("rate") == "2"
    assert "ZeroDivisionError" in json.loads((job.folder / POKES).read_text())["error"]


@pytest.mark.parametrize("call", [
    "hashlib.pbkdf2_hmac('sha256', b'', b'', 4_000_000)", "sum(itertools.repeat(1, 300_000_000))"
], ids=["frees-the-lock", "keeps-the-lock"])  # fmt: skip
def test_question_during_native_call_is_not_answered_later(
    job: Job, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(questions, "_BEGIN_S", 0.3)
    monkeypatch.setattr(questions, "_NATIVE_S", 0.1)
    monkeypatch.setattr(questions.stall, "ANSWER_S", 0.1)
    monkeypatch.setitem(questions._LIMITS, "poke", 0.0)
    code = "import hashlib, itertools\nvalue = 1\nstep()\nwhile not os.path.exists('go'): step()\n"
    job.start(f"{code}{call}; print(value)\n" + LOOP)
    (job.folder / "go").touch()
    until(lambda: call in _line_of(job, job.ask("stack")["answers"][0]["threads"][0]["calls"][0][1]), "the call")
    assert not job.ask("poke", "value = 2")["answers"]
    until(lambda: not job.ask("peek", "epoch").get("error"), "the end of the call")
    assert job.end().startswith("1\n")
    assert json.loads((job.folder / POKES).read_text())["error"]


def test_question_interrupts_a_wait_which_goes_on(job: Job) -> None:
    job.start("begun = time.monotonic()\nstep(1.5)\nprint(time.monotonic() - begun >= 1.5)\n" + LOOP)
    assert job.peek("seconds, rate if 'rate' in globals() else 0") == "(1.5, 0)"
    assert job.end().startswith("True\n")


def test_stack_during_a_long_statement_is_answered(job: Job) -> None:
    job.start(LOOP)
    thread = threading.Thread(target=job.poke, args=("while not os.path.exists('go'): step()",))
    thread.start()
    until(lambda: any(call[0] == "<poke>" for call in job.ask("stack")["answers"][0]["threads"][0]["calls"]), "it")
    (job.folder / "go").touch()
    thread.join(60)
    assert job.peek("rate") == "0.1" and job.end() == "3 0.1\n"


@pytest.mark.parametrize("error", ["SystemExit(7)", "ValueError('ended')"])
def test_signal_of_the_run_during_a_statement_is_not_lost(job: Job, error: str) -> None:
    code = "import signal\ndef ends(number, frame):\n    raise {}\nsignal.signal(signal.SIGTERM, ends)\n"
    job.start(code.format(error) + LOOP)
    job.poke("import signal; os.kill(os.getpid(), signal.SIGTERM); step(1)")
    text = job.end()
    assert job.process is not None and job.process.returncode == (7 if "7" in error else 1)
    assert "3 0.1" not in text and ("ended" in text or "7" in error)


@pytest.mark.thorough
def test_script_with_the_signal_for_itself_keeps_it(job: Job) -> None:
    code = "import signal\ngot = []\nsignal.signal(signal.SIGURG, lambda *args: got.append(args))\n"
    job.start(code + "signal.raise_signal(signal.SIGURG)\n" + LOOP + "print(len(got) >= 1)\n")
    assert job.ask("stack")["answers"][0]["threads"] and job.end() == "3 0.1\nTrue\n"


@pytest.mark.thorough
def test_program_that_takes_the_place_of_the_python_lives_on(job: Job) -> None:
    job.start("step()\nos.execvp('sh', ['sh', '-c', 'touch up2; while [ ! -e end ]; do sleep 0.1; done; echo done'])")
    until((job.folder / "up2").exists, "the other program")
    assert job.ask("stack") == {"answers": [], "silent": []} and job.end() == "done\n"


@pytest.mark.parametrize(
    "version",
    ["", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("3.8", "3.9", "3.10", "3.12", "3.13", "3.14"))],
)
def test_fork_of_a_run_that_can_be_asked_does_not_warn(job: Job, version: str) -> None:
    code = "import warnings\nwarnings.simplefilter('error')\nif not os.fork():\n    os._exit(0)\nos.wait()\n"
    job.start(code + LOOP, _python(version))
    assert job.peek("rate") == "0.1" and job.peek("len(os.listdir('/proc/self/task'))") == "1"
    assert job.end() == "3 0.1\n"


def _line_of(job: Job, number: int) -> str:
    return (job.folder / "script.py").read_text().splitlines()[number - 1]


def test_question_in_exception_handler_keeps_the_exception(job: Job) -> None:
    code = """
try:
    {}["key"]
except KeyError as error:
    while not os.path.exists("end"): step()
    print(repr(error), __import__("sys").exc_info()[1] is error, error.__context__)
    raise
"""
    job.start(code)
    assert "ZeroDivisionError" in job.peek("1/0") and job.peek("repr(error)") == "\"KeyError('key')\""
    text = job.end()
    assert "KeyError('key') True None" in text and text.endswith("KeyError: 'key'\n") and "Zero" not in text


@pytest.mark.thorough
def test_questions_at_exit_do_no_harm(job: Job) -> None:
    job.start("import atexit\nfor _ in range(300): atexit.register(step, 0.01)\nstep(1.5)\nprint('end')")
    assert job.process is not None
    while job.process.poll() is None:
        job.ask("stack")
    assert job.process.returncode == 0 and job.end() == "end\n"


@pytest.mark.parametrize(
    "version",
    ["", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("3.8", "3.9", "3.10", "3.12", "3.13", "3.14"))],
)
def test_loop_that_two_ask_all_the_time_loses_no_step(job: Job, version: str) -> None:
    python = _python(version)
    code = """
total = count = i = 0  # i is asked for between two calls, too
def train(n):
    global total, count
    lost = 0
    for i in range(n):
        total += i
        count += 1
        for _ in range(100): pass
        if i % 500 == 0: step(0.0001)
    return lost
while not os.path.exists("end"):
    before = count
    train(10000)
    assert count == before + 10000
print("ok", count % 10000, total == count // 10000 * 49995000, pokes)
"""
    job.start("pokes = 0\n" + code, python)
    errors: list[Any] = []

    def asks(kind: str, text: str) -> None:
        for _ in range(25):
            answers = job.ask(kind, text)["answers"]
            errors.extend(one for one in answers if one.get("error") or len(answers) != 1)

    threads = [threading.Thread(target=asks, args=one) for one in (("peek", "count, i"), ("poke", "pokes += 1"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not errors and job.end() == "ok 0 True 25\n"
    assert len((job.folder / POKES).read_text().splitlines()) == 25


def _python(version: str) -> str:
    if not version:
        return sys.executable
    command = [shutil.which(f"python{version}") or "false", "-c", "import sys; print(sys.executable)"]
    found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if not found:
        pytest.skip(f"Python {version} is not on this machine")
    return found


def test_run_without_folder_of_questions_is_not_asked(tmp_path: Path) -> None:
    with pytest.raises(AgentError) as caught:
        kinds.answer(running(tmp_path), {"kind": "peek", "text": "1"})
    assert caught.value.code == "ask.state"


@pytest.mark.parametrize(
    "payload", [{"kind": "eval", "text": "1"}, {"kind": "peek", "text": 1}, {"kind": "peek", "text": "1", "rank": "0"}]
)
def test_question_of_wrong_form_is_refused(tmp_path: Path, payload: dict[str, Any]) -> None:
    (tmp_path / ASKS).mkdir()
    with pytest.raises(AgentError):
        kinds.answer(running(tmp_path), payload)


@needs_root
@pytest.mark.parametrize("kind", ["stack", "peek", "poke", "save", "debug"])
def test_run_of_another_user_is_refused(tmp_path: Path, kind: str) -> None:
    for name in ("checkpoints", ASKS):
        (tmp_path / name).mkdir()
    os.chown(tmp_path, OTHER_UID, OTHER_UID)
    with pytest.raises(AgentError) as caught:
        kinds.answer(running(tmp_path), {"kind": kind, "text": "1"})
    assert caught.value.code == "ask.owner" and str(OTHER_UID) in str(caught.value)
    assert not any((tmp_path / ASKS).iterdir()) and not (tmp_path / POKES).exists()
    assert agent_error(caught.value.to_reply()["error"]).code == "ask.owner"


@needs_root
def test_folder_of_another_user_cannot_be_asked_by_files(job: Job) -> None:
    job.start(LOOP)
    question = job.folder / ASKS / ("1" + questions.QUESTION)
    write = "try:\n    open(sys.argv[1], 'w')\nexcept OSError as error:\n    print(type(error).__name__)\n"
    (job.folder / ASKS).chmod(0o700)
    assert run_as_other_user(write, str(question)).stdout == "PermissionError\n" and not question.exists()
    assert run_as_other_user("os.kill(int(sys.argv[1]), signal.SIGURG)", str(job.pids()[0])).returncode


@needs_root
def test_question_of_another_user_is_not_answered(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_BEGIN_S", 1.0)
    job.start(LOOP)
    replace = os.replace

    def give_away(source: str, target: str) -> None:
        os.chown(source, 12345, -1)
        replace(source, target)

    monkeypatch.setattr(questions.os, "replace", give_away)
    assert not job.ask("peek", "rate")["answers"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Has the state root ``home``, whose dispatcher ends with the test."""
    yield tmp_path
    end_all(tmp_path / "home")


@pytest.mark.thorough
def test_submitted_run_answers_from_another_process(folder: Path) -> None:
    loop = "import os, time\nvalue = 1\nwhile not os.path.exists({!r}):\n    time.sleep(0.05)\nprint('value', value)\n"
    (folder / "train.py").write_text(loop.format(str(folder / "end")))
    env = {**os.environ, "AMLTRAIN_HOME": str(folder / "home"), "AMLTRAIN_QUEUE": str(folder / "queue")}

    def amltrain(*words: str) -> str:
        command = [sys.executable, "-m", "jupyter_amltrain.cli", *words]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    amltrain("submit", "train.py")
    until(lambda: "time.sleep(0.05)" in amltrain("runs", "stack", "last"), "the line")
    assert amltrain("runs", "peek", "last", "value + 1") == "2\n"
    assert "ZeroDivisionError" in amltrain("runs", "peek", "last", "1/0")
    assert "pokes.jsonl" in amltrain("runs", "poke", "last", "value = 7")
    (folder / "end").touch()
    amltrain("runs", "wait", "last")
    assert "value 7" in amltrain("runs", "logs", "last") and "ended" in amltrain("runs", "peek", "last", "value")
    (folder / "end").unlink()
    amltrain("submit", "train.py", "--sealed")
    until(lambda: "running" in amltrain("runs", "show", "last"), "the sealed run")
    assert "sealed" in amltrain("runs", "peek", "last", "value")
    (folder / "end").touch()
    amltrain("runs", "wait", "last")
