"""What the dispatcher and a job get of the environment of whoever submits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.calls import call
from jupyter_amltrain.agent.protocol import PROTOCOL
from jupyter_amltrain.agent.queue import dispatcher_client
from jupyter_amltrain.agent.supervise.env_filter import for_dispatcher

from ..tiers import thorough
from .conftest import Agent, alive, processes_of, until

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
ROOT = Path(__file__).parents[2]


def environ_of(pid: int) -> dict[str, str]:
    data = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(item.split("=", 1) for item in data.split("\0") if "=" in item)


def test_dispatcher_drops_secrets_of_starter(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "JUPYTERHUB_API_TOKEN", "SLURM_JWT", "AMLTRAIN_TEST_PASSWORD", "OTHER"):
        monkeypatch.setenv(name, "s3cr3t-value")
    monkeypatch.setenv("AMLTRAIN_RUN", "outer:1")
    monkeypatch.setenv("JUPYTERHUB_USER", "ann")
    pid = agent.dispatcher()
    run = agent.submit(
        "import time; print('up'); time.sleep(600)", environ={"MINE": "1"}, secrets={"S": "s3cr3t-value"}
    )
    state = agent.running(run, "up")
    for one in (pid, state["guardian"]["pid"], state["supervisor"]["pid"]):
        found = environ_of(one)
        assert "s3cr3t-value" not in found.values() and "AMLTRAIN_RUN" not in found
        assert found["PATH"] == os.environ["PATH"] and found["JUPYTERHUB_USER"] == "ann"
        assert found["AMLTRAIN_CPU_SLOTS"] == "2"
    assert environ_of(state["rank"]["pid"])["S"] == "s3cr3t-value"


def test_dispatcher_keeps_needed_variables() -> None:
    names = "PATH HOME USER LANG LC_ALL TZ TMPDIR XDG_RUNTIME_DIR AMLTRAIN_QUEUE LD_LIBRARY_PATH CUDA_HOME"
    names += " NVIDIA_VISIBLE_DEVICES SLURM_JOB_ID KUBERNETES_SERVICE_HOST JUPYTERHUB_USER"
    kept = dict.fromkeys(names.split(" "), "1")
    assert for_dispatcher({**kept, "GITHUB_TOKEN": "x", "PYTHONPATH": "x", "AMLTRAIN_API_KEY": "x"}) == kept
    # Neither a job's share of the GPUs, nor what one of several submitters may have.
    assert for_dispatcher({**kept, "AMLTRAIN_RUN": "outer:1", "CUDA_VISIBLE_DEVICES": "1"}) == kept


def test_kernel_settings_do_not_reach_job(agent: Agent) -> None:
    kernels = {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline", "FORCE_COLOR": "1", "CLICOLOR": "1",
        "CLICOLOR_FORCE": "1", "PAGER": "cat", "GIT_PAGER": "cat", "TERM": "xterm-color", "JPY_PARENT_PID": "7",
        "JPY_SESSION_NAME": "a.ipynb", "JPY_API_TOKEN": "hidden",
    }  # fmt: skip

    def seen(**payload: dict[str, str]) -> dict[str, str]:
        run = agent.submit(SHOW, **payload)
        assert agent.wait(run)["state"] == "completed"
        return dict(json.loads(agent.log(run)))

    found = seen(environ={**kernels, "MINE": "1"})
    assert found["MINE"] == "1" and not set(kernels) & set(found)
    users = {"MPLBACKEND": "agg", "PAGER": "less", "TERM": "xterm-256color", "FORCE_COLOR": "3"}
    found = seen(environ=users)
    assert {name: found[name] for name in users} == users
    found = seen(environ=kernels, env=kernels)
    assert {name: found[name] for name in kernels} == kernels
    found = seen(environ={"MPLBACKEND": "module://ipykernel.pylab.backend_inline"})
    assert "MPLBACKEND" not in found


@pytest.mark.thorough
def test_request_too_long_is_refused(agent: Agent) -> None:
    answer = agent("submit", run="x", argv=["x"], env={"DATA": "d" * dispatcher_client.MAX_REQUEST_BYTES})
    assert answer["error"]["type"] == "SubmitError"
    assert "16.0 MiB" in answer["error"]["message"] and "--source" in answer["error"]["message"]
    spare = 1000  # for the other fields
    fits = {
        "run": "fits",
        "argv": [sys.executable, "-S", "-c", "pass"],
        "spec": {"x": "d" * (dispatcher_client.MAX_REQUEST_BYTES - spare)},
    }
    answer = call("submit", fits, agent.home, agent.queue, agent.zipapp)
    assert answer.get("state") == "queued", answer
    assert agent.wait("fits")["state"] == "completed"


@pytest.mark.parametrize("killed_again", thorough(False, True))
def test_job_submitting_job_starts_dispatcher(agent: Agent, killed_again: bool) -> None:
    go, gate = agent.folder / "go", agent.folder / "gate"
    wait = (
        "import os, subprocess, sys, time\nprint('up', flush=True)\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"
    )
    inner = agent.folder / "inner.py"
    inner.write_text(wait.format(str(gate)) + "print('inner done')\n")
    code = wait.format(str(go))
    code += f"subprocess.run([sys.executable, '-m', 'jupyter_amltrain.cli', 'submit', {str(inner)!r}], check=True)\n"
    code += wait.format(str(agent.folder / "end"))
    ours = {"AMLTRAIN_HOME": agent.home, "AMLTRAIN_QUEUE": agent.queue, "PYTHONPATH": str(ROOT)}
    outer = agent.submit(
        code, environ={**os.environ, **ours}, cwd=str(agent.folder), argv=[sys.executable, "-u", "-c", code]
    )
    agent.running(outer, "up")
    agent.kill_dispatcher()
    go.touch()
    # Only files are looked at: a call would start the dispatcher itself.
    run = until(lambda: [p.name for p in Path(agent.home, "runs").iterdir() if p.name.startswith("inner")], "it", 120)[
        0
    ]
    until(lambda: agent.log(run) == "up\n" and agent.log(outer).count("up\n") == 2, "both to run", 120)
    lock = Path(agent.queue, "dispatcher.lock")
    pid = int(json.loads(lock.read_text())["pid"])
    assert "AMLTRAIN_RUN" not in environ_of(pid)
    if killed_again:  # then the inner run's guardian is the outer supervisor's orphan
        assert agent.kill_dispatcher() == pid
    (agent.folder / "end").touch()
    assert agent.wait(outer)["state"] == "completed"
    assert killed_again or alive(pid)
    assert agent.state(run)["state"] == "running"
    gate.touch()
    assert agent.wait(run)["state"] == "completed"
    assert agent.log(run) == "up\ninner done\n"
    until(lambda: not agent.left(), "the last process")


def test_dispatcher_of_job_queue_ends_with_job(agent: Agent) -> None:
    other = agent.folder / "other"
    call_it = [sys.executable, "-I", "-S", agent.zipapp, "call", "ping", agent.home, str(other)]
    run = agent.submit(f"import subprocess; subprocess.run({call_it!r}, stdin=subprocess.DEVNULL, check=True)")
    assert agent.wait(run)["state"] == "completed"
    assert json.loads(agent.log(run))["protocol"] == PROTOCOL
    until(lambda: not processes_of(str(other)), "its end")


def test_canceled_job_keeps_dispatcher(agent: Agent) -> None:
    ping = [sys.executable, "-I", "-S", agent.zipapp, "call", "ping", agent.home, agent.queue]
    go = agent.folder / "go"
    code = "import os, subprocess, time\nprint('up')\n"
    code += f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    code += f"subprocess.run({ping!r}, stdin=subprocess.DEVNULL, check=True)\ntime.sleep(600)"
    run = agent.submit(code)
    agent.running(run, "up")
    agent.kill_dispatcher()
    go.touch()
    until(lambda: '"pid"' in agent.log(run), "its dispatcher")
    pid = agent.dispatcher()
    assert f'"pid": {pid}' in agent.log(run)
    agent.good("cancel", run=run)
    assert agent.wait(run)["state"] == "canceled"
    assert agent.dispatcher() == pid and alive(pid)
