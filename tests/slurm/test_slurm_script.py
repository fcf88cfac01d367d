"""The script of a job, and the checks before it is sent. No cluster is needed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import SpecError, TargetError
from jupyter_amltrain.schema.fields import checked_target
from jupyter_amltrain.schema.job import Distribution, JobSpec, Resources
from jupyter_amltrain.slurm import checks, script
from jupyter_amltrain.slurm.script import LoginNode
from jupyter_amltrain.slurm.target import SlurmTarget

MACHINE = LoginNode(agent="/home/me/agent.pyz", python="/usr/bin/python3", home="/home/me/runs here", kill_wait=30)
FACTS: dict[str, Any] = {
    "partitions": [
        {"name": "cpu", "default": True, "max_time": None, "max_nodes": None, "nodes": 9, "state": "UP"},
        {"name": "gpu", "default": False, "max_time": 3600.0, "max_nodes": 2, "nodes": 4, "state": "UP"},
    ],
    "nodes": [
        {"partition": "gpu", "nodes": 4, "cpus": 16, "memory": 64 << 30, "gpus": {"a100": 4}, "features": ["a100"]},
        {"partition": "cpu", "nodes": 9, "cpus": 8, "memory": 8 << 30, "gpus": {}, "features": []},
    ],
    "accounts": ["physics"],
}


def text_of(target: SlurmTarget, longest: float | None = None, **fields: Any) -> str:
    return script.batch_script(JobSpec(name="a job", **fields), target, "run-1", MACHINE, 10.0, longest)


def test_script_asks_for_what_the_job_names() -> None:
    target = SlurmTarget(name="c", partition="gpu", account="physics", qos="high", constraint="a100|h100")
    resources = Resources(gpus=2, nodes=2, cpus=8, memory="64G")
    text = text_of(target, resources=resources, timeout=3600, options=("--nice=100",))
    for line in (
        *("--partition=gpu", "--account=physics", "--qos=high", "--constraint=a100|h100", "--nodes=2", "--mem=64G"),
        *("--gpus-per-node=2", "--cpus-per-task=8", "--nice=100", "--job-name=run-1"),
    ):
        assert f"#SBATCH {line}\n" in text
    assert "exec srun " in text and "--signal=TERM@" in text and "--requeue" not in text
    assert "#SBATCH --requeue" in text_of(target, max_restarts=1)


@pytest.mark.parametrize(
    ("fields", "processors"),
    [
        ({"distribution": Distribution(kind="pytorch", processes=4), "resources": Resources(nodes=2)}, 4),
        ({"distribution": Distribution(kind="mpi", processes=99), "resources": Resources(nodes=2)}, 16),
        ({"distribution": Distribution(kind="pytorch"), "resources": Resources(nodes=2, gpus=4)}, 4),
        ({"distribution": Distribution(kind="tensorflow", processes=4), "resources": Resources(nodes=2)}, 2),
        ({"distribution": Distribution(kind="pytorch", processes=4), "resources": Resources(cpus=1)}, 1),
        ({"distribution": Distribution(kind="pytorch", processes=4), "options": ("--cpus-per-gpu=8",)}, 0),
        ({"distribution": Distribution(kind="pytorch", processes=1)}, 0),
        ({"resources": Resources(gpus=4)}, 0),
    ],
)
def test_each_process_gets_a_processor_where_no_number_is_named(fields: dict[str, Any], processors: int) -> None:
    target = SlurmTarget(name="c", partition="gpu")
    spec = checks.with_processors(JobSpec(name="x", **fields), target, FACTS)
    assert spec.resources.cpus == processors
    text = script.batch_script(spec, target, "run-1", MACHINE, 10.0)
    assert (f"#SBATCH --cpus-per-task={processors}\n" in text) == bool(processors)


def test_script_of_one_node_is_the_supervisor_itself() -> None:
    text = text_of(SlurmTarget(name="c"))
    assert "srun -" not in text and "--signal=B:TERM@" in text and "--time" not in text and "--gpus" not in text
    assert text.splitlines()[-1].startswith("exec /usr/bin/python3 -I -S /home/me/agent.pyz guest slurm run")


def test_script_of_an_array_finds_the_run_of_its_task(tmp_path: Path) -> None:
    machine = LoginNode(agent="agent.pyz", python="echo", home=f"{tmp_path}/runs here", kill_wait=30)
    text = script.batch_script(JobSpec(name="a"), SlurmTarget(name="c"), "sweep-1", machine, 10.0, is_array=True)
    assert "#SBATCH --job-name=sweep-1\n" in text
    for folder, name, content in (("slurm-arrays", "sweep-1.txt", "t-0\nt-1\n"), ("slurm-logs", "t-1.txt", "")):
        path = tmp_path / "runs here" / folder / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    done = subprocess.run(["bash"], input=text.encode(), env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "1"})
    assert done.returncode == 0
    assert (tmp_path / "runs here" / "slurm-logs" / "t-1.txt").read_text().endswith("runs here t-1\n")
    done = subprocess.run(["bash"], input=text.encode(), env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "2"})
    assert done.returncode == 1


@pytest.mark.parametrize("target", [SlurmTarget(name="c"), SlurmTarget(name="c", modules="a,b", setup="source 'x y'")])
def test_script_is_valid_shell(target: SlurmTarget) -> None:
    subprocess.run(["bash", "-n"], input=text_of(target).encode(), check=True)
    subprocess.run(["bash", "-n"], input=script.probe_script(target, "/usr/bin/python3").encode(), check=True)


def test_time_limit_of_slurm_follows_that_of_the_job_where_the_partition_allows() -> None:
    assert script.time_limit(None, 10.0, None) is None
    limit = script.time_limit(600, 10.0, None)
    assert limit is not None and limit * 60 - script.notice_s(10.0) - 60 >= 600
    assert script.time_limit(3600, 10.0, 3600.0) == 60


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"timeout": 7200}, "--timeout 2h: partition gpu allows 1h"),
        ({"resources": Resources(nodes=3)}, "--nodes 3: partition gpu gives a job 2 nodes"),
        ({"resources": Resources(gpus=8)}, "--gpus 8: no node of partition gpu has so many: 4 a100 a node"),
        ({"resources": Resources(gpus=0.5)}, "--gpus 0.5: Slurm assigns whole GPUs"),
        ({"resources": Resources(nodes=2), "distribution": Distribution(kind="ray")}, "--distribution ray: on several"),
        ({"resources": Resources(cpus=32)}, "--cpus 32: no node"),
        ({"resources": Resources(memory="1T")}, "--mem 1T: no node"),
    ],
)
def test_job_that_the_partition_cannot_run_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        checks.check_job(JobSpec(name="x", **fields), SlurmTarget(name="c", partition="gpu"), FACTS)
    assert message in str(error.value) and error.value.hint and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"partition": "nope"}, ("nope", "cpu, gpu")),
        ({"partition": "gpu,nope"}, ("nope", "cpu, gpu")),
        ({"partition": "gpu", "account": "chemistry"}, ("chemistry", "physics")),
        ({"partition": "gpu", "constraint": "h100"}, ("h100", "a100")),
    ],
)
def test_target_that_the_cluster_does_not_have_is_refused(fields: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(TargetError) as error:
        checks.check_target(SlurmTarget(name="c", **fields), FACTS)
    assert all(word in str(error.value) for word in words)


def test_target_and_job_that_fit_are_accepted() -> None:
    target = SlurmTarget(name="c", partition="gpu", account="Physics", constraint="a100|h100&[x*2]")
    checks.check_target(target, FACTS)
    several = SlurmTarget(name="c", partition="gpu,cpu", constraint="a100")
    checks.check_target(several, FACTS)
    checks.check_job(JobSpec(name="x", timeout=7200), several, FACTS)  # Slurm chooses the partition
    assert checks.longest_of(several, FACTS) is None and checks.longest_of(target, FACTS) == 3600
    checks.check_job(JobSpec(name="x", timeout=3600, resources=Resources(gpus=4, nodes=2)), target, FACTS)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"container": "x.sif"}, "container_runtime"),
        ({"container_runtime": "apptainer"}, "container"),
        ({"partition": "a;rm -rf"}, "partition"),
        ({"setup": "a\nb"}, "setup"),
        ({"host": "a,b"}, "host"),
        ({"user": "ann"}, "user"),
    ],
)
def test_form_of_target_names_the_field_that_is_wrong(values: dict[str, str], field: str) -> None:
    assert field in checked_target(SlurmTarget, "cluster", values)[1]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"reason": "ended", "state": "FAILED", "hosts": "n1", "output": ""}, "do not share it"),
        ({"reason": "ended", "state": "FAILED", "hosts": "n1", "output": "module: not found"}, "module: not found"),
        ({"reason": "", "shared": False, "host": "n1"}, "does not see"),
        ({"reason": "", "shared": True, "host": "n1", "runtime": ""}, "--container-runtime apptainer"),
    ],
)
def test_answer_of_test_job_becomes_error(answer: dict[str, Any], words: str) -> None:
    target = SlurmTarget(name="c", container="x.sif", container_runtime="apptainer")
    error = checks.probe_error(answer, target, "/usr/bin/python3")
    assert error is not None and words in str(error)


def test_test_job_that_waits_is_a_note_and_no_error() -> None:
    answer = {"reason": "waits", "state": "Resources: busy"}
    assert checks.probe_error(answer, SlurmTarget(name="c"), "p") is None and "busy" in checks.probe_note(answer)
