"""Folders whose names are not UTF-8: the agent takes them as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.protocol import read_json, write_json

from .conftest import Agent, until

ODD = os.fsdecode(b"caf\xe9 \xff\n")
STEADY = 60.0
TELL = "import os, sys; print(os.fsencode(os.getcwd())); print(os.fsencode(os.environ['AML_OUTPUT_DIR']))"


def make(folder: Path) -> Path:
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"needs a file system that accepts the name: {error}")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["home", "queue", "both"])
def test_run_with_non_utf8_state_root_completes(agent: Agent, kind: str) -> None:
    odd = make(agent.folder / ODD)
    agent.home = str(odd / "home") if kind != "queue" else agent.home
    agent.queue = str(odd / "queue") if kind != "home" else agent.queue
    run = agent.submit(TELL)
    assert agent.wait(run, STEADY)["state"] == "completed"
    first, second = agent.log(run).splitlines()
    assert first == repr(os.fsencode(agent.run_folder(run) / "source"))
    assert second == repr(os.fsencode(agent.run_folder(run) / "outputs"))
    job = json.loads((agent.run_folder(run) / "job.json").read_bytes())
    assert job["cwd"] == str(agent.run_folder(run) / "source")
    long = agent.submit("import time; print('up'); time.sleep(600)")
    agent.running(long, "up")
    agent.good("cancel", run=long)
    assert agent.wait(long, STEADY)["state"] == "canceled"
    agent.kill_dispatcher()  # the next one reads the paths from the disk
    assert {row["run"] for row in agent.good("list")["runs"]} == {run, long}
    assert agent.wait(agent.submit("pass"), STEADY)["state"] == "completed"
    until(lambda: not agent.left(), "the last process", STEADY)


def test_run_with_non_utf8_folders_finds_them(agent: Agent) -> None:
    odd = str(make(agent.folder / ODD))
    code = TELL + "; print(os.environb[b'AML_NOTEBOOK_DIR']); print(os.environb[b'X'])"
    run = agent.submit(code, cwd=odd, notebook_dir=odd, project=odd, env={"X": odd})
    assert agent.wait(run, STEADY)["state"] == "completed", agent.state(run)
    lines = agent.log(run).splitlines()
    assert lines[0] == lines[2] == lines[3] == repr(os.fsencode(odd))


def test_agent_command_line_accepts_non_utf8_state_root(agent: Agent) -> None:
    home = str(make(agent.folder / ODD) / "home")
    done = subprocess.run(
        [sys.executable, "-I", "-S", agent.zipapp, "call", "ping", home, agent.queue],
        input=b"{}",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pid"] == agent.dispatcher()


@pytest.mark.parametrize("text", [ODD, "é", "\ud800", "\0", "\U0001f600"])
def test_json_file_round_trip_keeps_any_text(tmp_path: Path, text: str) -> None:
    path = str(tmp_path / "x.json")
    write_json(path, {"schema": 1, text: [text]})
    assert read_json(path) == {"schema": 1, text: [text]}
    (tmp_path / "x.json").read_bytes().decode("utf-8")
