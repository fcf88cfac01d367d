"""The table of the hooks of a job: what a row turns on, and what the job gets of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.distributed.own_rank import rank_of
from jupyter_amltrain.agent.supervise import job_hooks
from jupyter_amltrain.agent.supervise.hook_table import HOOKS, SWITCHED, Hook
from jupyter_amltrain.jobs.launch import hook_variables
from jupyter_amltrain.schema.job import JobSpec

SWITCHES = [pytest.param(hook, id=hook.module) for hook in HOOKS if hook.switch]
PLACED = [hook for hook in HOOKS if hook.place]


def test_files_have_names_of_their_own_and_code() -> None:
    assert len({hook.module for hook in HOOKS}) == len(HOOKS)
    assert all(job_hooks.files()[f"{hook.module}.py"] for hook in HOOKS)
    assert len({hook.variable for hook in HOOKS if hook.variable}) == sum(bool(hook.variable) for hook in HOOKS)


@pytest.mark.parametrize("hook", SWITCHES)
def test_switch_is_a_field_of_the_job_that_sets_the_variable(hook: Hook) -> None:
    assert hook.switch is not None
    value = "loss" if hook.switch.metavar else True
    spec = JobSpec(**{"name": "x", hook.switch.field: value})  # type: ignore[arg-type]
    shown = value if hook.switch.metavar else "0" if hook.switch.is_off else "1"
    assert hook_variables(spec) == {hook.variable: shown}
    assert hook.variable not in hook_variables(JobSpec(name="x"))


def test_hook_is_on_without_its_variable_unless_a_switch_turns_it_on(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    job_hooks.add(env, str(tmp_path), str(tmp_path / "home"), gpus=False)
    assert env["AMLTRAIN_FAILURE"] == str(tmp_path / "failure")
    assert {variable for variable, one in SWITCHED if variable in env} == {"AMLTRAIN_LINES"}
    assert not {"AMLTRAIN_TORCH_MEMORY", "AMLTRAIN_STACK", "AMLTRAIN_ASKS"} & set(env)  # no GPUs, ranks, nobody asks


def test_variable_turns_a_hook_on_or_off(tmp_path: Path) -> None:
    env = {hook.variable: "1" if hook.switch else "0" for hook in PLACED}
    job_hooks.add(env, str(tmp_path), str(tmp_path / "home"), gpus=True, is_alone=True)
    for hook in PLACED:
        assert env[hook.variable] == (str(tmp_path / hook.place) if hook.switch else "0")


def test_job_in_a_job_inherits_no_hook() -> None:
    env = {hook.variable: "x" for hook in HOOKS if hook.variable}
    job_hooks.clear(env)
    assert not env


def test_hook_that_fails_at_the_start_does_not_keep_the_others_from_starting(tmp_path: Path) -> None:
    (tmp_path / "asks").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMLTRAIN_")}
    env["AMLTRAIN_STACK"] = str(tmp_path / "script.py" / "0.stack")  # below a file
    job_hooks.add(env, str(tmp_path), str(tmp_path / "home"), gpus=False)
    path = tmp_path / "script.py"
    path.write_text("import signal\nprint(callable(signal.getsignal(signal.SIGURG)))\nbreakpoint()\n")
    done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n" and "--debug" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, 0),
        ({"RANK": "8"}, 0),  # of the user, such as the rank of an adapter
        ({"RANK": "3", "WORLD_SIZE": "4"}, 3),
        ({"RANK": "x", "WORLD_SIZE": "4", "PMI_RANK": "2", "PMI_SIZE": "3"}, 2),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1),
        ({"PMIX_RANK": "5"}, 5),
        ({"RANK": "8", "AMLTRAIN_RANK": "1"}, 1),
    ],
)
def test_rank_is_that_of_a_launcher(environ: dict[str, str], rank: int) -> None:
    assert rank_of(environ) == rank
