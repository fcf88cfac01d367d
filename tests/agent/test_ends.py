"""How runs end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from .conftest import Agent, alive, until

#: Prints its pid and goes on for long, deaf to SIGTERM.
STUBBORN = (
    "import os,signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('pid', os.getpid()); time.sleep(600)"
)
#: A daemon as the book says: double fork, own session, empty environment, deaf to SIGTERM.
DAEMON = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve({sys.executable!r}, [{sys.executable!r}, "-S", "-u", "-c", {STUBBORN!r}], {{}})
    os._exit(0)
"""


def pid_in(agent: Agent, run: str) -> int:
    until(lambda: "pid " in agent.log(run), "the child's pid")
    return int(agent.log(run).split("pid ")[1].split()[0])


def test_exit_code_decides_state(agent: Agent) -> None:
    good, bad = agent.submit("print('fine')"), agent.submit("import sys; print('bad'); sys.exit(7)")
    state = agent.wait(good)
    assert (state["state"], state["reason"], state["exit_code"], state["signal"]) == ("completed", "exit", 0, None)
    assert agent.log(good) == "fine\n"
    assert [p["name"] for p in state["phases"]] == ["queued", "running", "finalizing"]
    assert all(p["end"] is not None and p["seconds"] >= 0 for p in state["phases"])
    state = agent.wait(bad)
    assert (state["state"], state["reason"], state["exit_code"]) == ("failed", "exit", 7)
    assert state["detail"] == "exited with code 7"


def test_job_killed_by_signal_names_signal(agent: Agent) -> None:
    state = agent.wait(agent.submit("import os; os.kill(os.getpid(), 11)"))
    assert (state["state"], state["reason"], state["signal"], state["exit_code"]) == ("failed", "signal", 11, None)
    assert "SIGSEGV" in state["detail"]


def test_job_killed_by_sigkill_is_not_oom(agent: Agent) -> None:
    state = agent.wait(agent.submit("import os; os.kill(os.getpid(), 9)"))
    assert (state["reason"], state["signal"]) == ("signal", 9)


def test_oom_killer_is_detected_by_counter(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "vmstat"
    counter.write_text("nr_free_pages 1\noom_kill 3\n")
    monkeypatch.setenv("AMLTRAIN_TEST_VMSTAT", str(counter))
    code = f"""
import os, time, sys
print('up'); sys.stdin.read(); time.sleep(0.3)
open({str(counter)!r}, 'w').write('nr_free_pages 1\\noom_kill 4\\n'); os.kill(os.getpid(), 9)"""
    state = agent.wait(agent.submit(code))
    assert (state["state"], state["reason"], state["signal"]) == ("failed", "oom", 9)
    assert "OOM killer" in state["detail"]


def test_oom_killer_real_is_detected(agent: Agent) -> None:
    for group, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        own = Path(group, f"amltrain-test-{os.getpid()}")
        try:
            own.mkdir()
            (own / limit).write_text(str(64 << 20))
        except OSError:
            continue
        break
    else:
        pytest.skip("needs the right to make a cgroup with a memory limit")
    try:
        code = f"open('{own}/cgroup.procs', 'w').write('0'); x = bytearray(1 << 30)"
        state = agent.wait(agent.submit(code))
        assert (state["state"], state["reason"], state["signal"]) == ("failed", "oom", 9), state
    finally:
        own.rmdir()


def test_memory_error_is_plain_failure(agent: Agent) -> None:
    run = agent.submit("raise MemoryError")
    assert agent.wait(run)["reason"] == "exit"
    assert "MemoryError" in agent.log(run)


def test_time_limit_fails_run_with_timeout(agent: Agent) -> None:
    state = agent.wait(agent.submit("import time; print('x'); time.sleep(600)", timeout=0.5))
    assert (state["state"], state["reason"]) == ("failed", "timeout")
    assert "time limit of 0.5 s" in state["detail"]


def test_cancel_kills_stubborn_child(agent: Agent) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-u', '-c', {STUBBORN!r}])"
    run = agent.submit(code, grace=0.3)
    child = pid_in(agent, run)
    assert agent.good("cancel", run=run)["state"] == "running"
    agent.good("cancel", run=run)  # again: no harm
    state = agent.wait(run)
    assert (state["state"], state["reason"], state["cancel_requested"]) == ("canceled", "canceled", True)
    assert not alive(child)
    assert agent.good("cancel", run=run)["state"] == "canceled"


def test_cancel_lets_job_end_by_itself(agent: Agent) -> None:
    code = """
import signal, sys, time
def bye(*_): print('saved'); sys.exit(0)
signal.signal(signal.SIGTERM, bye); print('up')
while True: time.sleep(0.05)"""
    run = agent.submit(code)
    agent.running(run, "up")
    agent.good("cancel", run=run)
    assert agent.wait(run)["state"] == "canceled"
    assert "saved" in agent.log(run)


def test_cancel_of_stopped_job_ends_it(agent: Agent) -> None:
    run = agent.submit("import os, signal; print('up'); os.kill(os.getpid(), signal.SIGSTOP)")
    rank = agent.running(run, "up")["rank"]["pid"]
    agent.good("cancel", run=run)
    assert agent.wait(run)["state"] == "canceled"
    assert not alive(rank)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["end", "cancel", "timeout"])
