"""Data in lines of a notebook: web addresses with secrets, and ``%aml_data`` without a workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain.errors import AmlTrainError
from tests.web_server import serving

from .conftest import Cell

Fails = Callable[[str], AmlTrainError]


def test_secret_of_line_reaches_server_only(
    ip: InteractiveShell, cell: Cell, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNATURE", "s3cr3t")
    with serving() as web:
        flags = f'--secret SIGNATURE --input "data={web.url}?sig=${{SIGNATURE}}" --gpus 0 --as run --wait'
        cell(f"%%aml_submit {flags}\nimport os\nprint(open(os.environ['AML_INPUT_DATA']).read())")
        assert "sha256" in ip.user_ns["run"].logs() and "1,2" in ip.user_ns["run"].logs()
        assert web.requests[0][1].endswith("?sig=s3cr3t")
        ip.user_ns["name"] = "two"
        cell(f"%%aml_submit --name $name {flags.replace('${SIGNATURE}', '${{SIGNATURE}}')}\npass")
        assert ip.user_ns["run"].run.spec.name == "two" and len(web.requests) == 2
        run = ip.user_ns["run"]
        cell(f"%aml_runs show {run.handle}")
        cell(f"%aml_runs again {run.handle} --wait")
    output = capsys.readouterr().out
    assert "s3cr3t" not in output + repr(run.record())


def test_data_line_without_workspace_names_connect(fails: Fails) -> None:
    for line in ("%aml_data", "%aml_data show digits", "%aml_data list --workspace lab"):
        assert "connect" in str(fails(line))
