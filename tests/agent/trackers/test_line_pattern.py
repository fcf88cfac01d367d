"""Patterns of ``--metric``."""

from __future__ import annotations

import math

import pytest

from jupyter_amltrain.agent.trackers.line_pattern import parse_pattern


@pytest.mark.parametrize(
    ("pattern", "line", "value", "step"),
    [
        ("loss=Loss: {value} after {step} batches", "Loss: 0.00073 after 617 batches", 0.00073, 617),
        ("loss=loss: {value} [{step}/{}]", "loss: 2.301942  [  640/60000]", 2.301942, 640),
        ("loss=loss: {value} [ {step}/{}]", "loss: 2.301942  [12800/60000]", 2.301942, 12800),
        ("acc=accuracy {value}%", "epoch 3, accuracy 91.5%", 91.5, None),
        ("a=x={value}", "x=-1e-05, y=2", -1e-05, None),
        ("a={{loss}} {value}", "{loss} .5", 0.5, None),
        ("val/loss={} {} loss {value}", "INFO main loss 7", 7.0, None),
    ],
)
def test_pattern_in_line_finds_value_and_step(pattern: str, line: str, value: float, step: int | None) -> None:
    assert parse_pattern(pattern).find(line) == (value, step)


def test_pattern_finds_values_that_are_not_finite() -> None:
    pattern = parse_pattern("loss=loss {value}")
    assert math.isnan((pattern.find("loss nan") or (0.0,))[0])
    assert pattern.find("loss -inf") == (-math.inf, None)
    assert pattern.find("loss information") is None


@pytest.mark.parametrize(
    "text", ["", "loss", "=x {value}", "loss=x", "loss=x {value} {value}", "a={value} {step} {step}", "a={value} {b}",
             "a={value} }", "a b,c={value}", "a=" + "{} " * 20 + "{value}"]
)  # fmt: skip
def test_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        parse_pattern(text)
