from __future__ import annotations

import sys
from typing import Any

import pytest

from jupyter_amltrain.launch import launch_plan
from jupyter_amltrain.spec.job import JobSpec

SOURCE = "/home/user/runs/r/source"


def test_a_cell_is_a_script_in_the_notebooks_folder() -> None:
    spec = JobSpec(name="r", script="pass\n", params={"lr": 0.1}, args=("--fast",), notebook_dir="/home/user/nb")
    plan = launch_plan(spec, SOURCE)
    # Parameters of a cell are in its text: no arguments for them.
    assert plan.argv == (sys.executable, "-u", f"{SOURCE}/script.py", "--fast")
    assert plan.cwd == "/home/user/nb"


def test_the_interpreter_is_the_jobs_then_the_targets_then_ours() -> None:
    spec = JobSpec(name="r", script="pass")
    assert launch_plan(spec, SOURCE).argv[0] == sys.executable
    assert launch_plan(spec, SOURCE, "/opt/py").argv[0] == "/opt/py"
    assert launch_plan(JobSpec(name="r", script="pass", python="/my/py"), SOURCE, "/opt/py").argv[0] == "/my/py"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (3, "3"), (True, "true"), (False, "false"), ("a b", "a b"), ("", ""), (None, "None"),
        ([1, "a"], '[1,"a"]'), ({"k": [1]}, '{"k":[1]}'), ("é", "é"),
    ],
)  # fmt: skip
def test_parameters_of_a_file_are_arguments(value: Any, text: str) -> None:
    spec = JobSpec(name="r", script_name="train.py", params={"p": value}, args=("first",))
    assert launch_plan(spec, SOURCE).argv[2:] == (f"{SOURCE}/train.py", "first", "--p", text)


def test_a_source_folder_is_the_working_folder() -> None:
    spec = JobSpec(name="r", script_name="src/train.py", source="/home/user/code", notebook_dir="/home/user/nb")
    plan = launch_plan(spec, SOURCE)
    assert plan.cwd == SOURCE and plan.argv[2] == f"{SOURCE}/src/train.py"
    assert launch_plan(JobSpec(name="r", script="pass"), SOURCE).cwd == SOURCE


def test_the_environment_is_the_jobs_own() -> None:
    env = {"A": "1"}
    plan = launch_plan(JobSpec(name="r", script="pass", env=env), SOURCE)
    assert plan.env == env and plan.env is not env
