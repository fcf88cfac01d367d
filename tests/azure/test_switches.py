"""Whatever Azure does in what is only assumed of it (docs/azure-assumptions.md): jobs run, and nothing is lost unsaid.

Each test flips one switch of the emulator. Then a cluster is made and three jobs run on it at the same time: one with
metrics, values and outputs, one that fails, one that is canceled. Switches that touch something else are flipped in
``test_switches_apart.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from azureml_emulator.switches import PACES, TABLE
from tests.azure.conftest import Azure
from tests.azure.switch_cases import APART, FLIPS, LIMIT, Bench, opened, three

_CORE = ("logs_uploaded_live",)


@pytest.fixture(scope="module")
def bench(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with opened(azure, tmp_path_factory.mktemp("switches")) as made:
        yield made


def _cases() -> list[Any]:
    found = [pytest.param("", None, id="as assumed", marks=pytest.mark.thorough)]
    for switch, values in FLIPS.items():
        if switch not in APART:
            marks = () if switch in _CORE else (pytest.mark.thorough,)
            found += [pytest.param(switch, value, id=f"{switch}={value}", marks=marks) for value in values]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("switch", "value"), _cases())
def test_jobs_run_with_any_switch(bench: Bench, switch: str, value: Any) -> None:
    bench.flip(**({switch: value} if switch else {}))
    try:
        bench.call(asyncio.wait_for(three(bench, switch), LIMIT - 5))
    finally:
        bench.flip()
    assert bench.azure.control("/problems") == {"problems": [], "refused_hosts": []}


def test_switches_are_all_flipped() -> None:
    assert set(FLIPS) == set(TABLE) - PACES and set(FLIPS) > APART
    for switch, values in FLIPS.items():
        assert values and TABLE[switch][0] not in values, switch
