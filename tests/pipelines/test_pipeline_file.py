"""Pipeline files of ``az ml`` on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import AmlTrainError, SpecError
from jupyter_amltrain.pipelines.pipeline_file import steps_of_file
from jupyter_amltrain.pipelines.steps import Need
from jupyter_amltrain.schema import az_yaml, az_yaml_job

from ..helpers import DEADLINE, api_of
from .shapes import ran

FILE = """
type: pipeline
display_name: words
inputs:
  greeting: hello
  table:
    type: uri_file
    path: table.csv
jobs:
  make:
    command: echo ${{inputs.word}} > ${{outputs.file}}; cat ${{inputs.table}} >> ${{outputs.file}}
    inputs:
      word: ${{parent.inputs.greeting}}
      table: ${{parent.inputs.table}}
    outputs:
      file:
        type: uri_file
  count:
    type: command
    component: count.yml
    inputs:
      text: ${{parent.jobs.make.outputs.file}}
"""
COMPONENT = """
type: command
inputs:
  text:
    type: uri_file
  times:
    type: integer
    default: 3
  more:
    type: string
    optional: true
outputs:
  result:
    type: uri_folder
code: src
command: python count.py ${{inputs.text}} ${{inputs.times}} $[[--more ${{inputs.more}}]] > ${{outputs.result}}/out.txt
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("files"), AMLTRAIN_CPU_SLOTS="4") as module:
        yield module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.yml").write_text(FILE)
    (tmp_path / "count.yml").write_text(COMPONENT)
    (tmp_path / "table.csv").write_text("1,2\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "count.py").write_text("import sys\nprint(len(open(sys.argv[1]).read()) * int(sys.argv[2]))\n")
    return tmp_path


def steps(path: Path, **params: Any) -> dict[str, Any]:
    spec = az_yaml_job.spec_of_line(az_yaml.load(path), params, {})
    return {one.name: one for one in steps_of_file(spec)}


def test_steps_take_inputs_of_pipeline_of_component_and_of_each_other(folder: Path) -> None:
    found = steps(folder / "pipeline.yml", greeting="bye")
    assert found["make"].spec.inputs["word"].value == "bye"
    assert found["make"].spec.inputs["table"].path == str(folder / "table.csv")
    assert found["count"].needs == (Need("text", "make", "file"),)
    assert found["count"].spec.inputs["times"].value == 3 and "more" not in found["count"].spec.command
    assert found["count"].spec.source == str(folder / "src")


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["submit", "pipeline"])
def test_file_runs_here_and_its_steps_are_reused(api: Any, folder: Path, verb: str) -> None:
    words = ["submit", str(folder / "pipeline.yml")] if verb == "pipeline" else [str(folder / "pipeline.yml")]
    words += ["--target", "local", "--param", f"table={folder / f'{verb}.csv'}"]
    (folder / f"{verb}.csv").write_text(f"{verb[:3]}\n")  # what one way has run, the other one would reuse
    first = run(verb, words, Context(f"%aml_{verb}")).value.wait(DEADLINE)
    (count,) = (child for child in first.children() if child.name == "count")
    assert api.attach(count.handle).files()["outputs/result/out.txt"].read() == b"30\n"
    again = run(verb, [*words, "--param", "greeting=hello!"], Context(f"%aml_{verb}")).value.wait(DEADLINE)
    assert ran(again) == {"make", "count"}
    assert ran(run(verb, words, Context(f"%aml_{verb}")).value.wait(DEADLINE)) == set()


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("command: echo", "type: spark\n    command: echo", "spark"),
        ("component: count.yml", "component: azureml:count:1", "workspace"),
        ("parent.jobs.make.outputs.file", "parent.jobs.gone.outputs.file", "gone"),
        ("parent.jobs.make.outputs.file", "parent.jobs.make.outputs.gone", "gone"),
        ("parent.inputs.greeting", "parent.inputs.gone", "gone"),
        ("jobs:", "joobs:", "steps"),
    ],
)
def test_what_only_the_service_can_run_is_refused_in_one_line(
    api: Any, folder: Path, old: str, new: str, word: str
) -> None:
    path, before = folder / "pipeline.yml", len(api.runs())
    path.write_text(FILE.replace(old, new))
    with pytest.raises(AmlTrainError, match=word) as caught:
        run("pipeline", ["submit", str(path), "--target", "local"], Context("%aml_pipeline"))
    assert "\n" not in str(caught.value) and len(api.runs()) == before


def test_address_of_output_is_a_note_and_the_files_stay_with_the_run(folder: Path) -> None:
    new = "type: uri_file\n        path: azureml://datastores/d/paths/p\n  count"
    (folder / "pipeline.yml").write_text(FILE.replace("type: uri_file\n  count", new))
    (note,) = steps(folder / "pipeline.yml")["make"].spec.notes
    assert "azureml://datastores/d" in note


def test_error_names_line_of_file(folder: Path) -> None:
    text = FILE.replace("component: count.yml", "component: azureml:count:1")
    (folder / "pipeline.yml").write_text(text)
    number = text[: text.index("azureml:count:1")].count("\n") + 1
    with pytest.raises(SpecError, match=f"line {number}"):
        steps(folder / "pipeline.yml")
