"""What a measurement asks of a target before it begins."""

from __future__ import annotations

import pytest

from jupyter_amltrain.backends.provisioner import ProvisionState
from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.scaling import ScalingPlan
from jupyter_amltrain.kernel.scaling import MeasuredMachine, machine_of
from jupyter_amltrain.kernel.target_status import TargetEntry
from jupyter_amltrain.schema.job import JobSpec, Resources
from jupyter_amltrain.schema.target import TargetInfo

PLAN = ScalingPlan(unit="processes", widths=(1, 2, 4), seconds=60.0)
JOB = JobSpec(name="train", script="pass")


def test_more_processes_than_gpus_are_refused_with_widths_that_fit() -> None:
    with pytest.raises(CommandError) as raised:
        MeasuredMachine("box", gpus=2).check(PLAN, JOB)
    assert raised.value.code == "scaling.width" and "--scaling 1,2" in str(raised.value)
    with pytest.raises(CommandError, match="--gpus 0"):
        MeasuredMachine("box", gpus=1).check(PLAN, JOB)


@pytest.mark.parametrize(
    "machine", [MeasuredMachine("box", gpus=4), MeasuredMachine("box", gpus=0), MeasuredMachine("box")]
)
def test_widths_that_fit_are_accepted(machine: MeasuredMachine) -> None:
    machine.check(PLAN, JOB)


def test_gpus_do_not_matter_on_processors_and_for_nodes() -> None:
    MeasuredMachine("box", gpus=1).check(PLAN, JobSpec(name="train", script="pass", resources=Resources(gpus=0)))
    MeasuredMachine("box", gpus=1).check(ScalingPlan(unit="nodes", widths=(1, 2), seconds=60.0), JOB)


def test_notes_name_what_distorts_the_measurement() -> None:
    assert MeasuredMachine("box", cpus=4).notes(PLAN) == MeasuredMachine("box", cpus=1, gpus=4).notes(PLAN) == ()
    shared, busy = MeasuredMachine("box", cpus=2, busy=3).notes(PLAN)
    assert "2 CPUs" in shared and "3 other runs" in busy


def test_machine_is_what_the_status_of_its_target_says() -> None:
    info = TargetInfo(target="box", kind="fake", cpus=8, gpus=({"name": "V100"},), running=2)
    state = ProvisionState(gpus=2, price_node=3.06, currency="USD", max_nodes=4)
    target = FakeTarget(name="box")
    assert machine_of("box", None) == MeasuredMachine("box")
    assert machine_of("box", TargetEntry(target=target, info=info)) == MeasuredMachine("box", 8, 1, None, "", 2)
    found = machine_of("box", TargetEntry(target=target, info=info, state=state))
    assert found == MeasuredMachine("box", 8, 2, 3.06, "USD", 0)  # a cluster's other runs are on other machines
