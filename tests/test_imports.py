"""What may be imported where: kernels without Unix modules, kernels that stay light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .helpers import kernel_of

BLOCKED = """
import importlib, json, pkgutil, sys

BLOCKED = {"fcntl", "pwd", "grp", "resource", "termios", "inotify_simple"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in BLOCKED & sys.modules.keys():
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
import jupyter_amltrain
OURS = ("jupyter_amltrain.agent", "jupyter_amltrain.backends.transport")
done, failed = [], {}
for module in pkgutil.walk_packages(jupyter_amltrain.__path__, "jupyter_amltrain."):
    if module.name.startswith(OURS) or module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        done.append(module.name)
    except Exception as error:
        failed[module.name] = f"{type(error).__name__}: {error}"
print(json.dumps({"done": done, "failed": failed, "there": sorted(BLOCKED & sys.modules.keys())}))
"""

#: What a kernel must not have to import for us.
HEAVY = ("mlflow", "azure", "pynvml", "matplotlib", "pandas", "sklearn", "torch")


@pytest.mark.thorough
def test_package_without_unix_modules_imports(tmp_path: Path) -> None:
    env = {**os.environ, "AMLTRAIN_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == {} and found["there"] == []
    names = {name.removeprefix("jupyter_amltrain.") for name in found["done"]}
    assert {
        "magics",
        "api",
        "cli",
        "kernel.controller",
        "commands.submit",
        "commands.runs",
        "commands.compute",
    } <= names
    assert {
        "backends.agent_backend",
        "frontend.control",
        "output.mime",
        "tracking.importer",
        "tracking.worker",
    } <= names


def test_package_import_loads_no_submodule() -> None:
    code = "import sys, jupyter_amltrain; print([m for m in sys.modules if m.startswith('jupyter_amltrain.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with kernel_of(tmp_path_factory.mktemp("imports"), load=False) as started:
        yield started


def modules(live: Any) -> set[str]:
    return set(json.loads(live.run("import sys, json; print(json.dumps(sorted(sys.modules)))").stdout))


def test_load_ext_imports_only_light_modules(live: Any) -> None:
    before = modules(live)
    live.run("%load_ext jupyter_amltrain")
    added = modules(live) - before
    light = {*HEAVY, "msgspec", "bqplot", "ipywidgets", "keyring", "numpy", "asyncio.unix_events", "filelock"}
    assert not {name for name in added if name.partition(".")[0] in light}
    assert len(added) < 40, sorted(added)

    cell = live.run("%%aml_submit --wait --out n\nn = 1")
    assert cell.status == "ok"
    live.run("run = %aml_runs last\n_ = run.record(), run.metrics(), run.result('n')")
    live.run("%aml_runs\n%aml_compute")
    added = modules(live) - before
    assert not {name for name in added if name.partition(".")[0] in HEAVY}
    assert "jupyter_amltrain.kernel.controller" in added


@pytest.mark.thorough
def test_cell_after_the_first_submit_meets_no_half_of_numpy(tmp_path: Path) -> None:
    with kernel_of(tmp_path) as live:
        # Nothing runs between the submit and the look, so that a thread's import would not be at its end.
        text = "%%aml_submit --gpus 0\npass"
        look = "import sys\nprint(hasattr(sys.modules.get('numpy'), 'isscalar'))"
        assert live.run(f"get_ipython().run_cell({text!r})\n{look}").stdout.split()[-1] == "True"
