"""``%%aml_step`` and ``%aml_pipeline`` in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.pipelines import steps

from ..helpers import kernel_of


@pytest.fixture(autouse=True)
def no_steps(home: Path) -> Iterator[None]:
    steps.forget()
    yield
    steps.forget()


def define(line: str, cell: str, **namespace: Any) -> str:
    return run("step", line.split(), Context("%%aml_step", cell=cell, namespace=namespace)).text


def test_step_says_what_it_takes_and_makes() -> None:
    text = define("train --in data --out model --target box", "model = fit(data, n)", fit=len, n=3)
    assert "data" in text and "model" in text and "box" in text and "n" in text
    assert list(steps.defined()["train"].spec.values) == ["n"]
    assert "train" in run("pipeline", [], Context("%aml_pipeline")).text


def test_name_of_notebook_does_not_hide_output_of_step() -> None:
    define("train --in data --out size", "size = len(data)", data=[1, 2, 3])
    assert "data" not in steps.defined()["train"].spec.values


@pytest.mark.parametrize(
    ("line", "cell", "word"),
    [
        ("1st", "a = 1", "name"),
        ("ok --in a-b", "a = 1", "output"),
        ("ok --out b", "a = 1", "b"),
        ("ok --in data", "print(date)", "date"),
        ("ok --in data", "data = 3\nprint(data)", "data"),
    ],
)
def test_mistake_in_step_is_one_line(line: str, cell: str, word: str) -> None:
    with pytest.raises(AmlTrainError, match=word) as caught:
        define(line, cell)
        run("pipeline", ["submit", "--dry-run"], Context("%aml_pipeline"))
    assert "\n" not in str(caught.value)


def planned(*words: str) -> list[str]:
    """The lines of the steps that a dry run prints."""
    text = run("pipeline", ["submit", *words, "--dry-run"], Context("%aml_pipeline")).text
    return [line for line in text.splitlines() if line.startswith(("prep ", "use "))]


def test_dry_run_prints_the_steps_in_order_and_what_becomes_of_them(api: Any) -> None:
    define("prep --out data", "data = 1")
    define("use --in data", "print(data)")
    prep, use = planned("use", "prep")
    assert prep.split() == ["prep", "local", "data", "run"] and "prep.data" in use and "unless prep" in use
    assert all("--no-reuse" in line for line in planned("--no-reuse"))
    prep, use = planned("--from", "use")
    assert "--from" not in prep and "--from use" in use
    prep, use = planned("--only", "use")
    assert "fail" in prep and "--only use" in use
    data = run("pipeline", ["submit", "--dry-run"], Context("%aml_pipeline")).data
    assert [step["name"] for step in data["steps"]] == ["prep", "use"]
    with pytest.raises(AmlTrainError, match="none of the steps"):
        run("pipeline", ["submit", "use", "--dry-run"], Context("%aml_pipeline"))


@pytest.mark.thorough
def test_notebook_runs_pipeline_shows_its_graph_and_gets_its_value(tmp_path: Path) -> None:
    folder = tmp_path / "notebook"  # `no_steps` has its own home in tmp_path
    folder.mkdir()
    with kernel_of(folder) as live:
        live.run("def double(x):\n    return [2 * one for one in x]\nrows = [1, 2, 3]")
        live.run("%%aml_step prep --out data --gpus 0\ndata = double(rows)")
        live.run("%%aml_step total --in data --out total --gpus 0\ntotal = sum(data)")
        shown = live.run("%aml_pipeline submit --wait")
        assert not shown.error
        assert live.run("print(total, end='')").stdout == "12"
        assert live.run("%aml_pipeline submit --dry-run").stdout.count("be reused") == 2
        live.run("rows = [1, 2, 4]")
        live.run("%%aml_step prep --out data --gpus 0\ndata = double(rows)")
        shown = live.run("%aml_pipeline submit --dry-run").stdout
        assert "be reused" not in shown and "unless prep" in shown
        live.run("%aml_pipeline submit --wait --as pipe")
        assert live.run("print(total, [c.reused for c in pipe.children()], end='')").stdout == "14 [False, False]"
