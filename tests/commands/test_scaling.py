"""`--scaling` in a line: what it contradicts."""

from __future__ import annotations

import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError

CELL = "print(1)\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--scaling 2,1", "scaling.value"),
        ("--scaling x", "scaling.value"),
        ("--scaling-time 60s", "scaling.value"),
        ("--scaling-steps 5", "scaling.value"),
        ("--scaling 1,2 --scaling-time soon", "flag.value"),
        ("--scaling 1,2 --save job.yml", "scaling.contradiction"),
        ("--scaling 1,2 --dry-run --yaml", "scaling.contradiction"),
        ("--scaling 1,2 --processes 2", "scaling.contradiction"),
        ("--scaling 1,2 --nodes 2", "scaling.contradiction"),
    ],
)
@pytest.mark.usefixtures("api")
def test_line_that_contradicts_itself_is_an_error_in_one_line(line: str, code: str) -> None:
    with pytest.raises(CommandError) as raised:
        run("submit", line.split(), Context(prog="%%aml_submit", cell=CELL))
    assert raised.value.code == code and "\n" not in str(raised.value)


@pytest.mark.usefixtures("api")
def test_job_file_is_refused() -> None:
    with open("job.yml", "w") as file:
        file.write("type: command\ncommand: python train.py\ncompute: azureml:cpu\n")
    with pytest.raises(CommandError) as raised:
        run("submit", ["job.yml", "--target", "local", "--scaling", "1,2"], Context(prog="%aml_submit"))
    assert raised.value.code == "scaling.contradiction"
