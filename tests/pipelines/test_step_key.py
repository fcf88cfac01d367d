"""What a step's result depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.jobs.snapshot import of_script
from jupyter_amltrain.pipelines.functions import step
from jupyter_amltrain.pipelines.step_key import step_key
from jupyter_amltrain.schema.inputs import JobInput


@pytest.fixture
def key(home: Path) -> Any:
    """Returns the key of a cell."""

    def key_of(cell: str, taken: Any = None, target: str = "local", change: Any = None, **fields: Any) -> str:
        spec = step("x", cell, gpus=0, **fields).spec
        code = of_script(spec).files
        spec = change(spec) if change else spec
        return step_key(spec, code, target, taken or {}, {}, target == "local")

    return key_of


def test_same_step_has_same_key(key: Any) -> None:
    assert key("a = 1") == key("a = 1")
    assert key("a = 1", tags={"k": "v"}, timeout=60, experiment="e") == key("a = 1")


@pytest.mark.parametrize(
    "fields",
    [
        {"params": {"a": 2}}, {"env": {"A": "1"}}, {"out": ["a"]}, {"pip": ["requests==2.0"]}, {"outputs": ["d"]},
        {"taken": {"data": {"as": "json", "value": 1}}}, {"processes": 2},
    ],
)  # fmt: skip
def test_other_parameters_inputs_and_environment_change_the_key(key: Any, fields: dict[str, Any]) -> None:
    assert key("a = 1\nprint(a)", **fields) != key("a = 1\nprint(a)")


def test_module_that_the_cell_imports_is_part_of_it(key: Any) -> None:
    Path("helper.py").write_text("def f():\n    return 1\n")
    before = key("import helper\nprint(helper.f())")
    Path("unrelated.py").write_text("x = 1\n")
    assert key("import helper\nprint(helper.f())") == before
    Path("helper.py").write_text("def f():\n    return 2\n")
    assert key("import helper\nprint(helper.f())") != before


def test_content_of_input_and_of_named_file_is_part_of_it(key: Any, tmp_path: Path) -> None:
    Path("table.csv").write_text("1,2\n")
    cell = "rows = open('table.csv').read()"
    first, given = key(cell), key("pass", inputs={"t": "table.csv"})
    Path("table.csv").write_text("1,2\n")  # another time, the same content
    assert key(cell) == first and key("pass", inputs={"t": "table.csv"}) == given
    Path("table.csv").write_text("1,3\n")
    assert key(cell) != first and key("pass", inputs={"t": "table.csv"}) != given
    there = msgspec.structs.replace
    far = key("pass", target="box", change=lambda spec: there(spec, inputs={"t": JobInput(path="/data/there")}))
    assert far != key("pass", target="box")


def test_file_that_the_step_writes_is_not_part_of_it(key: Any) -> None:
    cell = "open('made.csv', 'w').write('x')"
    before = key(cell)
    Path("made.csv").write_text("x")
    assert key(cell) == before


def test_interpreter_of_another_machine_is_not_that_of_this_one(key: Any) -> None:
    assert key("a = 1", target="box") != key("a = 1")
