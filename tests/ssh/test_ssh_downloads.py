"""Inputs that are web addresses on a machine over SSH: its agent downloads them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.web_server import serving
from tools.openssh import Sshd

from .test_ssh_runs import attach


@pytest.mark.thorough
def test_web_input_is_downloaded_on_that_machine(api: Any, sshd: Sshd, home: Path, remote_home: Path) -> None:
    attach(api, sshd)
    with serving() as web:
        script = "import os\npath = os.environ['AML_INPUT_DATA']\nprint(path, open(path).read())\n"
        run = api.submit(script, target="box", inputs={"data": web.url}, gpus=0).wait(120)
        assert f"{remote_home}/runs/{run.run_id}/inputs/data/table.csv a,b" in run.logs()
        assert run.read_provenance().inputs["data"].bytes == len(web.content)
        api.submit(script, target="box", inputs={"data": web.url}, gpus=0).wait(120)
        assert web.sent == len(web.content)
    assert list((remote_home / "data").iterdir()) and not (home / "data").exists()
