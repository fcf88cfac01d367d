"""Jobs that work against their own supervision: the state stays the truth and nobody stays behind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiers import thorough

from .conftest import TERMINAL, Agent, until

STEADY = 60.0
#: What each job finds: its folder, the state file, and the two that look after it.
PRELUDE = """
import json, os, shutil, signal, sys, time
folder = os.path.dirname(os.environ['AML_OUTPUT_DIR'])
state = folder + '/state.json'
def read():
    for _ in range(2000):
        try:
            with open(state) as file:
                found = json.load(file)
            if found['rank']:
                return found
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.005)
    raise SystemExit('no state')
true = read()
print('up')
def write(value):
    with open(state + '.mine', 'w') as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    os.replace(state + '.mine', state)
def special(parent, names):  # a FIFO of an earlier step cannot be copied
    paths = {name: os.path.join(parent, name) for name in names}
    return [name for name, path in paths.items() if not os.path.isfile(path) and not os.path.isdir(path)]
def replace_by_copy():
    while True:  # a file may be replaced while it is copied
        shutil.rmtree(folder + '.c', ignore_errors=True)
        try:
            shutil.copytree(folder, folder + '.c', ignore=special)
            break
        except OSError:
            pass
    while os.path.lexists(folder):
        shutil.rmtree(folder, ignore_errors=True)
    os.rename(folder + '.c', folder)
def instead_of(path, make):
    while True:  # the repair may write between the two steps
        try:
            os.unlink(path)
        except OSError:
            pass
        try:
            return make()
        except OSError:
            pass
def both(number, *names):
    for name in names or ('guardian', 'supervisor'):
        os.kill(true[name]['pid'], number)
