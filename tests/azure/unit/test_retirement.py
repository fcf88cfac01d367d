"""Sizes that Azure retires: dates, warnings, and that no recommendation names one."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from jupyter_amltrain.azure.catalog import (
    Quotas,
    find,
    is_retired,
    retirement_date,
    retirement_text,
    retirement_warning,
    sizes_of,
)
from jupyter_amltrain.azure.commands.sizes import sizes_text
from jupyter_amltrain.azure.cost_prompts import confirmation
from jupyter_amltrain.azure.targets import AmlComputeTarget, AzureTarget, InstanceTarget, ServerlessTarget

ROOT = Path(__file__).resolve().parents[3]
TODAY = datetime.date(2026, 11, 22)


@pytest.mark.parametrize(
    ("size", "day"),
    [
        ("Standard_NC6", "2023-09-06"),
        ("STANDARD_NC6S_V3", "2025-09-30"),
        ("Standard_NC24rs_v3", "2025-09-30"),
        ("Standard_NV12s_v3", "2026-09-30"),
        ("Standard_DS3_v2", "2028-05-01"),
        ("Standard_D2_v2", "2028-05-01"),
        ("Standard_F4s_v2", "2028-11-15"),
        ("Standard_NC4as_T4_v3", None),
        ("Standard_NC24ads_A100_v4", None),
        ("Standard_NV36ads_A10_v5", None),
        ("Standard_D2_v3", None),
        ("Standard_DS3_v3", None),
        ("Standard_L8s_v3", None),
        ("nonsense", None),
    ],
)
def test_retirement_date_follows_series(size: str, day: str | None) -> None:
    found = retirement_date(size)
    assert (found.isoformat() if found else None) == day


def test_retirement_warning_starts_one_year_before() -> None:
    size, day = "Standard_NV12s_v3", datetime.date(2026, 9, 30)
    assert retirement_text(size, day - datetime.timedelta(days=366)) == retirement_warning("Standard_D2_v3", day) == ""
    before, after = (retirement_text(size, day - datetime.timedelta(days=n)) for n in (1, 0))
    assert before == "until 2026-09-30" and after == "retired 2026-09-30" and is_retired(size, day)
    assert "2026-09-30" in retirement_warning(size, day)


ROWS = [{"name": name, "family": "f", "cpus": 6, "gpus": 1} for name in ("Standard_NC6s_v3", "Standard_NC4as_T4_v3")]
SIZES = sizes_of(ROWS)


def test_sizes_table_marks_retired_sizes() -> None:
    text = sizes_text(SIZES, Quotas())
    assert "retired 2025-09-30" in next(line for line in text.splitlines() if "NC6s_v3" in line)
    assert "retired" not in next(line for line in text.splitlines() if "T4_v3" in line) and "Warning" in text
    assert "retire" not in sizes_text(SIZES[1:], Quotas()).lower()


@pytest.mark.parametrize("kind", [AmlComputeTarget, ServerlessTarget, InstanceTarget])
def test_create_of_retired_size_warns(kind: type[AzureTarget]) -> None:
    def warning(size: str) -> str:
        target = kind(name="gpu", size=size)  # type: ignore[call-arg]
        found = find(SIZES, size)
        return confirmation(target, "create", {}, running=0, size=found, quotas=Quotas())

    assert "Warning" in warning("Standard_NC6s_v3") and "2025-09-30" in warning("Standard_NC6s_v3")
    assert "Warning" not in warning("Standard_NC4as_T4_v3")


def test_docs_and_hints_recommend_no_retired_size() -> None:
    """In what a person copies; a table of sizes in a saved output shows what the service lists."""
    import json

    texts = {path: path.read_text() for path in (*ROOT.glob("docs/*.md"), ROOT / "README.md")}
    texts |= {path: path.read_text() for path in (ROOT / "jupyter_amltrain").rglob("*.py")}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        texts[path] = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    for path, text in texts.items():
        for size in set(re.findall(r"\bStandard_[A-Z]+\d+\w*", text)):
            assert not is_retired(size, TODAY), f"{path.name}: {size}"
