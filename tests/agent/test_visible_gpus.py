"""Which GPUs a job gets: its submitter's CUDA_VISIBLE_DEVICES, its own variables, ids or indices, MIG."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.agent.queue import visible_gpus
from jupyter_amltrain.agent.queue.visible_gpus import allowed
from tests.fakes import driver as fake
from tests.fakes.driver import Instance, SwitchableDriver

from .conftest import Agent, until

#: Two whole GPUs around one that is split.
UUIDS = ["GPU-aa10", "GPU-ab20", "GPU-b300"]
GPUS: list[dict[str, Any]] = [
    {"index": 0, "uuid": "GPU-aa10"},
    *(
        {
            "index": 200 + k, "uuid": f"MIG-{k}c", "mig": True, "parent": 1, "instance": k,
            "parent_uuid": "GPU-ab20", "gpu_instance": 7 + k, "compute_instance": 0,
        }
        for k in range(2)
    ),
    {"index": 2, "uuid": "GPU-b300"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (None, [0, 200, 201, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", [2]),
        ("2,0", [2, 0]),  # in this order
        (" 2 , 0 ", [2, 0]),
        ("0,-1,2", [0]),  # what is behind an invalid entry is ignored
        ("0,9,2", [0]),
        ("0,,2", [0]),
        ("0,0", []),  # as with CUDA: an entry that is there twice hides all
        ("1", [200, 201]),
        ("1,2", [200, 201, 2]),
        ("GPU-aa10", [0]),
        ("GPU-aa", [0]),
        ("GPU-a", []),  # ambiguous
        ("GPU-b,GPU-aa", [2, 0]),
        ("GPU-ab", [200, 201]),
        ("GPU-zz,GPU-b", []),
        ("MIG-1c", [201]),
        ("MIG-1", [201]),
        ("MIG-", []),
        ("MIG-1c,MIG-0c", [201, 200]),
        ("MIG-GPU-ab20/8/0", [201]),  # as drivers before R470 name them
        ("MIG-GPU-ab20/9/0", []),
        ("MIG-1c,1", []),  # the instance is there twice
    ],
)
def test_visible_devices_value_selects_like_cuda(value: str | None, numbers: list[int]) -> None:
    assert [gpu["index"] for gpu in allowed(value, GPUS)] == numbers


def cuda(value: str, uuids: list[str]) -> list[int]:
    """CUDA's rule for whole GPUs, as PyTorch's parser has it (`torch.cuda._parse_visible_devices`)."""
    found: list[int] = []
    for entry in value.split(","):
        entry = entry.strip()
        if entry.startswith("GPU-"):
            fits = [k for k, uuid in enumerate(uuids) if uuid.startswith(entry)]
            index = fits[0] if len(fits) == 1 else -1
        else:
            number = re.match(r"[+-]?\d+", entry)
            index = int(number[0]) if number else -1
        if not 0 <= index < len(uuids):
            break
        if index in found:
            return []
        found.append(index)
    return found


ENTRIES = st.one_of(
    st.integers(-2, 5).map(str),
    st.sampled_from(["", " ", "x", "GPU-", "1x", "+1", " 2"]),
    st.text("GPU-ab01", max_size=8),
    st.builds(lambda uuid, n: uuid[:n], st.sampled_from(UUIDS), st.integers(0, 8)),
)


@given(st.lists(ENTRIES, max_size=5).map(",".join), st.lists(st.sampled_from(UUIDS), unique=True, max_size=3))
def test_visible_devices_random_value_selects_like_cuda(value: str, uuids: list[str]) -> None:
    gpus = [{"index": k, "uuid": uuid} for k, uuid in enumerate(uuids)]
    assert [gpu["index"] for gpu in allowed(value, gpus)] == cuda(value, uuids)


@pytest.mark.parametrize(
    ("value", "hides"),
    [(None, False), ("", True), (" ", True), ("-1", True), ("-1,0", True), ("NoDevFiles", True)]
    + [(value, False) for value in ("0", "3,1", "GPU-0", "MIG-7")],
)
def test_visible_devices_hiding_all_is_detected(value: str | None, hides: bool) -> None:
    assert visible_gpus.hides_all(value) is hides


def test_nested_submit_ignores_gpus_of_parent() -> None:
    inside = {"AMLTRAIN_RUN": "outer:1", "CUDA_VISIBLE_DEVICES": "GPU-aa10"}
    assert visible_gpus.submitter_value(inside) is None
    assert visible_gpus.submitter_value({**inside, visible_gpus.SUBMITTER_VARIABLE: "0,2"}) == "0,2"


# -- end to end --------------------------------------------------------------------

SHOW = (
    "import json, os; print(json.dumps({n: os.environ.get(n) for n in"
    " ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'AMLTRAIN_CUDA_VISIBLE_DEVICES')}))"
)


class Machine:
    """An agent with switchable GPUs; each submit has a kernel's environment of its own."""

    def __init__(self, agent: Agent, driver: SwitchableDriver) -> None:
        self.agent, self.driver = agent, driver

    def payload(self, visible: str | None, **fields: Any) -> dict[str, Any]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        if visible is not None:
            environ["CUDA_VISIBLE_DEVICES"] = visible
        return {"environ": environ, **fields}

    def submit(self, visible: str | None, code: str = SHOW, **fields: Any) -> str:
        return self.agent.submit(code, **self.payload(visible, **fields))

    def error(self, visible: str | None, **fields: Any) -> dict[str, Any]:
        payload = self.payload(visible, **fields)
        answer = self.agent("submit", run="refused", argv=[sys.executable, "-c", SHOW], **payload)
        assert "error" in answer and not self.agent.run_folder("refused").exists(), answer
        return answer["error"]

    def ran(self, run: str) -> tuple[list[str], dict[str, Any]]:
        """Devices of an ended run, and the variables that it saw."""
        state = self.agent.wait(run)
        assert state["state"] == "completed", state
        return state["devices"], json.loads(self.agent.log(run))


