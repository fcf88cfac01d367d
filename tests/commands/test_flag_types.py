from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import flag_types


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("30s", 30), ("15m", 900), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0.5h", 1800), ("1.5", 1.5)],
)
def test_duration_valid_text_is_parsed(text: str, seconds: float) -> None:
    assert flag_types.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-3", "1w", "1h 30m", "2 h", "nan", "1e3", "1h30"])
def test_duration_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="expected a time.*15m"):
        flag_types.duration(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=0.1", 0.1),
        ("n=5", 5),
        ("n=1_000", 1000),
        ("n=1e-3", 1e-3),
        ("flag=true", True),
        ("flag=True", True),
        ("x=null", None),
        ("x=None", None),
        ("x=", ""),
        ("x=a=b", "a=b"),
        ("x=adam", "adam"),
        ("x='5'", "5"),
        ('x="5"', "5"),
        ("x=[1, 2]", [1, 2]),
        ("x=(1, 'a')", [1, "a"]),
        ("x={'a': (1,)}", {"a": [1]}),
        ("x=2024-10-11", "2024-10-11"),
        ("x=007", "007"),
        ("x=...", "..."),
        ("x=/data/a b", "/data/a b"),
        ("x=os.getcwd()", "os.getcwd()"),
        ("x=-1", -1),
        ("x=" + "[" * 5000, "[" * 5000),
    ],
)
def test_param_value_is_typed(text: str, value: Any) -> None:
    got = flag_types.param(text)[1]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("text", ["lr", "=3", "x={1, 2}", "x=b'a'", "x=1j", "x={1: 2}", f"x={2**64}"])
def test_param_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="=|JSON|64 bits"):
        flag_types.param(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(json_values)
def test_param_text_round_trip_is_equal(value: Any) -> None:
    text = flag_types.parameter_text(value)
    assert flag_types.param(f"x={text}") == ("x", value)


@pytest.mark.parametrize("text", ["90s", "15m", "2h", "1d", "0.5s", "61s", "90m"])
def test_duration_text_round_trip_is_equal(text: str) -> None:
    assert flag_types.duration_text(flag_types.duration(text)) == text


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("2", 2), ("0.25", 0.25), (".5", 0.5), ("0.0", 0.0)])
def test_gpus_number_or_fraction_is_parsed(text: str, number: float) -> None:
    got = flag_types.gpus(text)
    assert got == number and type(got) is type(number)


@pytest.mark.parametrize("text", ["1.5", "-1", "1/4", "0.25.1", "1.0", "nan", "half", "1e-1"])
def test_gpus_other_number_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="whole number|0 or more"):
        flag_types.gpus(text)
