from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.jobs.launch import TargetMachine, is_single_process, launch_plan
from jupyter_amltrain.schema.job import Distribution, JobSpec

SOURCE = "/home/user/runs/r/source"
HERE = TargetMachine(python="/opt/kernel/python", has_our_disk=True)


def test_cell_launch_plan_uses_notebook_folder() -> None:
    spec = JobSpec(name="r", script="pass\n", params={"lr": 0.1}, args=("--fast",), notebook_dir="/home/user/nb")
    plan = launch_plan(spec, SOURCE, HERE)
    # Parameters of a cell are in its text: no arguments for them.
    assert plan.argv == (HERE.python, "-u", f"{SOURCE}/script.py", "--fast")
    assert plan.cwd == "/home/user/nb"


def test_interpreter_of_the_job_wins_over_that_of_the_machine() -> None:
    assert launch_plan(JobSpec(name="r", script="pass"), SOURCE, HERE).argv[0] == HERE.python
    assert launch_plan(JobSpec(name="r", script="pass", python="/my/py"), SOURCE, HERE).argv[0] == "/my/py"


def test_machine_without_our_disk_runs_in_the_copied_folder() -> None:
    spec = JobSpec(name="r", script="pass\n", notebook_dir="/home/user/nb")
    plan = launch_plan(spec, SOURCE, TargetMachine(python="python3", has_our_disk=False))
    assert plan.cwd == SOURCE and plan.argv[0] == "python3"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (3, "3"), (True, "true"), (False, "false"), ("a b", "a b"), ("", ""), (None, "None"),
        ([1, "a"], '[1,"a"]'), ({"k": [1]}, '{"k":[1]}'), ("é", "é"),
    ],
)  # fmt: skip
def test_file_params_become_arguments(value: Any, text: str) -> None:
    spec = JobSpec(name="r", script_name="train.py", params={"p": value}, args=("first",))
    assert launch_plan(spec, SOURCE, HERE).argv[2:] == (f"{SOURCE}/train.py", "first", "--p", text)


def test_source_folder_is_working_folder() -> None:
    spec = JobSpec(name="r", script_name="src/train.py", source="/home/user/code", notebook_dir="/home/user/nb")
    plan = launch_plan(spec, SOURCE, HERE)
    assert plan.cwd == SOURCE and plan.argv[2] == f"{SOURCE}/src/train.py"
    assert launch_plan(JobSpec(name="r", script="pass"), SOURCE, HERE).cwd == SOURCE


def test_launch_environment_is_copy() -> None:
    env = {"A": "1"}
    plan = launch_plan(JobSpec(name="r", script="pass", env=env), SOURCE, HERE)
    assert plan.env == env and plan.env is not env


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (Distribution(kind="pytorch", processes=1), True),
        (Distribution(kind="tensorflow", processes=1, parameter_servers=1), False),
        (Distribution(kind="ray", processes=1), False),
        (Distribution(kind="deepspeed", processes=2), False),
        (Distribution(kind="mpi"), False),
        (Distribution(), True),
    ],
)
def test_single_process_needs_no_launcher(distribution: Distribution, expected: bool) -> None:
    assert is_single_process(JobSpec(name="a", script="1", distribution=distribution)) is expected


def test_deepspeed_configuration_has_its_path_in_the_environment() -> None:
    spec = JobSpec(name="a", script="1", distribution=Distribution(kind="deepspeed", config={"a": 1}))
    plan = launch_plan(spec, "/runs/a/source", TargetMachine(python="python3", has_our_disk=True))
    assert plan.env["AML_DEEPSPEED_CONFIG"] == "/runs/a/source/aml_deepspeed.json"
    assert plan.ranks["kind"] == "deepspeed"
