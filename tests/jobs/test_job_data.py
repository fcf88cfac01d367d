"""Inputs and outputs of a run on this machine, and run again with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.commands import magic_line, submit
from jupyter_amltrain.commands.resubmit import resubmit
from jupyter_amltrain.errors import SpecError

from ..helpers import api_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

CODE = """
import os
lines = open(os.environ["AML_INPUT_DATA"]).read().split()
rate = os.environ["AML_INPUT_RATE"]
with open(os.path.join(os.environ["AML_OUTPUT_MODEL"], "weights.txt"), "w") as file:
    file.write("learned")
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("data")) as module:
        Path("train data.txt").write_text("1 2 3\n")
        yield module


def test_script_reads_named_inputs(api: Any) -> None:
    run = api.submit(
        CODE, out=["lines", "rate"], gpus=0, inputs={"data": "train data.txt", "rate": 0.5}, outputs=["model"]
    ).wait(60)
    assert run.state == "completed" and run.result("lines") == ["1", "2", "3"] and run.result("rate") == "0.5"
    made = Path(run.run.folder) / "outputs" / "model"
    assert (made / "weights.txt").read_text() == "learned" and made.stat().st_mode & 0o777 == 0o700
    spec, _ = resubmit(run.run, run.reader)
    assert msgspec.structs.replace(spec, repeats="") == run.run.spec and spec.inputs["data"].path == str(
        Path("train data.txt").resolve()
    )


def test_input_flags_equal_function_arguments(api: Any) -> None:
    line = '--gpus 0 --input "data=train data.txt" --input rate=0.5,literal --output model --out lines --wait'
    args = submit.parse_submit(magic_line.split(line), CODE)
    run = submit.send(args).wait(60)
    assert run.state == "completed" and run.result("lines") == ["1", "2", "3"]


def test_unsupported_local_job_is_refused_without_run(api: Any) -> None:
    before = len(api.runs())
    for more, message in (
        ({"nodes": 2}, "--nodes 2"),
        ({"environment": "conda.yml"}, "--env "),
        ({"inputs": {"data": "nothing-there"}}, "no such file or folder"),
        ({"services": ["jupyterlab"]}, "--service jupyterlab"),
        ({"outputs": {"m": "azureml://x"}}, "--output m=azureml://x"),
    ):
        with pytest.raises(SpecError) as caught:
            api.submit("pass", **more)
        assert message in str(caught.value)
    assert len(api.runs()) == before
