"""Advice on a run's GPUs, on the phases of a recorded H100: loads that each rule names, and those that none may."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.agent.telemetry.advice import Evidence, advice
from tests.fakes.nvml import h100

#: CPU of the run's processes, percent of one core.
WAITS, ONE_CORE, EIGHT_CORES = 5.0, 100.0, 790.0
CPUS = 8

#: Seconds, utilization, its peak, SM activity and CPU of a tick.
Row = tuple[float, float, float, float, float]


def recorded(phase: str, seconds: int, cpu: float = WAITS) -> list[Row]:
    """Ticks of a second of the middle of a recorded phase, again and again; as the sampler reads them with GPM."""
    rows = [one for one in h100.readings() if one.phase == phase]
    rows = rows[len(rows) // 5 : -len(rows) // 5]
    steps = [rows[at : at + 5] for at in range(0, len(rows) - 4, 5)]

    def ticks() -> Iterator[Row]:
        while True:
            for step in steps:
                mean, sm = (round(sum(one.gpm[at] for one in step) / len(step)) for at in (0, 1))
                yield 1.0, mean or step[-1].util, max(mean, step[-1].util), sm, cpu

    found = ticks()
    return [next(found) for _ in range(seconds)]


def advice_of(*parts: list[Row], cpus: int = CPUS) -> str:
    """Advice after ticks."""
    one = Evidence()
    for part in parts:
        for row in part:
            one.add(*row)
    return advice([Evidence(json.loads(json.dumps(one.state())))], cpus)


def loading(times: int, cpu: float) -> list[Row]:
    """A batch of two seconds after each three seconds of waiting for it."""
    return [row for _ in range(times) for row in (*recorded("idle", 3, cpu), *recorded("matmul", 2, cpu))]


#: A framework compiles for a minute on one core, after it has opened the GPU.
COMPILED = [*recorded("matmul", 1), *recorded("idle", 60, ONE_CORE)]
#: Small kernels whose bursts end within a tick: a mean of 20 % with a peak of 99 %.
BURSTS = [(1.0, 20.0, 99.0, 18.0, ONE_CORE)] * 30


@pytest.mark.parametrize(
    ("ticks", "word"),
    [
        (recorded("pcie", 30), "copying"),
        (recorded("matmul", 20) + recorded("pcie", 30), "copying"),
        (recorded("bursts", 40, ONE_CORE), "too small"),
        ([(1.0, 2.0, 4.0, 1.0, ONE_CORE)] * 30, "too small"),
        (loading(8, ONE_CORE), "num_workers"),
        (COMPILED + loading(30, ONE_CORE), "num_workers"),
        (BURSTS, "num_workers"),
        (loading(8, EIGHT_CORES), "bottleneck"),
    ],
)
def test_advice_names_what_the_gpu_waited_for(ticks: list[Row], word: str) -> None:
    assert word in advice_of(ticks)


@pytest.mark.parametrize(
    "ticks",
    [
        [],
        recorded("idle", 60, ONE_CORE),  # never used
        recorded("matmul", 60),
        recorded("copy", 60),  # kernels that read and write memory are work
        recorded("matmul", 60) + recorded("pcie", 6),
        COMPILED,
        COMPILED + recorded("matmul", 5, ONE_CORE),
        [*COMPILED, *recorded("matmul", 60, ONE_CORE)],
        loading(2, ONE_CORE),  # too short
        loading(8, WAITS),  # it waits, for something else than the CPU
        recorded("pcie", 5),
        [(1.0, 40.0, 45.0, 30.0, ONE_CORE)] * 60,  # a steady load of small kernels beside one busy core
    ],
)
def test_advice_without_evidence_is_empty(ticks: list[Row]) -> None:
    assert advice_of(ticks) == ""


def test_use_before_the_run_is_not_its_own() -> None:
    one = Evidence()
    for row in recorded("bursts", 30):
        one.add(*row, before=30.0)
    assert advice([one], CPUS) == ""


def test_gpu_that_only_copied_did_not_compute() -> None:
    def only_copied(phase: str) -> bool:
        one = Evidence()
        for row in recorded(phase, 10):
            one.add(*row)
        return one.only_copied

    assert only_copied("pcie") and not only_copied("copy") and not only_copied("matmul")


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 5.0]),
            st.one_of(st.none(), st.integers(0, 100)),
            st.one_of(st.none(), st.integers(0, 100)),
            st.one_of(st.none(), st.integers(0, 100)),
            st.one_of(st.none(), st.integers(0, 800)),
        )
    )
)
def test_evidence_of_any_ticks_is_consistent(
    rows: list[tuple[float, float | None, float | None, float | None, float | None]],
) -> None:
    one = Evidence()
    for row in rows:
        one.add(*row)
    assert 0 <= one.work <= one.seconds and 0 <= one.waiting <= one.seconds and one.copying <= one.work
    assert advice([one], CPUS).count(". ") <= 1
