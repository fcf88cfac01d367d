from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs.launch import TargetMachine, is_single_process, launch_plan, shared_gpu_note
from jupyter_amltrain.schema.job import Distribution, JobSpec, Resources, validated

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


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("torchrun --nproc_per_node 2", (HERE.python, "-u", "-m", "torch.distributed.run", "--nproc_per_node", "2")),
        ("accelerate launch --cpu", (HERE.python, "-u", "-m", "accelerate.commands.launch", "--cpu")),
        ("deepspeed", (HERE.python, "-u", "-m", "deepspeed.launcher.runner")),
        ("nice -n 5", ("nice", "-n", "5", HERE.python, "-u")),
    ],
)
def test_launcher_stands_before_the_script(launcher: str, words: tuple[str, ...]) -> None:
    spec = JobSpec(name="r", script_name="train.py", launcher=launcher, args=("a",))
    assert launch_plan(spec, SOURCE, HERE).argv == (*words, f"{SOURCE}/train.py", "a")


def test_launcher_with_other_processes_is_refused() -> None:
    spec = JobSpec(name="r", script_name="train.py", launcher="torchrun", distribution=Distribution(kind="pytorch"))
    with pytest.raises(SpecError, match="launcher"):
        validated(spec)


def test_file_runs_in_place_on_this_machine_alone() -> None:
    spec = JobSpec(name="r", script_name="a/train.py", root="/home/user/p", notebook_dir="/home/user/p/nb")
    plan = launch_plan(spec, SOURCE, HERE)
    assert plan.argv[2] == "/home/user/p/a/train.py" and plan.cwd == "/home/user/p/nb"
    assert plan.code == {"root": "/home/user/p"}
    there = launch_plan(spec, SOURCE, TargetMachine(python="python3", has_our_disk=False))
    assert there.argv[2] == f"{SOURCE}/a/train.py" and there.cwd == f"{SOURCE}/nb" and there.code == {}


def test_module_and_notebook_have_programs_of_their_own() -> None:
    module = JobSpec(name="r", script_name="p/t.py", module="p.t", root="/r", notebook_dir="/r", search=(".",))
    assert launch_plan(module, SOURCE, HERE).argv == (HERE.python, "-u", "-m", "p.t")
    book = JobSpec(name="r", script_name="a.ipynb", root="/r", notebook_dir="/r", params={"lr": 0.1})
    assert launch_plan(book, SOURCE, HERE).argv[2:] == ("-m", "amltrain_notebook", "/r/a.ipynb", '{"lr":0.1}')


def test_parameters_follow_their_forms() -> None:
    forms = {"data": "positional", "amp": "pair --amp --no-amp", "fast": "on --fast", "lr": "joined lr="}
    params = {"lr": 0.1, "amp": False, "fast": True, "data": "x", "seed": 3}
    spec = JobSpec(name="r", script_name="t.py", params=params, forms=forms)
    assert launch_plan(spec, SOURCE, HERE).argv[3:] == ("x", "lr=0.1", "--no-amp", "--fast", "--seed", "3")
    named = JobSpec(name="r", script_name="t.py", params={"LR": 0.1}, forms={"*": "environment"})
    assert launch_plan(named, SOURCE, HERE).env == {"LR": "0.1"} and len(launch_plan(named, SOURCE, HERE).argv) == 3


@pytest.mark.parametrize(
    ("kind", "processes", "gpus", "noted"),
    [
        ("pytorch", 2, 1, True), ("deepspeed", 4, 2, True), ("pytorch", 2, 2, False), ("pytorch", 2, 0, False),
        ("pytorch", 2, None, False), ("mpi", 2, 1, False), ("", None, 1, False),
    ],
)  # fmt: skip
def test_processes_that_share_a_gpu_are_noted(kind: str, processes: int | None, gpus: int | None, noted: bool) -> None:
    distribution = Distribution(kind=kind, processes=processes)
    spec = JobSpec(name="r", script="pass", distribution=distribution, resources=Resources(gpus=gpus))
    assert ("NCCL" in shared_gpu_note(spec)) is noted
