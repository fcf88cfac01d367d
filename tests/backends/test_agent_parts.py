"""Parts of plug-ins that travel with the agent: packed into its file, reached by a call and by a command."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain import plugins
from jupyter_amltrain.agent import calls, guests
from jupyter_amltrain.backends import agent_zipapp
from jupyter_amltrain.plugins import BackendKind

#: A package whose calls say where the agent's own modules come from.
PART = """
from jupyter_amltrain.agent import protocol
CALLS = {"where": lambda context, payload: {"module": protocol.__name__, "home": context.home, **payload}}
def main(argv):
    print(protocol.__name__, *argv)
    return 7
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The agent's file with the part ``lab`` of a plug-in."""
    package = tmp_path / "site" / "amltrain_lab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "node").mkdir()
    (package / "node" / "__init__.py").write_text(PART)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    kind = BackendKind("", "", parts=(("agent", "amltrain_lab.node:lab"),))
    monkeypatch.setattr(plugins, "kinds", lambda: plugins.Kinds((kind,), {}))
    plugins.agent_parts.cache_clear()
    yield agent_zipapp.build(tmp_path / "home")
    plugins.agent_parts.cache_clear()
    guests.clear()


def test_part_is_packed_with_imports_of_the_archive(agent: Path) -> None:
    text = zipfile.ZipFile(agent).read("amltrain_guests/lab/__init__.py").decode()
    assert "from amltrain_agent import protocol" in text


def test_call_and_command_of_part_are_reached_in_the_file(agent: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-I", str(agent)]
    done = subprocess.run([*command, "call", "lab.where", str(tmp_path)], input=b'{"n": 1}', capture_output=True)
    assert json.loads(done.stdout) == {"module": "amltrain_agent.protocol", "home": str(tmp_path), "n": 1}
    done = subprocess.run([*command, "guest", "lab", "a", "b"], capture_output=True)
    assert done.returncode == 7 and done.stdout.split() == [b"amltrain_agent.protocol", b"a", b"b"]


def test_call_of_registered_part_is_reached_in_this_process(agent: Path, tmp_path: Path) -> None:
    guests.register("lab", "amltrain_lab.node")
    assert calls.call("lab.where", {}, str(tmp_path))["module"] == "jupyter_amltrain.agent.protocol"


@pytest.mark.parametrize("op", ["lab.nothing", "other.where", ".where", "lab.", "a-b.c"])
def test_call_that_no_part_has_is_refused(agent: Path, tmp_path: Path, op: str) -> None:
    guests.register("lab", "amltrain_lab.node")
    assert calls.call(op, {}, str(tmp_path))["error"]["type"] == "ProtocolError"
