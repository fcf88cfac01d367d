from __future__ import annotations

import ast
import compileall
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands.registry import Context, Result, run
from jupyter_amltrain.commands.template import TEMPLATES, template_of
from jupyter_amltrain.errors import CommandError, PreflightError

from ..helpers import DEADLINE, api_of


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("template")) as api:
        yield api


def dotted_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEMPLATES)
def test_template_compiles_and_imports_only_its_packages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    template = template_of(name)
    (tmp_path / "cell.py").write_text(template.text)
    assert compileall.compile_file(tmp_path / "cell.py", quiet=1)
    assert template.modules - {"os", "mlflow"} == set(template.packages)
    for module, attribute in dotted_names(ast.parse(template.text)):
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            found = importlib.import_module(module)
            assert not attribute or hasattr(found, attribute)
    assert 'os.environ["AML_OUTPUT_DIR"]' in template.text and "mlflow.log_metric" in template.text


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_is_a_cell_that_a_submit_takes(api: Any, name: str) -> None:
    line, _, cell = template_of(name).cell.partition("\n")
    words = magic_line.split(line.removeprefix("%%aml_submit"))
    try:
        result = run("submit", [*words, "--gpus", "0", "--dry-run"], Context(prog="%%aml_submit", cell=cell))
    except PreflightError as error:  # on a machine without the framework
        assert error.code == "interpreter.missing_modules" and "--pip" in error.hint
        return
    assert '"argv"' in result.text


@pytest.mark.thorough
def test_sklearn_template_trains_and_saves_a_model(api: Any) -> None:
    line, _, cell = template_of("sklearn").cell.partition("\n")
    context = Context(prog="%%aml_submit", cell=cell)
    context.submitted = lambda run, submission: Result(value=run.wait(2 * DEADLINE))
    words = magic_line.split(line.removeprefix("%%aml_submit"))
    ended = run("submit", [*words, "--param", "c=2"], context).value
    assert ended.result("accuracy") > 0.95 and ended.metrics()["accuracy"][0][2] == ended.result("accuracy")
    assert (Path(ended.run.folder) / "outputs" / "model.joblib").stat().st_size > 1000


def test_template_is_inserted_in_a_notebook_and_printed_elsewhere() -> None:
    cells: list[str] = []
    words = ["--template", "sklearn"]
    run("submit", words, Context(prog="%aml_submit", insert_cell=cells.append))
    assert cells[0].startswith("%%aml_submit ")
    assert run("submit", words, Context(prog="%aml_submit")).text == cells[0]
    shell = run("submit", words, Context(prog="amltrain submit")).text
    assert shell.startswith("# %%aml_submit ") and compile(shell, "train.py", "exec")


def test_template_names_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    for module in ("torch", "ray"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert "torch" in template_of("pytorch").missing() and "ray[rllib]" in template_of("ray-rllib").missing()


def test_unknown_template_is_refused_with_a_near_name() -> None:
    with pytest.raises(CommandError) as caught:
        run("submit", ["--template", "sklern"], Context(prog="%aml_submit"))
    assert caught.value.code == "template.unknown" and "sklearn" in caught.value.hint