"""

#: Damages that the fast tier tries.
FAST = ("completed", "moved", "folder")
DAMAGES = {
    "completed": "write({**true, 'state': 'completed', 'reason': 'exit', 'exit_code': 0})",
    "lost": "write({**true, 'state': 'lost', 'reason': 'lost'})",
    "queued": "write({**true, 'state': 'queued'})",
    "nobody-supervises": "write({**true, 'guardian': None, 'supervisor': None, 'version': 9999})",
    "other-boot": "write({**true, 'boot': 'other', 'node': 'other', 'mark': 'other'})",
    "empty": "write('')",
    "empty-object": "write('{}')",
    "wrong-types": "write({'state': 7, 'phases': 7, 'version': 'x', 'supervisor': [], 'guardian': 'g'})",
    "not-json": "write('{\"state\":')",
    "deep": "write('[' * 100000)",
    "removed": "os.unlink(state)",
    "folder": "instead_of(state, lambda: os.makedirs(state + '/x'))",
    "fifo": "instead_of(state, lambda: os.mkfifo(state))",
    "link-to-nowhere": "instead_of(state, lambda: os.symlink('/nowhere/x', state))",
    "link-to-a-folder": "instead_of(state, lambda: os.symlink('/', state))",
    "moved": "os.rename(folder, folder + '.away'); time.sleep(0.3); os.rename(folder + '.away', folder)",
    "moved-to-the-end": (
        "os.rename(folder, folder + '.away')\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    time.sleep(0.5)\n"  # killed before it can move it back: the test does
    ),
    "copied": "replace_by_copy()",
    "closed-folder": "os.chmod(folder, 0o500)",
    "log-fifo": "log = folder + '/log/agent.txt'; instead_of(log, lambda: os.mkfifo(log)); os.unlink(state)",
    "temporary-name": "os.unlink(state); [os.makedirs(state + f'.{p}.0.tmp') for p in range(3)]",
}


def tried(damage: str, indent: str = "") -> str:
    """Code of a damage that may meet the repair."""
    steps = DAMAGES[damage].split("; ")
    return "".join(f"{indent}try: {step}\n{indent}except OSError: pass\n" for step in steps)


def has_ended(agent: Agent, run: str) -> None:
    """No process, no slot and no ticket of it is left."""
    until(lambda: not agent.left(), f"the last process of {run}", STEADY)
    until(lambda: agent.good("info")["running"] == 0, "the freed slot", STEADY)
    assert not list(Path(agent.queue, "slots").iterdir()) and not list(Path(agent.queue, "tickets").iterdir())


def final(agent: Agent, run: str) -> dict:
    """The state that stays when nobody is left to write it."""
    has_ended(agent, run)
    away = agent.run_folder(run).with_name(run + ".away")
    if away.exists():
        away.rename(agent.run_folder(run))
    return agent.state(run)


@pytest.mark.parametrize("damage", [*FAST, *thorough(*(name for name in DAMAGES if name not in FAST))])
def test_job_damaging_state_file_keeps_real_end(agent: Agent, damage: str) -> None:
    run = agent.submit(PRELUDE + DAMAGES[damage] + "\nraise SystemExit(7)")
    until(lambda: "up" in agent.log(run) or not agent.run_folder(run).exists(), "the job", STEADY)
    state = final(agent, run)
    assert (state["state"], state["exit_code"]) == ("failed", 7), state
    assert [phase["name"] for phase in state["phases"]] == ["queued", "running", "finalizing"]
    assert agent.wait(agent.submit("pass"), STEADY)["state"] == "completed"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damage", ["completed", *thorough("lost", "nobody-supervises", "other-boot", "removed", "folder")]
)
def test_false_state_of_live_run_is_not_reported(agent: Agent, damage: str) -> None:
    gate = agent.folder / "gate"
    code = PRELUDE + f"while not os.path.exists({str(gate)!r}):\n" + tried(damage, "    ") + "    time.sleep(0.1)\n"
    run = agent.submit(code + "raise SystemExit(3)")
    until(lambda: "up" in agent.log(run), "the job", STEADY)
    end = time.monotonic() + 2  # the job tries it ten times a second
    while time.monotonic() < end:
        time.sleep(0.01)
        status = agent.good("poll", run_ids=[run])["runs"].get(run)
        assert status is None or status["state"] not in TERMINAL, status
        listed = [row for row in agent.good("list")["runs"] if row["run"] == run]
        assert all(row["state"] not in TERMINAL for row in listed)
    assert "error" in agent("delete", run=run)
    gate.touch()
    state = final(agent, run)
    assert (state["state"], state["exit_code"]) == ("failed", 3), state


@pytest.mark.thorough
def test_state_changed_by_job_is_restored(agent: Agent) -> None:
    run = agent.submit(PRELUDE + "write({**true, 'state': 'completed'})\ntime.sleep(600)")
    agent.running(run, "up")
    path = agent.run_folder(run) / "state.json"
    until(lambda: json.loads(path.read_text())["state"] == "running", "the true state", STEADY)
    agent.good("cancel", run=run)
    assert final(agent, run)["state"] == "canceled"


STOPPED = """
while True:
    try:
        both(signal.SIGSTOP{names})
    except OSError:
        pass
    {pause}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names", ["", *thorough(", 'supervisor'", ", 'guardian'")], ids=["both", "supervisor", "guardian"]
)
@pytest.mark.parametrize("how", ["again-and-again", *thorough("once", "without-a-pause")])
def test_job_stopping_supervision_meets_time_limit(agent: Agent, names: str, how: str) -> None:
    pause = {"once": "time.sleep(600)", "again-and-again": "time.sleep(0.2)", "without-a-pause": "pass"}[how]
    run = agent.submit(PRELUDE + STOPPED.format(names=names, pause=pause), timeout=3, grace=1)
    state = agent.wait(run, 2 * STEADY)
    if names or how == "once":
        assert (state["state"], state["reason"]) == ("failed", "timeout"), state
    else:  # both are stopped for ever: they are ended, and so is the job
        assert state["state"] in ("failed", "lost"), state
    has_ended(agent, run)
    assert agent.state(run)["state"] == state["state"]


@pytest.mark.thorough
def test_job_stopping_supervisor_can_be_canceled(agent: Agent) -> None:
    run = agent.submit(PRELUDE + STOPPED.format(names=", 'supervisor'", pause="pass"), grace=1)
    agent.running(run, "up")
    agent.good("cancel", run=run)
    assert agent.wait(run, 2 * STEADY)["state"] == "canceled"
    has_ended(agent, run)


@pytest.mark.thorough
def test_job_stopping_supervisor_keeps_exit_code(agent: Agent) -> None:
    child = "if os.fork() == 0:\n    os.setsid()\n    while True:\n        try: both(signal.SIGSTOP, 'supervisor')\n"
    child += "        except OSError: pass\n"
    run = agent.submit(PRELUDE + child + "time.sleep(0.5)\nraise SystemExit(7)")
    state = agent.wait(run, 2 * STEADY)
    assert (state["state"], state["exit_code"]) == ("failed", 7), state
    has_ended(agent, run)


@pytest.mark.parametrize("after", ["completed", "folder"])
def test_job_killing_supervisor_is_lost(agent: Agent, after: str) -> None:
    run = agent.submit(PRELUDE + DAMAGES[after] + "\nboth(signal.SIGKILL, 'supervisor')\ntime.sleep(600)")
    until(lambda: "up" in agent.log(run), "the job", STEADY)
    assert final(agent, run)["state"] == "lost"


