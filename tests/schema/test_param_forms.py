from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.param_forms import form_of, variables_of, words_of


@pytest.mark.parametrize(
    ("form", "value", "words"),
    [
        ("value --x", 0.1, ["--x", "0.1"]),
        ("value --x", True, ["--x", "true"]),
        ("value --x", [1, "a"], ["--x", '[1,"a"]']),
        ("list --x", [1, "a"], ["--x", "1", "a"]),
        ("list --x", 1, ["--x", "1"]),
        ("repeat --x", ["a", "b"], ["--x", "a", "--x", "b"]),
        ("repeat --x", "a", ["--x", "a"]),
        ("joined x=", [1, None, True], ["x=[1,null,true]"]),
        ("joined x=", {"a": 1}, ["x={a:1}"]),
        ("joined --x=", False, ["--x=false"]),
        ("literal --x=", True, ["--x=True"]),
        ("literal --x=", "a", ["--x=a"]),
        ("literal --x=", None, ["--x=None"]),
        ("on --x", True, ["--x"]),
        ("on --x", 0, []),
        ("on --x", "false", []),
        ("off --slow", False, ["--slow"]),
        ("off --slow", True, []),
        ("pair --x --no-x", True, ["--x"]),
        ("pair --x --no-x", False, ["--no-x"]),
        ("flag --x", True, ["--x"]),
        ("flag --x", 3, ["--x", "3"]),
        ("positional", "a b", ["a b"]),
        ("environment", 1, []),
    ],
)
def test_words_of_a_parameter(form: str, value: Any, words: list[str]) -> None:
    assert words_of("x", value, form) == words


@pytest.mark.parametrize("form", ["on --x", "pair --x --no-x"])
def test_switch_takes_no_other_value(form: str) -> None:
    with pytest.raises(SpecError) as caught:
        words_of("x", 3, form)
    assert caught.value.code == "param.switch"


def test_form_of_others_is_used_for_names_without_one() -> None:
    assert form_of("x", {}) == "value --x"
    assert form_of("x", {"*": "joined {}=", "y": "on --y"}) == "joined x="
    assert variables_of({"x": 1, "y": 2}, {"*": "environment", "y": "on --y"}) == {"x": "1"}
