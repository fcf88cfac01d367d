"""Both ends of the range of azure-ai-ml do a whole day's work: the same lines, the same words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.azure.conftest import Azure
from tools import azure_sdk

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]  # a whole day by ten commands, each with the SDK

SCRIPT = """
import pathlib
pathlib.Path("outputs").mkdir(exist_ok=True)
pathlib.Path("outputs/weights.txt").write_text(str(n))
print("learned", n)
total = n * 2
"""


def installed() -> str:
    import importlib.metadata

    return importlib.metadata.version("azure-ai-ml")


def test_installed_sdk_differs_from_oldest() -> None:
    assert installed() != azure_sdk.VERSION


@pytest.mark.parametrize("version", [azure_sdk.VERSION, "installed"])
def test_sdk_version_runs_whole_day(version: str, azure_env: Azure, home: Path, tmp_path: Path) -> None:
    environ = dict(os.environ)
    if version != "installed":
        folder = azure_sdk.place(version)
        if not folder.is_dir():
            pytest.skip(f"azure-ai-ml {version} is not in build/")
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    output = subprocess.run(
        [sys.executable, "-c", "import azure.ai.ml as m; print(m.__version__)"], env=environ, capture_output=True
    )
    assert output.stdout.decode().strip() == (installed() if version == "installed" else version)

    def amltrain(*words: str, code: int = 0) -> str:
        line = [sys.executable, "-m", "jupyter_amltrain.cli", *words]
        done = subprocess.run(line, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout if "--json" in words else done.stdout + done.stderr

    (tmp_path / "train.py").write_text("import argparse\np = argparse.ArgumentParser()\n"
                                       "p.add_argument('--n', type=int)\nn = p.parse_args().n\n" + SCRIPT)  # fmt: skip
    where = ["--subscription", azure_env.subscription, "--resource-group", azure_env.resource_group]
    assert "Connected to lab" in amltrain("compute", "connect", *where, "--workspace", azure_env.workspace,
                                          "--name", "lab")  # fmt: skip
    assert "is created" in amltrain("compute", "create", "cpus", "--kind", "amlcompute", "--size", "Standard_DS2_v2",
                                    "--max-nodes", "2", "--yes")  # fmt: skip
    box = ["--kind", "instance", "--size", "Standard_DS2_v2", "--idle-shutdown", "60", "--yes"]
    assert "is created" in amltrain("compute", "create", "desk", *box)
    assert "is stopped" in amltrain("compute", "stop", "desk", "--yes")
    assert "NC" in amltrain("compute", "sizes", "--gpu", "--family", "NC")
    assert "free" in amltrain("compute", "quota")
    first = json.loads(amltrain("submit", "train.py", "--target", "cpus", "--param", "n=21", "--name", "first",
                                "--wait", "--json"))  # fmt: skip
    handle = first.get("handle") or first["run"]
    assert "learned 21" in amltrain("runs", "logs", handle)
    # two nodes of the service's own, the SDK's distribution
    again = json.loads(amltrain("submit", "train.py", "--target", "cpus", "--param", "n=1", "--nodes", "2",
                                "--processes", "2", "--wait", "--json"))  # fmt: skip
    log = amltrain("runs", "logs", again.get("handle") or again["run"])
    assert all(f"[rank {rank}] learned 1" in log for rank in range(4)), log
    assert "Registered net:1" in amltrain("model", "register", "net", "--run", handle,
                                             "--path", "outputs/weights.txt")  # fmt: skip
    amltrain("model", "download", "net", "--workspace", "lab", "--to", str(tmp_path / "net"))
    assert [path.read_text() for path in (tmp_path / "net").rglob("*.txt")] == ["21"]
    for name in ("cpus", "desk"):
        amltrain("compute", "delete", name, "--yes")
    assert "Nothing in lab is costing money" in amltrain("compute", "billing")