def test_job_killing_guardian_and_supervisor_is_lost(agent: Agent) -> None:
    run = agent.submit(PRELUDE + DAMAGES["folder"] + "\nboth(signal.SIGKILL)\ntime.sleep(600)")
    until(lambda: "up" in agent.log(run), "the job", STEADY)
    assert final(agent, run)["state"] == "lost"


CHAIN = """
import os, sys, time
pause = float(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    while True:  # each parent leaves as soon as its child is there
        if os.fork():
            os._exit(0)
        time.sleep(pause)
time.sleep(float(sys.argv[2]))
"""


def chain(agent: Agent, pause: float, life: float, run: str = "") -> str:
    script = agent.folder / "chain.py"
    if not script.exists():
        script.write_text(CHAIN)
    return agent.submit("", run=run, argv=[sys.executable, "-I", "-S", str(script), str(pause), str(life)])


@pytest.mark.thorough
@pytest.mark.parametrize("pause", [0.0, 0.001, 0.005, 0.02, 0.1])
def test_fork_chain_ends_with_run(agent: Agent, pause: float) -> None:
    for number in range(3):
        run = chain(agent, pause, 0.15 + 0.03 * number)
        assert agent.wait(run, STEADY)["state"] == "completed"
        survives_not(agent, run)


def survives_not(agent: Agent, run: str) -> None:
    """No process of a run stays, also none that each look would find under another pid."""
    group = agent.state(run)["rank"]["pid"]
    until(lambda: not is_group(group), "the chain's end", STEADY)
    assert not agent.left()


def is_group(number: int) -> bool:
    """Whether a process group has a process: unlike a look at the process table it misses none."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


#: A supervisor whose looks at the process table miss a chain of forks, as they do on a busy machine.
BLIND = """
import os, sys, time
from jupyter_amltrain.agent import processes
from jupyter_amltrain.agent.supervise import run_state as lifecycle
processes.become_subreaper()
others = int(sys.argv[1])
spare = []
for _ in range(others):
    spare.append(os.fork())
    if not spare[-1]:
        time.sleep(600)
if not os.fork():
    os.setsid()
    while True:
        if os.fork():
            os._exit(0)
        time.sleep(0.001)
time.sleep(0.05)
lifecycle.run_members = lambda *_: []
stuck = lifecycle.kill_all("none", os.getpid(), spare=frozenset(spare))
for pid in spare:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
time.sleep(0.05)
try:
    print("left" if os.waitpid(-1, os.WNOHANG) else "")
except ChildProcessError:
    print("none", stuck)
"""


@pytest.mark.parametrize("others", [0, 2])
def test_unseen_fork_chain_is_killed(others: int) -> None:
    done = subprocess.run([sys.executable, "-c", BLIND, str(others)], capture_output=True, text=True, timeout=STEADY)
    assert done.stdout.split() == ["none"], done


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pause", [0.001, 0.005, 0.02, 0.1])
def test_fork_chain_repeated_ends_with_run(agent: Agent, pause: float) -> None:
    """Two hundred normal ends over the four paces: no process survives."""
    source = random.Random(int(os.environ.get("AMLTRAIN_SOAK_SEED", "20261121")) + int(pause * 1000))
    for number in range(50):
        run = chain(agent, pause, source.uniform(0.02, 0.4), f"chain-{number}")
        assert agent.wait(run, STEADY)["state"] == "completed"
        survives_not(agent, run)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(4))
def test_damaged_state_repeated_keeps_real_end(agent: Agent, part: int) -> None:
    """Two hundred jobs that damage their state at random moments end as they ended."""
    source = random.Random(int(os.environ.get("AMLTRAIN_SOAK_SEED", "20261121")) + part)
    names = sorted(set(DAMAGES) - {"moved-to-the-end"})
    for number in range(50):
        steps, code = [source.choice(names) for _ in range(source.randint(1, 3))], source.randint(0, 9)
        text = PRELUDE
        for step in steps:
            text += f"time.sleep({source.uniform(0, 0.3):.3f})\n"
            text += tried(step)
        if source.random() < 0.2:
            text += "both(signal.SIGSTOP, 'supervisor')\n"
        text += f"time.sleep({source.uniform(0, 0.3):.3f})\nraise SystemExit({code})"
        run = agent.submit(text, run=f"hostile-{number}")
        until(lambda run=run: "up" in agent.log(run) or not agent.run_folder(run).exists(), "the job", STEADY)
        state = final(agent, run)
        assert (state["state"], state["exit_code"]) == ("completed" if code == 0 else "failed", code), (steps, state)
