"""A backend in a package of its own, ``tests/plugin``: listed, completed, in the form; its runs pass the contract."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain import plugins
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.target_kinds import backend_class, forms, target_kinds
from jupyter_amltrain.errors import MissingDependency
from jupyter_amltrain.jobs.snapshot import Snapshot, take_snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.plugins import GROUP
from jupyter_amltrain.schema.job import JobSpec, Resources
from jupyter_amltrain.state_dir import StateRoot

from ..contracts.backend import BackendContract

PLUGIN = Path(__file__).parents[1] / "plugin"


def registered(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Register entry points by name, in place of those of the installed packages."""
    found = [importlib.metadata.EntryPoint(name, value, GROUP) for name, value in points.items()]
    monkeypatch.setattr(plugins, "_entry_points", lambda: iter(found))
    plugins.kinds.cache_clear()


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(PLUGIN))
    registered(monkeypatch, folder="amltrain_folder:KIND")
    yield
    plugins.kinds.cache_clear()


@pytest.fixture
def loop(home: Path) -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.fixture
def backend(plugin: None, loop: LoopThread, home: Path, tmp_path: Path) -> Iterator[Backend]:
    (tmp_path / "shelf").mkdir()
    (kind,) = (one for one in target_kinds() if one.__struct_config__.tag == "folder")
    make: Any = backend_class("folder")
    made = make(kind(name="shelf", folder=str(tmp_path / "shelf")), loop, StateRoot(home))  # type: ignore[call-arg]
    yield made
    loop.call(made.close())


class TestFolderBackend(BackendContract):
    def _job(self, name: str, text: str) -> tuple[JobSpec, Snapshot]:
        spec = JobSpec(name=name, script=text, python=sys.executable, resources=Resources(gpus=0), secrets=("TOKEN",))
        return spec, take_snapshot(spec.script_name, text, root=Path.cwd())

    def short(self) -> tuple[JobSpec, Snapshot]:
        return self._job("short", "print('one line')\nprint('and the end')\n")

    def long(self) -> tuple[JobSpec, Snapshot]:
        return self._job("long", "import time\nprint('here')\ntime.sleep(600)\n")


def test_form_of_plugin_has_its_fields(plugin: None) -> None:
    form = next(form for form in forms() if form.kind == "folder")
    assert form.verb == "attach" and [field.name for field in form.fields][-2:] == ["folder", "nice"]


@pytest.mark.parametrize("value", ["no_such_module:KIND", "json:dumps", "amltrain_folder:NOTHING"])
def test_broken_plugin_leaves_the_others_usable(plugin: None, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    registered(monkeypatch, quantum=value, folder="amltrain_folder:KIND", again="amltrain_folder:KIND")
    assert {"ssh", "folder"} <= {form.kind for form in forms()}
    with pytest.raises(MissingDependency, match="quantum.*cannot be used"):
        backend_class("quantum")


#: A first kernel: attaches the target, runs, cancels; a second one finds both runs.
FIRST = """
import json, sys
import jupyter_amltrain.api as aml
from jupyter_amltrain.commands.registry import parser_of
found = aml.act("attach", "shelf", kind="folder", values={"folder": sys.argv[1], "nice": 3})
assert not found.errors, found.errors
row = next(row for row in aml.compute_rows(20) if row.name == "shelf")
done = aml.submit("import os\\nprint('niceness', os.nice(0))", target="shelf", gpus=0, name="short").wait()
long = aml.submit("import time\\nprint('up', flush=True)\\ntime.sleep(600)", target="shelf", gpus=0, name="long")
while "up" not in long.logs(): pass
print(json.dumps({"row": [row.kind, row.title], "log": done.logs(), "runs": [done.handle, long.handle]}))
"""
SECOND = """
import json, sys
import jupyter_amltrain.api as aml
done, long = (aml.attach(handle) for handle in sys.argv[2:])
long.cancel()
try: long.wait()
except Exception as error: kind = type(error).__name__
print(json.dumps({"log": done.logs(), "states": [run.record().state for run in (done, long)], "error": kind,
                  "folder": done.record().log.path}))
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder into which the package was installed."""
    place = tmp_path / "site"
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation", "--target", place]
    subprocess.run([*map(str, command), "--python", sys.executable, str(PLUGIN)], check=True, timeout=120)
    return place


@pytest.mark.thorough
def test_installed_plugin_runs_cancels_and_reattaches(installed: Path, home: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(installed)}

    def kernel(code: str, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-c", code, str(shelf), *words]
        done = subprocess.run(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=240)
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout.splitlines()[-1])

    first = kernel(FIRST)
    assert first["row"] == ["folder", "Folder"] and first["log"].strip() == f"niceness {os.nice(0) + 3}"
    second = kernel(SECOND, *first["runs"])
    assert second["states"] == ["completed", "canceled"] and second["error"] == "RunCanceled"
    assert second["log"] == first["log"] and second["folder"].startswith(str(shelf))


#: What Tab offers, and the help of the command line.
OFFERS = """
import json, sys
from jupyter_amltrain.commands.completion import CompletionNames, complete
class Names(CompletionNames):
    def refresh(self, deadline=0): return self
    def targets(self): return []
found = [complete("compute", line, Names()).offers for line in ("attach x --kind ", "attach x --fol")]
print(json.dumps([offer.text for offers in found for offer in offers]))
"""


@pytest.mark.thorough
def test_plugin_is_in_completion_and_command_line(installed: Path, home: Path, tmp_path: Path) -> None:
    def output(*words: str, path: str = "") -> str:
        environ = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, *words]
        return subprocess.run(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=120).stdout

    with_plugin, without = (json.loads(output("-c", OFFERS, path=path)) for path in (str(installed), ""))
    assert {"folder", "--folder"} <= set(with_plugin) and not {"folder", "--folder"} & set(without)
    help_ = output("-m", "jupyter_amltrain.cli", "compute", "attach", "--help", path=str(installed))
    assert "--folder PATH" in help_ and "Folder for the runs" in help_