def test_daemon_of_job_ends_with_run(agent: Agent, how: str) -> None:
    timeout = 1.0 if how == "timeout" else None
    last = "" if how == "end" else "time.sleep(600)"
    # The job waits for its daemon, so that there is something to be removed.
    code = DAEMON + "while b'pid' not in open(os.readlink('/proc/self/fd/1'), 'rb').read(): time.sleep(0.01)\n" + last
    run = agent.submit(code, timeout=timeout, grace=0.3)
    daemon = pid_in(agent, run)
    if how == "cancel":
        agent.good("cancel", run=run)
    state = agent.wait(run)
    assert state["state"] == {"end": "completed", "cancel": "canceled", "timeout": "failed"}[how]
    assert not alive(daemon)
    until(lambda: not agent.left(), "the last process")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"argv": ["/nowhere/python", "x"]}, "/nowhere/python was not found"),
        ({"cwd": "/nowhere"}, "working folder /nowhere"),
        ({"argv": ["/etc/passwd"]}, "no permission to execute"),
    ],
)
def test_launch_failure_names_cause(agent: Agent, payload: dict[str, object], words: str) -> None:
    state = agent.wait(agent.submit("", **payload))
    assert (state["state"], state["reason"], state["exit_code"]) == ("failed", "launch", None)
    assert words in state["detail"]


def test_job_output_is_logged_exactly(agent: Agent) -> None:
    code = (
        "import os; os.write(1, bytes(range(256)))\nfor _ in range(800): os.write(1, b'x' * 65536)\nos.write(2, b'end')"
    )
    run = agent.submit(code)
    assert agent.wait(run)["state"] == "completed"
    data = (agent.run_folder(run) / "log" / "rank-0.txt").read_bytes()
    assert len(data) == 256 + 800 * 65536 + 3 and data.startswith(bytes(range(256))) and data.endswith(b"end")


def test_job_environment_has_variables(agent: Agent) -> None:
    names = ["A", "B", "C", "AML_OUTPUT_DIR", "AML_NOTEBOOK_DIR", "PYTHONUNBUFFERED", "AMLTRAIN_RUN"]
    names += ["MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"]
    run = agent.submit(
        f"import os; print([os.environ.get(n) for n in {names!r}], os.getcwd(), os.getsid(0) == os.getpid())",
        environ={"A": "1", "B": "1", "C": "1", "MLFLOW_RUN_ID": "x"},
        env={"B": "2"},
        secrets={"C": "3"},
        notebook_dir="/nb",
        tracking={"run_id": "ab" * 16, "mode": "sink"},
    )
    assert agent.wait(run)["state"] == "completed"
    text, folder = agent.log(run), agent.run_folder(run)
    assert text.startswith(f"['1', '2', '3', '{folder}/outputs', '/nb', '1', '{run}:")
    assert "'http://127.0.0.1:" in text and "None]" in text
    assert text.strip().endswith(f"{folder}/source True")


def test_clock_jump_does_not_end_run(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = tmp_path / "offset"
    offset.write_text("0")
    monkeypatch.setenv("AMLTRAIN_TEST_CLOCK", str(offset))
    run = agent.gated(timeout=600)
    agent.running(run, "up")
    offset.write_text("-86400")
    agent.open_gate()
    state = agent.wait(run)
    assert state["state"] == "completed"
    running = state["phases"][1]
    # A day by the clock that was set back, seconds by the monotonic one.
    assert 0 < running["seconds"] < 3600 and running["end"] < running["start"]


@pytest.mark.thorough
def test_cancel_while_queued_prevents_start(agent: Agent) -> None:
    blockers = [agent.submit("import time; time.sleep(600)") for _ in range(2)]
    waiting = agent.submit("print('never')")
    state = until(lambda: s if (s := agent.state(waiting))["detail"] else None, "what it waits for")
    assert state["state"] == "queued"
    assert "CPU slot" in state["detail"] and state["detail"].endswith(" run-1, run-2")
    agent.good("cancel", run=waiting)
    state = agent.wait(waiting)
    assert (state["state"], state["detail"]) == ("canceled", "canceled before it started")
    for run in blockers:
        agent.good("cancel", run=run)
        assert agent.wait(run)["state"] == "canceled"


def test_supervisor_sigterm_cancels_run(agent: Agent) -> None:
    run = agent.submit("import time; print('up'); time.sleep(600)")
    os.kill(agent.running(run, "up")["supervisor"]["pid"], signal.SIGTERM)
    state = agent.wait(run)
    assert state["state"] == "canceled" and "SIGTERM" in state["detail"] and not state["cancel_requested"]


@pytest.mark.thorough
def test_telemetry_counts_processes_of_run(agent: Agent) -> None:
    code = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    began = time.time()
    run = agent.submit(code)
    agent.wait(run)
    head, rows = agent.telemetry(run)[0], agent.ticks(run)
    assert head["columns"][:2] == ["seq", "t"] and len(head["units"]) == len(head["columns"])
    assert [row[0] for row in rows] == list(range(len(rows)))
    cpu = head["columns"].index("cpu")
    assert max(row[cpu] for row in rows) > 20
    # The first ticks may come before the job's process, the last ones when it has ended.
    assert {row[head["columns"].index("processes")] for row in rows} - {0} == {1}
    assert began < rows[-1][1] < time.time()


def test_job_files_have_umask_of_user(agent: Agent) -> None:
    before = os.umask(0o022)
    try:
        run = agent.submit("import os; open('made', 'w'); print(oct(os.stat('made').st_mode & 0o777))")
    finally:
        os.umask(before)
    assert agent.wait(run)["state"] == "completed"
    assert agent.log(run) == "0o644\n"
