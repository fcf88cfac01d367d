from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.azure.catalog import (
    GIB,
    MORE_QUOTA_URL,
    UNKNOWN,
    Quotas,
    Size,
    family_key,
    field,
    find,
    gpu_sizes,
    gpu_table,
    largest,
    matching_sizes,
    quota_error,
    quota_row,
    size_row,
    sizes_of,
)
from jupyter_amltrain.azure.commands.sizes import gpu_memory, quota_text, sizes_text, support
from jupyter_amltrain.azure.cost_prompts import check_size, gpu_text
from jupyter_amltrain.errors import CapacityError, CommandError

DATA = Path(__file__).resolve().parents[3] / "azureml_emulator" / "data" / "recordings"


def recorded(name: str) -> list[dict[str, Any]]:
    value: list[dict[str, Any]] = json.loads((DATA / name).read_text())["entries"][0]["response"]["value"]
    return value


@pytest.fixture(scope="module")
def sizes() -> tuple[Size, ...]:
    return sizes_of(size_row(item) for item in recorded("05_vmSizes_eastus.json"))


def quotas(**limits: int) -> Quotas:
    rows = [quota_row(item) for item in recorded("powershell_usages.json")]
    found = [{**row, "limit": limits.pop(row["family"], row["limit"])} for row in rows]
    found += [{"family": family, "used": 0, "limit": limit} for family, limit in limits.items()]
    return Quotas(found)


def get(sizes: tuple[Size, ...], name: str) -> Size:
    found = find(sizes, name)
    assert found is not None
    return found


def test_recorded_gpu_sizes_are_in_table(sizes: tuple[Size, ...]) -> None:
    gpus = [size for size in sizes if size.gpus]
    assert len(gpus) == 26 and all(size.gpu_name != UNKNOWN and size.gpu_memory for size in gpus)
    assert gpu_table()["source"] and gpu_table()["date"]
    assert all(not size.gpu_name for size in sizes if not size.gpus)


@pytest.mark.parametrize(
    ("name", "text", "memory", "gpus"),
    [
        ("STANDARD_NC6S_V3", "NVIDIA V100 16 GB", 16, 1),
        ("Standard_NC96ads_A100_v4", "NVIDIA A100 80GB PCIe", 80, 4),
        ("Standard_ND96asr_v4", "NVIDIA A100 40GB", 40, 8),
        ("Standard_NC80adis_H100_v5", "NVIDIA H100 NVL 94 GB", 94, 2),
        ("Standard_NV6ads_A10_v5", "NVIDIA A10 4 GB (1/6 of one)", 4, 1),
    ],
)
def test_gpu_size_has_model_memory_and_count(
    sizes: tuple[Size, ...], name: str, text: str, memory: int, gpus: int
) -> None:
    size = get(sizes, name)
    assert (gpu_text(size), size.gpu_memory, size.gpus) == (text, memory * GIB, gpus)


def test_unknown_gpu_size_is_unknown_model() -> None:
    (size,) = sizes_of([{"name": "Standard_NC1x_Z9_v9", "gpus": 2, "cpus": 8}])
    assert size.gpu_name == UNKNOWN and size.gpu_memory is None
    assert gpu_text(size) == "GPU of unknown model"
    assert matching_sizes([size], gpu=True) == [size] and matching_sizes([size], min_gpu_memory=1.0) == []


def test_gpu_sizes_without_workspace_have_models_of_offered_sizes() -> None:
    sizes = gpu_sizes("nc", 40 * GIB)
    assert {"Standard_NC24ads_A100_v4", "Standard_NC40ads_H100_v5"} <= {size.name for size in sizes}
    assert all(size.series == "NC" and (size.gpu_memory or 0) >= 40 * GIB and gpu_text(size) for size in sizes)
    assert all(size.gpus is None and size.price is None for size in sizes)  # the service's own answers
    assert not find(gpu_sizes(), "Standard_NC6")  # retired


def test_size_price_is_linux_price(sizes: tuple[Size, ...]) -> None:
    doubled = get(sizes, "Standard_D16ads_v5")  # recorded with 0.82 and 1.56, 0.16 and 0.62
    assert (doubled.price, doubled.price_low, doubled.currency) == (0.82, 0.16, "USD")
    gpu = get(sizes, "Standard_NC6s_v3")
    assert (gpu.price, gpu.price_low, gpu.cost(True)) == (3.06, 0.61, 0.61)
    without = get(sizes, "Standard_DS2_v2")
    assert without.price is None and without.price_low is None and without.currency == ""


