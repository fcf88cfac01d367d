"""Axes of charts: the page has the same rules, and one file pins both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel import chart_axes
from jupyter_amltrain.kernel.run_charts import joined

#: ``labextension/test/axes.test.ts`` reads it, too.
CASES = json.loads((Path(__file__).parents[1] / "golden" / "axes.json").read_text())

TEXTS = {"number": chart_axes.number_text, "amount": chart_axes.amount_text}


def made(kind: str, arguments: list[Any]) -> Any:
    """What Python makes of a case: an axis as JSON, or a text."""
    if kind in TEXTS:
        return TEXTS[kind](*arguments)
    axis = getattr(chart_axes, f"{kind}_axis")(*arguments)
    return json.loads(msgspec.json.encode(axis))


@pytest.mark.parametrize("kind", list(CASES))
def test_axes_and_texts_are_those_of_the_page(kind: str) -> None:
    for arguments, expected in CASES[kind]:
        result = made(kind, arguments)
        if kind in TEXTS:
            assert result == expected, arguments
        else:
            assert result["labels"] == expected["labels"], arguments
            numbers = [result["min"], result["max"], *result["ticks"]]
            assert numbers == pytest.approx([expected["min"], expected["max"], *expected["ticks"]], rel=1e-9), arguments


def test_limit_axis_marks_round_values_below_the_limit() -> None:
    axis = chart_axes.limit_axis(79.65 * 2**30, "bytes", 0.06)
    assert axis.labels == ("0 GiB", "32 GiB", "64 GiB") and axis.max == pytest.approx(1.06 * 79.65 * 2**30)
    assert chart_axes.limit_axis(100, "%").labels == ("0 %", "25 %", "50 %", "75 %", "100 %")
    assert chart_axes.limit_axis(700, "W", 0.1).labels == ("0 W", "500 W")


def test_joined_range_has_a_common_unit_once() -> None:
    assert joined(["13.8 GiB", "17.2 GiB"], "80 GiB") == "13.8 to 17.2 of 80 GiB"
    assert joined(["900 MiB", "2 GiB"], "80 GiB") == "900 MiB to 2 GiB of 80 GiB"
    assert [joined(["7 %", "7 %"], ""), joined(["7 %", "9 %"], "")] == ["7 %", "7 to 9 %"]
