"""The line of a submit: written from a form, read back, checked as the magic would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.backends.honored import check_honored
from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands.forms import BASIC_FIELDS, compose, submit_actions, submit_fields
from jupyter_amltrain.commands.magic_line import quote, words
from jupyter_amltrain.commands.submit import parse_submit
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.target import LocalTarget

TEXT = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=30)


def spec_of(line: str) -> Any:
    return parse_submit(magic_line.split(line.removeprefix("%%aml_submit")), "x = a = b = 1", prog="%%aml_submit").spec


def test_submit_form_has_every_flag_common_first() -> None:
    fields = submit_fields()
    assert [field.name for field in fields if not field.advanced] == list(BASIC_FIELDS)
    flags = {flag for action in submit_actions().values() for flag in action.option_strings if flag[:2] == "--"}
    assert {field.flag for field in fields} == flags and all(field.help for field in fields)
    kinds = {field.name: field.kind for field in fields}
    assert kinds["param"] == "list" and kinds["gpus"] == "number" and kinds["wait"] == "bool"
    assert kinds["target"] == "target" and kinds["require-gpu"] == "choice" and kinds["timeout"] == "text"


def test_submit_form_groups_every_field_with_words() -> None:
    fields = {field.name: field for field in submit_fields()}
    assert {field.group for field in fields.values()} == {"what", "params", "where", "data", "sweep", "advanced"}
    assert fields["param"].label == "Parameters" and fields["shm-size"].label == "Shared memory"
    assert fields["gpus"].needs_gpus and not fields["param"].needs_gpus


#: A value for each option that only a service understands.
_OF_SERVICE = {
    "nodes": "2",
    "instance-type": "Standard_DS3_v2",
    "shm-size": "2g",
    "cpus": "8",
    "mem": "64G",
    "option": "--nice=100",
    "docker-args": "x",
    "derive-env": "",
    "identity": "user",
    "service": "jupyterlab",
    "priority": "high",
    "tier": "spot",
}


def test_fields_not_for_local_are_those_that_local_refuses() -> None:
    hidden = {field.name for field in submit_fields() if "local" in field.not_for}
    assert hidden == set(_OF_SERVICE)
    for name, value in _OF_SERVICE.items():
        line = f"--{name}={value}".removesuffix("=")
        if name == "derive-env":
            line += " --env conda@latest"
        with pytest.raises(SpecError):
            check_honored(spec_of(f"%%aml_submit {line}"), LocalTarget(name="local"))
    others = "--param lr=1 --timeout 1m --tag a=b --out a --env-var A=b"
    check_honored(spec_of(f"%%aml_submit {others}"), LocalTarget(name="local"))


def test_submit_form_and_line_round_trip_is_equal() -> None:
    form = {"target": "local", "gpus": 0, "param": ["lr=0.1", "name=a b"], "out": ["a", "b"], "wait": True}
    made = compose("", form, cell="a = b = 1")
    assert made.line == '%%aml_submit --target local --param lr=0.1 --param "name=a b" --out a --out b --gpus 0 --wait'
    assert made.values == form and made.errors == {}
    assert compose(made.line, None, cell="a = b = 1").values == form
    assert spec_of(made.line).params == {"lr": 0.1, "name": "a b"}


def test_composed_line_keeps_typed_text_of_unchanged_flags() -> None:
    old = "%%aml_submit  --param 'lr=0.1'   --frobnicate 3 --name \"$who\" --gpus=1"
    made = compose(old, {"param": ["lr=0.1", "n=2"], "name": "$who", "gpus": 2, "timeout": "2h"}, cell="pass")
    assert made.line == (
        "%%aml_submit --param 'lr=0.1' --param n=2 --frobnicate 3 --name \"$who\" --gpus 2 --timeout 2h"
    )
    gone = compose(old, {}, cell="pass")
    assert gone.line == "%%aml_submit --frobnicate 3"
    assert "unknown flag --frobnicate" in gone.errors[""]


def test_composed_line_magic_keeps_variable_script_and_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "my train.py").write_text("pass\n")
    made = compose("run = %aml_submit train.py --gpus 1 -- --verbose 'a b'", {"gpus": 2})
    assert made.line == "run = %aml_submit train.py --gpus 2 -- --verbose 'a b'" and made.errors == {}
    made = compose("", {"wait": True}, script="my train.py")
    assert made.line == '%aml_submit "my train.py" --wait' and made.errors == {}
    assert compose("%aml_submit train.py", {}, script="my train.py").line == '%aml_submit "my train.py"'
    missing = compose("", {}, script="none.py")
    assert list(missing.errors) == [""] and "'none.py'" in missing.errors[""]


@pytest.mark.parametrize(
    ("form", "cell", "field", "message"),
    [
        ({"gpus": "many"}, "pass", "gpus", "whole number"),
        ({"timeout": "soon"}, "pass", "timeout", "expected a time"),
        ({"require-gpu": "stopp"}, "pass", "require-gpu", "Did you mean"),
        ({"param": ["lr"]}, "pass", "param", "has no '='"),
        ({"param": ["1x=2"]}, "pass", "param", "--param"),
        ({"out": ["1a"]}, "pass", "out", "variable name"),
        ({"name": "a/b"}, "pass", "name", "no '/'"),
        ({"name": "x" * 65}, "pass", "name", "1 to 64"),
        ({"name": "two\nlines"}, "pass", "name", "line break"),
        ({"name": ["a", "b"]}, "pass", "name", "one value"),
        ({"env-var": ["API_TOKEN=hf_abcdefghijklmnopqrstuvwxyz"]}, "pass", "env-var", "looks like a secret"),
        ({"color": "red"}, "pass", "color", "no field"),
        ({"param": ["lr=1"]}, "lr = abs(1)", "param", "Cell line 1, "),
        ({}, "", "", "the cell is empty"),
        ({}, "x = (", "", "Cell line 1"),  # it has no magic line yet
        ({}, "%debug", "", "does not work in a run"),
        ({}, "input()", "", "keyboard"),
    ],
)
def test_submit_form_error_is_at_its_field(form: dict[str, Any], cell: str, field: str, message: str) -> None:
    made = compose("", form, cell=cell)
    assert list(made.errors) == [field] and message in made.errors[field] and "\n" not in made.errors[field]


def test_submit_form_with_goal_writes_sweep_line() -> None:
    form = {"param": ["lr=uniform(0,1)", "n=3"], "goal": "minimize loss", "max-trials": 5, "gpus": 0}
    made = compose("", form, cell="loss = lr * n")
    assert made.line.startswith("%%aml_sweep ") and made.errors == {}
    assert compose(made.line, None, cell="loss = lr * n").values == form
    assert "goal" in str(compose("%%aml_sweep --param lr=uniform(0,1) --max-trials 3", None, cell="lr").errors)
    without = {"gpus": 0, "param": ["n=3", "lr=1"]}
    assert compose(made.line, without, cell="loss = lr * n").line.startswith("%%aml_submit ")


def test_submit_form_leaves_notebook_variables() -> None:
    made = compose("", {"param": ["lr=$lr", "n={n}"], "gpus": "$count", "target": "$where"}, cell="pass")
    assert made.errors == {} and made.values["gpus"] == "$count"
    assert made.line == '%%aml_submit --target "$where" --param "lr=$lr" --param "n={n}" --gpus "$count"'


def test_compose_syntax_error_counts_cell_lines() -> None:
    for old, number in (("", 2), ("%%aml_submit --gpus 1", 3)):
        assert f"Cell line {number}, 'y = ('" in compose(old, {}, cell="x = 1\ny = (").errors[""]


def test_compose_of_broken_line_is_refused() -> None:
    assert "No closing quotation" in compose('%%aml_submit --name "x', None, cell="pass").errors[""]
    assert "submit line" in compose("%%bash", {}, cell="pass").errors[""]


@given(st.lists(TEXT, max_size=5))
def test_quoted_word_positions_round_trip(texts: list[str]) -> None:
    quoted = [quote(text) for text in texts]
    assert magic_line.split(" ".join(quoted) + " ;") == texts
    assert words(" ".join([*quoted, "end"])) == [*quoted, "end"]


@pytest.mark.thorough
@given(TEXT.filter(lambda text: "$" not in text and "{" not in text), TEXT.filter(lambda text: "$" not in text))
def test_submit_form_any_text_round_trip_is_equal(name: str, value: str) -> None:
    made = compose("", {"experiment": name, "tag": [f"k={value}"]}, cell="pass")
    assert made.errors == {}, made
    assert made.values == {"experiment": name.strip(), "tag": [f"k={value}".strip()]} or not name.strip()
    assert compose(made.line, made.values, cell="pass").line == made.line


def test_submit_form_leaves_names_of_the_notebook_to_the_kernel() -> None:
    assert compose("", {"out": ["df"]}, cell="df['a'] = clean(other)").errors == {}
    assert "out" in compose("", {"out": ["gone"]}, cell="df['a'] = clean(other)").errors