def test_sdk_object_field_spellings_are_read() -> None:
    item = next(item for item in recorded("05_vmSizes_eastus.json") if item["name"] == "Standard_NC6s_v3")
    prices = {
        "billing_currency": "USD",
        "unit_of_measure": "OneHour",
        "values": [SimpleNamespace(retail_price=3.06, os_type="Linux", vm_tier="Standard")],
    }
    old = SimpleNamespace(
        name="Standard_NC6s_v3", family="standardNCSv3Family", v_cp_us=6, gpus=1, memory_gb=112.0,
        low_priority_capable=True, supported_compute_types=["AmlCompute"], estimated_vm_prices=prices,
    )  # fmt: skip
    new = SimpleNamespace(**item, v_cp_us=None, memory_gb=None)  # 1.35 has both, the old ones empty
    assert size_row(new) == size_row(item)
    assert {**size_row(old), "types": [], "price_low": 0} == {**size_row(item), "types": [], "price_low": 0}
    assert field({"memory_gb": None, "memoryGB": 2}, "memoryGB") == 2 and field({}, "x", 3) == 3


def test_family_key_ignores_spelling() -> None:
    assert family_key("Standard NCASv3_T4 Family") == family_key("standardNCASv3_T4Family") == "ncasv3t4"
    assert family_key("StandardNCADSA100v4Family") == family_key("standardNCADSA100v4Family")


def test_choose_filters_sizes(sizes: tuple[Size, ...]) -> None:
    assert {size.series for size in matching_sizes(sizes, gpu=True)} == {"NC", "ND", "NV"}
    names = [size.name for size in matching_sizes(sizes, family="nv")]
    assert names == ["Standard_NV12s_v3", "Standard_NV24s_v3", "Standard_NV48s_v3"]  # A10 is for MIR only
    big = matching_sizes(sizes, min_gpu_memory=80 * GIB)
    assert big and all((size.gpu_memory or 0) >= 80 * GIB for size in big)
    assert [size.gpus for size in big] == sorted(size.gpus or 0 for size in big)
    assert matching_sizes(sizes, family="standardNCSv3Family") == matching_sizes(sizes, family="Standard NCSv3 Family")
    with pytest.raises(CommandError, match="'XX'.*NC, ND, NV"):
        matching_sizes(sizes, family="XX")
    assert gpu_memory("24GB") == gpu_memory("24 GiB") == gpu_memory("24") == 24 * GIB and gpu_memory("") == 0
    with pytest.raises(CommandError, match="24GB"):
        gpu_memory("much")


def test_unavailable_size_error_suggests_similar_sizes(sizes: tuple[Size, ...]) -> None:
    def check(name: str, *, low: bool = False, kind: str = "AmlCompute") -> None:
        check_size("gpu", name, find(sizes, name), sizes, kind, low, "eastus")

    check("standard_nc6s_v3", low=True)
    with pytest.raises(CommandError, match="Standard_NC6s_v3"):
        check("NC6s_v3")
    with pytest.raises(CapacityError, match="MIR only"):
        check("Standard_NV36ads_A10_v5")
    with pytest.raises(CapacityError, match="low priority"):
        check("Standard_ND96asr_v4", low=True)
    check_size("gpu", "anything", None, (), "AmlCompute", False, "")  # nothing is known: nothing is refused


def test_quota_rows_are_read() -> None:
    found = quotas()
    rows = {(row.family, row.low_priority): row for row in found.rows}
    assert rows[("clusters", False)].limit == 200 and rows[("", False)].used == 20
    assert rows[("standardDSv2Family", False)].free == 2
    low = quota_row({"name": {"value": "TotalLowPriorityCores"}, "currentValue": 4, "limit": 24, "type": "x/usages"})
    assert low == {"family": "", "used": 4, "limit": 24, "low_priority": True, "name": "TotalLowPriorityCores"}
    camel = SimpleNamespace(name=SimpleNamespace(value="standardDFamily"), current_value=None, currentValue=1, limit=6)
    assert quota_row(camel)["used"] == 1


def test_quota_fit_counts_machines(sizes: tuple[Size, ...]) -> None:
    rows = [
        {"family": "", "used": 10, "limit": 100},
        {"family": "Standard NCSv3 Family", "used": 12, "limit": 24},
        {"family": "", "used": 0, "limit": 18, "low_priority": True},
    ]
    found, size = Quotas(rows), get(sizes, "Standard_NC6s_v3")
    assert (
        found.max_machines(size) == 2
        and found.max_machines(size, now=False) == 4
        and found.max_machines(size, mine=6) == 3
    )
    assert found.max_machines(size, True) == 3 and found.phrase(size, False) == "12 of 24 cores"
    assert found.fits(size, 2) and not found.fits(size, 3)
    unknown = get(sizes, "Standard_NC4as_T4_v3")
    assert found.max_machines(unknown) == 22  # only the sum of all is known
    assert (
        Quotas().max_machines(unknown) is None and Quotas().fits(unknown, 99) and Quotas().phrase(unknown, False) == ""
    )
    assert Quotas([{"family": "", "used": 5, "limit": -1}]).fits(size, 1000)


