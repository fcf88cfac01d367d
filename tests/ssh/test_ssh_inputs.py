"""Files and folders as inputs of runs on another machine: its own, and those that are sent to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError, PreflightError
from tools.openssh import Sshd

from .test_ssh_runs import attach

READ = """import os
for at, _, names in sorted(os.walk(os.environ['AML_INPUT_DATA'])):
    for name in sorted(names):
        path = os.path.join(at, name)
        print(os.path.relpath(path, os.environ['AML_INPUT_DATA']), open(path).read(), oct(os.stat(path).st_mode)[-3:])
"""


@pytest.mark.thorough
def test_path_is_one_of_that_machine(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    attach(api, sshd)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.txt").write_text("one")
    run = api.submit(READ, target="box", inputs={"data": str(tmp_path / "there")}, gpus=0).wait(60)
    assert "a.txt one" in run.logs()
    file = api.submit(
        "print(open(__import__('os').environ['AML_INPUT_DATA']).read())",
        target="box",
        inputs={"data": str(tmp_path / "there" / "a.txt")},
        gpus=0,
    ).wait(60)
    assert "one" in file.logs() and not file.read_provenance().inputs  # nobody has read it there


def test_path_that_is_missing_there_is_refused_before_the_start(
    api: Any, sshd: Sshd, remote_home: Path, tmp_path: Path
) -> None:
    attach(api, sshd)
    before = set(remote_home.glob("runs/*"))
    with pytest.raises(PreflightError) as refused:
        api.submit("x = 1", target="box", inputs={"data": "/not/there"}, gpus=0)
    assert refused.value.code == "data.missing" and "box" in str(refused.value) and "upload" not in str(refused.value)
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError) as folder:
        api.submit("x = 1", target="box", inputs={"data": f"{tmp_path / 'file'},uri_folder"}, gpus=0)
    assert folder.value.code == "data.type" and "uri_file" in str(folder.value)
    assert set(remote_home.glob("runs/*")) == before


@pytest.mark.thorough
def test_folder_is_sent_once_by_content(api: Any, sshd: Sshd, remote_home: Path, tmp_path: Path) -> None:
    attach(api, sshd)
    data = tmp_path / "mine"
    (data / "parts").mkdir(parents=True)
    (data / "a.txt").write_text("one")
    (data / "parts" / "b.txt").write_text("two")

    def logs() -> str:
        return str(api.submit(READ, target="box", inputs={"data": f"{data},upload"}, gpus=0).wait(60).logs())

    first = logs()
    assert "a.txt one 400" in first and "parts/b.txt two 400" in first
    kept = next((remote_home / "data").glob("*/*/mine")).parents[1] / "record.json"
    before = kept.stat().st_mtime_ns
    count = len(list((remote_home / "data").iterdir()))
    assert logs() == first and len(list((remote_home / "data").iterdir())) == count
    assert kept.stat().st_mtime_ns > before  # kept for longer
    (data / "a.txt").write_text("three")
    assert "a.txt three 400" in logs() and not list((remote_home / "staging").iterdir())
    assert len(list((remote_home / "data").iterdir())) == count + 1


@pytest.mark.thorough
def test_file_that_is_sent_is_recorded(api: Any, sshd: Sshd, remote_home: Path, tmp_path: Path) -> None:
    attach(api, sshd)
    (tmp_path / "table.csv").write_text("a,b\n")
    script = "import os; path = os.environ['AML_INPUT_DATA']; print(path, open(path).read())"
    run = api.submit(script, target="box", inputs={"data": f"{tmp_path / 'table.csv'},upload"}, gpus=0).wait(60)
    assert f"{remote_home}/runs/{run.run_id}/inputs/data/table.csv a,b" in run.logs()
    digest = run.read_provenance().inputs["data"]
    assert (digest.files, digest.bytes) == (1, 4) and digest.sha256
    (tmp_path / "table.csv").unlink()
    with pytest.raises(CommandError, match="table.csv"):
        api.submit(script, target="box", inputs={"data": f"{tmp_path / 'table.csv'},upload"}, gpus=0)


@pytest.mark.thorough
def test_data_that_was_removed_there_is_sent_again(api: Any, sshd: Sshd, remote_home: Path, tmp_path: Path) -> None:
    attach(api, sshd)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("one")
    for _ in range(2):
        run = api.submit(READ, target="box", inputs={"data": f"{tmp_path / 'mine'},upload"}, gpus=0).wait(60)
        assert "a.txt one" in run.logs()
        for path in (remote_home / "data").glob("*/*/mine/a.txt"):
            path.unlink()
