"""Official examples of Azure ML on this machine, unchanged: those that run, and the others with their reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.submit import parse_submit, send
from jupyter_amltrain.errors import AmlTrainError

from .azure.official_examples import EXAMPLES, NOT_ON_THIS_MACHINE, ON_THIS_MACHINE, SOURCE, here
from .helpers import DEADLINE

REFUSED = sorted(name for name in EXAMPLES if here(name) not in ("runs", "needs the web"))


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy: jobs write beside their files."""
    return Path(shutil.copytree(SOURCE, tmp_path / "examples"))


def test_lists_of_examples_name_every_file_once() -> None:
    assert set(ON_THIS_MACHINE) | set(NOT_ON_THIS_MACHINE) <= set(EXAMPLES)
    assert not set(ON_THIS_MACHINE) & set(NOT_ON_THIS_MACHINE)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ON_THIS_MACHINE)
def test_example_runs_on_this_machine(name: str, examples: Path, api: Any) -> None:
    run = send(parse_submit([str(examples / name), "--target", "local"])).wait(DEADLINE)
    assert run.state == "completed" and EXAMPLES[name].says.lower() in run.logs().lower()
    if "world-output" in name:
        assert any(file.path.startswith("outputs/") and file.path.endswith(".txt") for file in run.files())


@pytest.mark.thorough
@pytest.mark.parametrize("name", REFUSED)
def test_example_for_a_service_is_refused_in_one_line(name: str, examples: Path, api: Any) -> None:
    with pytest.raises(AmlTrainError) as caught:
        send(parse_submit([str(examples / name), "--target", "local"]))
    assert "\n" not in str(caught.value) and not api.runs()