@pytest.fixture
def machine(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    # Of whoever happens to start the dispatcher: it says nothing of anybody's jobs.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    return Machine(agent, fake.needed(tmp_path, 4).use(monkeypatch))


def test_submitter_restricts_gpus(machine: Machine) -> None:
    uuid = machine.driver.uuid
    # Two kernels that differ, one dispatcher.
    for visible, gpus, given_ in (("3", 1, [3]), ("2", None, [2]), (None, 1, [0]), (uuid(3)[:-1] + "1", 1, [1])):
        devices, seen = machine.ran(machine.submit(visible, gpus=gpus))
        assert devices == [uuid(k) for k in given_]
        assert seen["CUDA_VISIBLE_DEVICES"] == devices[0]
    devices, seen = machine.ran(machine.submit("3,1", gpus=2))
    assert devices == [uuid(3), uuid(1)] and seen["CUDA_VISIBLE_DEVICES"] == f"{uuid(3)},{uuid(1)}"
    assert seen["AMLTRAIN_CUDA_VISIBLE_DEVICES"] == "3,1"


def test_waiting_restricted_job_blocks_no_other(machine: Machine) -> None:
    uuid = machine.driver.uuid
    first = machine.agent.gated(**machine.payload("3", gpus=1))
    machine.agent.running(first, "up")
    second = machine.submit("3", gpus=1)
    detail = until(lambda: machine.agent.state(second)["detail"], "the reason")
    assert "CUDA_VISIBLE_DEVICES=3 " in detail and first in detail and "next in line" in detail
    third = machine.submit("3", gpus=1)
    assert machine.ran(machine.submit("2", gpus=1))[0] == [uuid(2)]  # its GPU is free
    until(lambda: "position 2 in the queue" in machine.agent.state(third)["detail"], "the order")
    machine.agent.open_gate()
    assert machine.ran(second)[0] == machine.ran(third)[0] == [uuid(3)]


@pytest.mark.thorough
@pytest.mark.parametrize("value", ["", "-1", "9"])
def test_submitter_without_gpus_runs_on_cpu_with_note(machine: Machine, value: str) -> None:
    run = machine.submit(value)
    devices, seen = machine.ran(run)
    assert devices == [] and seen["CUDA_VISIBLE_DEVICES"] == ""
    assert any("CUDA_VISIBLE_DEVICES" in note for note in machine.agent.state(run)["notes"])
    error = machine.error(value, gpus=1)
    assert error["type"] == "CapacityError" and "CUDA_VISIBLE_DEVICES=" in error["message"]


def test_more_gpus_than_visible_are_refused(machine: Machine) -> None:
    error = machine.error("0,1", gpus=3)
    assert error["type"] == "CapacityError" and "GPU 0, GPU 1" in error["message"]
    error = machine.error("0,1", gpus=5)  # than the machine has
    assert error["type"] == "CapacityError" and "CUDA_VISIBLE_DEVICES" not in error["message"]


def test_job_visible_devices_with_gpus_is_refused(machine: Machine) -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": "2"}
    assert machine.ran(machine.submit(None, gpus=0, env=chosen)) == (
        [], {"CUDA_VISIBLE_DEVICES": "2", "CUDA_DEVICE_ORDER": None, "AMLTRAIN_CUDA_VISIBLE_DEVICES": None},
    )  # fmt: skip
    assert machine.ran(machine.submit(None, gpus=0, secrets=chosen))[1]["CUDA_VISIBLE_DEVICES"] == "2"
    for fields in ({"gpus": 1, "env": chosen}, {"env": chosen}, {"gpus": 1, "secrets": chosen}):
        error = machine.error(None, **fields)
        assert error["type"] == "SpecError" and "--gpus 0" in error["message"]


def test_gpu_ids_index_gives_indices(machine: Machine) -> None:
    devices, seen = machine.ran(machine.submit("3,1", gpus=2, gpu_ids="index"))
    assert devices == [machine.driver.uuid(3), machine.driver.uuid(1)]
    assert seen["CUDA_VISIBLE_DEVICES"] == "3,1" and seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    seen = machine.ran(machine.submit(None, gpus=1, gpu_ids="uuid"))[1]
    assert seen["CUDA_VISIBLE_DEVICES"] == machine.driver.uuid(0) and seen["CUDA_DEVICE_ORDER"] is None
    error = machine.error(None, gpus=1, gpu_ids="index", env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert error["type"] == "SpecError" and "PCI_BUS_ID" in error["message"]
    assert machine.error(None, gpus=1, gpu_ids="name")["type"] == "SubmitError"


# -- MIG ---------------------------------------------------------------------------


@pytest.fixture
def split(machine: Machine) -> Machine:
    machine.driver.set_gpus(2)
    machine.driver.mig(0, [Instance(0, 3), Instance(1, 4), Instance(2, 5)])
    return machine


def test_mig_instances_are_slots(split: Machine) -> None:
    agent, uuid = split.agent, split.driver.uuid
    info = agent.good("info")
    assert [gpu["uuid"] for gpu in info["gpus"]] == [uuid(0, 0), uuid(0, 1), uuid(0, 2), uuid(1)]
    assert info["slots"]["gpu"] == {"total": 4, "free": 4}
    assert [gpu["memory_total"] >> 30 for gpu in info["gpus"]] == [10, 10, 10, 80]
    runs = [agent.gated(**split.payload(None, gpus=1)) for _ in range(4)]
    assert [agent.running(run, "up")["devices"] for run in runs] == [[gpu["uuid"]] for gpu in info["gpus"]]
    agent.open_gate()
    for run in runs:
        assert agent.wait(run)["state"] == "completed"


@pytest.mark.thorough
def test_busy_mig_instance_keeps_others_free(split: Machine) -> None:
    uuid = split.driver.uuid
    split.driver.processes(0, [fake.Process(os.getpid(), 1 << 30, 4, 0)])
    assert split.agent.good("info")["slots"]["gpu"] == {"total": 4, "free": 3}
    runs = [split.agent.gated(**split.payload(None, gpus=1)) for _ in range(2)]
    assert [split.agent.running(run, "up")["devices"] for run in runs] == [[uuid(0, 0)], [uuid(0, 2)]]
    waiting = split.submit("MIG-5d000000-0000-0000-0001", gpus=1)
    detail = until(lambda: split.agent.state(waiting)["detail"], "the reason")
    assert "GPU 0 MIG 1 used by" in detail
    split.driver.processes(0, [])
    assert split.ran(waiting)[0] == [uuid(0, 1)]


def test_submitter_may_name_mig_instance_or_gpu(split: Machine) -> None:
    uuid = split.driver.uuid
    # The lock of the run before may be let go of a moment after its end: another instance is free then.
    any_of_it = {uuid(0, number) for number in range(3)}
    for visible, possible in (uuid(0, 2), {uuid(0, 2)}), ("0", any_of_it), (uuid(0), any_of_it), ("1", {uuid(1)}):
        (given_,) = split.ran(split.submit(visible))[0]
        assert given_ in possible


@pytest.mark.thorough
def test_several_mig_instances_for_process_are_refused(split: Machine) -> None:
    error = split.error(None, gpus=2)
    assert error["type"] == "CapacityError" and "one MIG instance" in error["message"]
    split.driver.set_gpus(3)
    until(lambda: len(split.agent.good("info")["gpus"]) == 5, "the third GPU")
    assert split.ran(split.submit(None, gpus=2))[0] == [split.driver.uuid(1), split.driver.uuid(2)]


def test_mig_instance_index_is_refused(split: Machine) -> None:
    assert split.ran(split.submit(None, gpus=1, gpu_ids="index"))[1]["CUDA_VISIBLE_DEVICES"] == "1"
    for fields in ({"gpus": 1}, {}):
        error = split.error("0", gpu_ids="index", **fields)
        assert error["type"] == "CapacityError" and "no index" in error["message"]


def test_mig_gpu_without_instances_is_reported(machine: Machine) -> None:
    machine.driver.set_gpus(1)
    machine.driver.mig(0, [])
    info = machine.agent.good("info")
    assert info["gpus"] == [] and "GPU 0" in info["gpu_note"] and "MIG" in info["gpu_note"]
