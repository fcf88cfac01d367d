"""Several runs of one queue on one GPU, and who may start before whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.agent.queue import gpu_locks
from jupyter_amltrain.agent.queue.slots import free_gpus, loads
from tests.fakes import driver as fake
from tests.fakes.driver import Process, SwitchableDriver

from .conftest import Agent, stranger, until
from .test_gpu_queue import SHOW, UUID, detail, refused


@pytest.fixture
def driver(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SwitchableDriver:
    return fake.needed(tmp_path, gpus=1).use(monkeypatch)


def quarter(agent: Agent, **payload: Any) -> str:
    """A job of a quarter of a GPU that runs until the gate opens."""
    run = agent.gated(gpus=1, gpu_fraction=0.25, **payload)
    agent.running(run, "up")
    return run


def test_four_quarters_run_on_one_gpu(agent: Agent, driver: SwitchableDriver) -> None:
    runs = [quarter(agent) for _ in range(4)]
    assert [agent.state(run)["devices"] for run in runs] == [[UUID(0)]] * 4
    notes = agent.state(runs[-1])["notes"][0]
    assert "memory" in notes and runs[0] in notes
    fifth = agent.submit(SHOW, gpus=1, gpu_fraction=0.25)
    detail(agent, fifth, "next in line for 0.25 of a GPU", "busy with")
    agent.open_gate()
    assert agent.wait(fifth)["devices"] == [UUID(0)]


def test_fractions_fill_one_gpu_first(agent: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(2)
    assert {agent.state(quarter(agent))["devices"][0] for _ in range(3)} == {UUID(0)}
    whole = agent.gated(gpus=1)
    agent.running(whole, "up")
    assert agent.state(whole)["devices"] == [UUID(1)]
    agent.open_gate()


def test_whole_gpu_waits_for_all_fractions_and_is_not_overtaken(agent: Agent, driver: SwitchableDriver) -> None:
    first = quarter(agent)
    whole = agent.submit(SHOW, gpus=1)
    detail(agent, whole, "next in line for 1 GPU", first)
    later = agent.submit(SHOW, gpus=1, gpu_fraction=0.25)  # there is room, but it would delay the other
    detail(agent, later, "position 2", "0.25 of a GPU")
    agent.open_gate()
    assert agent.wait(whole)["state"] == agent.wait(later)["state"] == "completed"


def test_run_of_its_own_and_fraction_do_not_share(agent: Agent, driver: SwitchableDriver) -> None:
    whole = agent.gated(gpus=1)
    agent.running(whole, "up")
    part = agent.submit(SHOW, gpus=1, gpu_fraction=0.5)
    detail(agent, part, "next in line for 0.5 of a GPU", whole)
    agent.open_gate()
    assert agent.wait(part)["devices"] == [UUID(0)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "payload", [{"gpus": 2}, {"gpus": 0}, {"gpus": 1, "gpu_fraction": 0}, {"gpus": 1, "gpu_fraction": 1.5}]
)
def test_invalid_fraction_is_refused(agent: Agent, driver: SwitchableDriver, payload: dict[str, Any]) -> None:
    assert refused(agent, **{"gpu_fraction": 0.5, **payload})["type"] == "SubmitError"


@pytest.mark.thorough
@pytest.mark.skipif(not gpu_locks.available(), reason="needs Linux: GPU locks are abstract Unix sockets")
def test_lock_of_shared_gpu_lasts_until_its_last_run(agent: Agent, driver: SwitchableDriver, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = Agent(folder, Path(agent.zipapp))
    first = quarter(agent)
    second = agent.submit("import time; print('up'); time.sleep(600)", gpus=1, gpu_fraction=0.25)
    agent.running(second, "up")
    agent.open_gate()
    agent.wait(first)
    blocked = other.submit(SHOW, gpus=1)
    detail(other, blocked, "reserved by another queue of this user")
    agent.good("cancel", run=second)
    agent.wait(second)

    def is_free() -> bool:
        agent.good("info")  # the dispatcher, which has a copy of the lock, stays
        return other.state(blocked)["state"] == "completed"

    until(is_free, "the other queue's run")
    assert other.wait(blocked)["devices"] == [UUID(0)]
    other.kill_dispatcher()


def test_fraction_joins_runs_of_an_earlier_dispatcher(agent: Agent, driver: SwitchableDriver) -> None:
    first = quarter(agent)
    agent.kill_dispatcher()
    second = quarter(agent)
    assert agent.state(first)["state"] == agent.state(second)["state"] == "running"
    assert agent.state(second)["devices"] == [UUID(0)]
    agent.open_gate()


# -- who may start before whom -----------------------------------------------------------------


@pytest.fixture
def busy(driver: SwitchableDriver) -> Iterator[int]:
    """The pid of a stranger on the only GPU."""
    with stranger() as pid:
        driver.processes(0, [Process(pid)])
        yield pid


def test_sharing_run_does_not_wait_behind_one_that_waits_for_others(agent: Agent, busy: int) -> None:
    waiting = agent.submit(SHOW, gpus=1)
    detail(agent, waiting, str(busy))
    assert agent.wait(agent.submit(SHOW, gpus=1, share_gpus=True))["devices"] == [UUID(0)]
    detail(agent, waiting, "next in line", str(busy))
    agent.good("cancel", run=waiting)


def test_sharing_run_behind_another_says_what_it_waits_for(agent: Agent, busy: int) -> None:
    first = agent.gated(gpus=1, share_gpus=True)
    agent.running(first, "up")
    alone = agent.submit(SHOW, gpus=1)
    detail(agent, alone, first)
    sharing = agent.submit(SHOW, gpus=1, share_gpus=True)
    detail(agent, sharing, "position 2", first)
    agent.open_gate()
    assert agent.wait(sharing)["state"] == "completed"  # the stranger is still there, and the first one waits for it
    detail(agent, alone, str(busy))
    agent.good("cancel", run=alone)


def test_small_run_takes_no_gpu_that_a_large_one_waits_for(agent: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(2)
    first = agent.gated(gpus=1)
    agent.running(first, "up")
    large = agent.submit(SHOW, gpus=2)
    detail(agent, large, "next in line for 2 GPUs")
    small = agent.submit(SHOW, gpus=1)
    detail(agent, small, "position 2")
    agent.open_gate()
    assert agent.wait(large)["state"] == agent.wait(small)["state"] == "completed"


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 1.0])), max_size=40)
)
def test_fractions_never_exceed_a_gpu(jobs: list[tuple[str, float]]) -> None:
    gpus = [{"uuid": uuid, "index": index} for index, uuid in enumerate("abc")]
    records: list[dict[str, Any]] = []
    for _, fraction in jobs:
        free = free_gpus(gpus, records, set(), False, fraction)
        for uuid in free:
            used = [record for record in records if uuid in record["devices"]]
            assert fraction < 1 or not used
        if free:
            records.append({"devices": free[:1], "gpu_fraction": fraction})
    assert all(load <= 1.001 for load in loads(records).values())


def test_three_thirds_and_ten_tenths_fit() -> None:
    gpus = [{"uuid": "a", "index": 0}]
    for count in (2, 3, 7, 10, 100):
        records = [{"devices": ["a"], "gpu_fraction": 1 / count}] * (count - 1)
        assert free_gpus(gpus, records, set(), False, 1 / count) == ["a"]
        assert not free_gpus(gpus, [*records, records[0]], set(), False, 1 / count)