def test_quota_error_names_free_cores_and_fitting_size(sizes: tuple[Size, ...]) -> None:
    found = Quotas(
        [{"family": "", "used": 0, "limit": 200}, {"family": "standardNCSv3Family", "used": 12, "limit": 24}]
    )
    big = get(sizes, "Standard_NC24s_v3")
    error = quota_error(big, 1, found, sizes, who="gpu")
    assert error is not None
    assert str(error) == (
        "'gpu': 1 machine of Standard_NC24s_v3 has 24 cores, 12 of 24 are free (standardNCSv3Family)."
        f" The largest that fits is Standard_NC12s_v3 (2 x NVIDIA V100). More quota: {MORE_QUOTA_URL}"
    )
    assert quota_error(big, 1, found, sizes, now=False) is None  # it could be, when the others let go
    some = quota_error(get(sizes, "Standard_NC6s_v3"), 3, found, sizes)
    assert some is not None and "2 machines" in str(some) and "largest" not in str(some)
    ever = quota_error(get(sizes, "Standard_NC6s_v3"), 5, found, sizes, now=False)
    assert ever is not None and "the quota is 24 (12 free)" in str(ever)
    assert "4 machines" in str(ever) and "2 of them now" in str(ever)
    other = Quotas([{"family": "", "used": 12, "limit": 100}])
    full = quota_error(get(sizes, "Standard_ND96asr_v4"), 9, other, sizes, now=False)
    assert full is not None and "would fit" not in str(full) and "none of them now" in str(full)
    low = Quotas([{"family": "", "used": 0, "limit": 4, "low_priority": True}])
    cheap = quota_error(get(sizes, "Standard_NC6s_v3"), 1, low, sizes, low_priority=True)
    assert cheap is not None and "low-priority cores" in str(cheap) and "all low-priority machines" in str(cheap)


def test_quota_error_suggests_largest_size_of_same_gpu(sizes: tuple[Size, ...]) -> None:
    found = Quotas(
        [{"family": "", "used": 0, "limit": 100}, {"family": "standardNCADSA100v4Family", "used": 0, "limit": 48}]
    )
    wanted = get(sizes, "Standard_NC96ads_A100_v4")
    other = largest(wanted, 1, False, sizes, found, "AmlCompute")
    assert other is not None and other.name == "Standard_NC48ads_A100_v4"
    assert largest(wanted, 9, False, sizes, found, "AmlCompute") is None
    cpu = largest(get(sizes, "Standard_DS5_v2"), 1, False, sizes, quotas(standardDSv2Family=14), "AmlCompute")
    assert cpu is None  # 20 of 20 dedicated cores are used


def test_sizes_and_quota_tables_show_columns(sizes: tuple[Size, ...]) -> None:
    text = sizes_text(matching_sizes(sizes, family="NC"), Quotas([{"family": "", "used": 0, "limit": 24}]))
    lines = text.splitlines()
    assert "USD/h" in lines[0] and "4 x NVIDIA A100 80GB PCIe" in text and "2026" in lines[-1]
    assert any("Standard_NC64as_T4_v3" in line and "none" in line for line in lines)
    assert " ? " in sizes_text(matching_sizes(sizes, family="DS"), Quotas())
    assert "No size" in sizes_text([], Quotas())
    shown = quota_text(quotas())
    assert "standardDSv2Family" in shown and "standardNCSv3Family" not in shown and "Computes: 3 of 200." in shown
    assert "standardNCSv3Family" in quota_text(quotas(), everything=True) and MORE_QUOTA_URL in shown
    assert "amlcompute" in support()[0] and max(map(len, support()[0].splitlines())) < 120


def test_size_without_quota_row_is_not_suggested(sizes: tuple[Size, ...]) -> None:
    found = Quotas(
        [
            {"family": "", "used": 0, "limit": 400},
            {"family": "standardNCSv3Family", "used": 0, "limit": 24},
            {"family": "", "used": 0, "limit": 400, "low_priority": True},
        ]
    )
    known, unknown = get(sizes, "Standard_NC6s_v3"), get(sizes, "Standard_NC4as_T4_v3")
    assert found.is_known(known, False) and not found.is_known(unknown, False)
    assert found.is_known(unknown, True)  # low priority has one quota for all families
    (line,) = [one for one in sizes_text([unknown], found).splitlines() if unknown.name in one]
    assert line.split()[-2:] == ["?", "100"] and "'?'" in sizes_text([unknown], found)
    assert "?" not in sizes_text([known], found)
