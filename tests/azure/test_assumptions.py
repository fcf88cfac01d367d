"""docs/azure-assumptions.md says what the emulator and ``make azure-live`` do."""

from __future__ import annotations

import re

from azureml_emulator.switches import PACES, TABLE
from tests.azure.conftest import ROOT
from tools.azure_live import CHECKED
from tools.azure_live.observed import UNSWITCHED

TEXT = (ROOT / "docs" / "azure-assumptions.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| what |"))
]


def test_assumption_rows_name_switch_or_reason() -> None:
    assert all(len(row) == 5 and all(row) for row in ROWS)
    assert ROWS[0][0].startswith("`./logs`") and ROWS[0][3] == "`logs_uploaded_live`"
    named = []
    for row in ROWS:
        if not row[3].startswith("none: "):
            (switch,) = re.findall(r"`(\w+)`", row[3])
            named.append(switch)
            assert row[4] == CHECKED.get(switch, "not checked"), switch
        else:
            assert row[4] == "not checked", row[0]
    assert sorted(named) == sorted(set(TABLE) - PACES)


def test_assumptions_without_switch_are_listed() -> None:
    text = " ".join(TEXT.split())
    for name, (assumed, how) in UNSWITCHED.items():
        assert f"- **{name}**: {assumed} How: {how}." in text, name


def test_assumption_intervals_are_listed() -> None:
    below = TEXT.rpartition("|\n")[2]
    assert set(re.findall(r"`(\w+)`", below)) == set(PACES)


def test_live_checks_are_of_switches() -> None:
    assert set(CHECKED) <= set(TABLE) - PACES
