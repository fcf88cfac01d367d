"""Widths of ``--scaling``, and the job of each."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.scaling import check_job, parse_widths, plan_of, slice_limits, slices_of
from jupyter_amltrain.schema.job import Distribution, JobSpec, Resources, validated

JOB = JobSpec(name="train", script="pass")


def jobs(spec: JobSpec = JOB, widths: Any = "1,2", **more: Any) -> tuple[JobSpec, ...]:
    plan = plan_of(widths, None, None)
    assert plan is not None
    return slices_of(spec, plan, **more)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("1,2,4", ("processes", (1, 2, 4))),
        ("2, 8", ("processes", (2, 8))),
        ("nodes:1,2", ("nodes", (1, 2))),
        ("processes:1,2", ("processes", (1, 2))),
    ],
)
def test_widths_are_read(text: str, plan: Any) -> None:
    assert parse_widths(text) == plan


@pytest.mark.parametrize(
    ("widths", "seconds", "steps"),
    [
        ("2,1", None, None), ("1,1", None, None), ("0,1", None, None), ("1", None, None), ("a", None, None),
        ("1,-2", None, None), ("1.5,2", None, None), ("", None, None), ("gpus:1,2", None, None), ([], None, None),
        ([True, 2], None, None), (["1", "2"], None, None), ("1,513", None, None), (list(range(1, 14)), None, None),
        (None, 5.0, None), (None, None, 5), ("1,2", 0.0, None), ("1,2", None, 0), ("1,2", float("nan"), None),
    ],
)  # fmt: skip
def test_wrong_widths_are_an_error_in_one_line(widths: Any, seconds: float | None, steps: int | None) -> None:
    with pytest.raises(CommandError) as raised:
        plan_of(widths, seconds, steps)
    assert raised.value.code == "scaling.value" and "\n" not in str(raised.value)


def test_no_widths_are_no_measurement() -> None:
    assert plan_of(None, None, None) is None


@pytest.mark.parametrize(
    ("widths", "fields"),
    [
        ("1,2", {"distribution": Distribution(processes=2)}),
        ("1,2", {"resources": Resources(nodes=2)}),
        ("1,2", {"resources": Resources(gpus=2)}),
        ("nodes:1,2", {"resources": Resources(nodes=2)}),
        ("1,2", {"job_type": "command"}),
        ("1,2", {"tracking": "direct"}),
        ("1,2", {"env": {"MLFLOW_TRACKING_URI": "http://mlflow"}}),
    ],
)
def test_flags_that_contradict_widths_are_refused(widths: str, fields: dict[str, Any]) -> None:
    plan = plan_of(widths, None, None)
    assert plan is not None
    with pytest.raises(CommandError) as raised:
        check_job(JobSpec(name="train", script="pass", **fields), plan)
    assert raised.value.code == "scaling.contradiction"


def test_each_width_is_a_job_of_one_group() -> None:
    one, two = jobs(widths=[1, 2])
    assert (one.name, two.name) == ("train-x1", "train-x2")
    assert (one.distribution.processes, two.distribution.processes) == (1, 2)
    assert one.distribution.kind == two.distribution.kind == "pytorch"
    assert one.scaling is not None and two.scaling is not None and one.scaling.group == two.scaling.group
    assert two.tags == {"scaling": "train", "scaling.processes": "2"} and two.timeout is None
    assert slice_limits(two)["seconds"] == 60.0 and not slice_limits(JOB)
    assert [validated(job).name for job in (one, two)]


def test_processes_get_a_gpu_each_if_there_are_gpus() -> None:
    assert [job.resources.gpus for job in jobs(has_gpus=True)] == [1, 2]
    assert [job.resources.gpus for job in jobs()] == [None, None]
    on_cpus = JobSpec(name="train", script="pass", resources=Resources(gpus=0))
    assert [job.resources.gpus for job in jobs(on_cpus, has_gpus=True)] == [0, 0]


def test_nodes_keep_processes_and_have_a_time_limit_without_kernel() -> None:
    spec = JobSpec(name="train", script="pass", distribution=Distribution(kind="mpi", processes=4))
    one, two = jobs(spec, "nodes:1,2", price=2.0, currency="USD")
    assert (two.resources.nodes, two.distribution) == (2, spec.distribution)
    assert one.scaling is not None and two.scaling is not None
    assert (one.scaling.price, two.scaling.price) == (2.0, 4.0)
    assert one.timeout is None and two.timeout is not None and slice_limits(one) and not slice_limits(two)


def test_values_are_not_returned_and_a_note_says_so() -> None:
    one, two = jobs(JobSpec(name="n" * 64, script="pass", out=("acc",)))
    assert one.out == two.out == () and "acc" in one.notes[0] and not two.notes
    assert len(one.name) == 64 and one.name.endswith("-x1")
