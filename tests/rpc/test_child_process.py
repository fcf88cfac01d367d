"""Helper processes: what lies beside the notebook is never theirs to import."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from jupyter_amltrain.azure.client import client_of, close_client
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.rpc import child_process
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.tracking.worker import TrackingWorker
from tests.agent.mlflow_jobs import finish_folder

DEADLINE = 120.0
#: File names that people give to their scripts, and that a helper or one of its libraries imports.
NAMES = (
    "azure",
    "calendar",
    "email",
    "flask",
    "jupyter_amltrain",
    "logging",
    "matplotlib",
    "mlflow",
    "multiprocessing",
    "numpy",
    "queue",
    "random",
    "select",
    "signal",
    "sitecustomize",
    "sqlalchemy",
    "token",
    "typing",
    "usercustomize",
    "uvicorn",
    "yaml",
)


#: Leaves its mark, then stands for the real module, so that each name is seen, not only the first one imported.
PLANTED = """
open({mark!r}, "w").close()
import sys, _frozen_importlib, _frozen_importlib_external
places = [place for place in sys.path if place not in ("", ".", {folder!r})]
spec = _frozen_importlib_external.PathFinder.find_spec(__name__, places)
if spec is not None:
    sys.modules[__name__] = module = _frozen_importlib.module_from_spec(spec)
    spec.loader.exec_module(module)
"""


def plant(folder: Path) -> Path:
    """Put a module of each name into `folder`; returns the folder in which each leaves a file when it runs."""
    ran = folder / "ran"
    ran.mkdir(parents=True)
    for name in NAMES:
        (folder / f"{name}.py").write_text(PLANTED.format(mark=str(ran / name), folder=str(folder)))
    return ran


@pytest.fixture(scope="module")
def helped(tmp_path_factory):
    """What helpers answered that were started in a folder full of planted modules."""
    folder = tmp_path_factory.mktemp("planted")
    notebook, root = folder / "notebook", StateRoot(folder / "home")
    ran = plant(notebook)
    run = folder / "digits-k3f9"
    run.mkdir()
    finish_folder(run)
    loop, worker = LoopThread("test-planted"), TrackingWorker(root)
    answers = {"ran": ran}

    def ask(name, request):
        try:
            answers[name] = loop.call(request, DEADLINE)
        except Exception as error:
            answers[name] = error

    async def ping_azure():
        return await client_of(loop, root).request("process.ping", {})

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(notebook)
        # A trailing colon is an empty entry, which Python takes for the working folder.
        patch.setenv("PYTHONPATH", os.pathsep.join([".", str(notebook), ""]))
        ask("picture", worker.request("picture", {"record": {"name": "digits", "state": "completed"}}))
        payload = {"run_dir": str(run), "project": str(folder), "handle": "local/digits-k3f9"}
        ask("record", worker.request("import_run", payload))
        ask("azure", ping_azure())
        answers["spawned"] = _spawned(notebook, folder)
    yield answers
    loop.call(worker.close(), DEADLINE)
    loop.call(close_client(loop), DEADLINE)
    loop.close()


def _spawned(notebook: Path, folder: Path) -> str:
    """What a child of `multiprocessing`, started by a helper, can import."""
    lines = (
        "import multiprocessing, sys\n"
        "def imports():\n    import random, queue, numpy; print('imported', flush=True)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=imports)\n"
        "    child.start(); child.join()\n"
    )
    packages = folder / "packages"
    packages.mkdir()
    (packages / "spawning.py").write_text(lines)
    env = child_process.environment() | {"PYTHONPATH": str(packages)}
    process = child_process.start("spawning", log=folder / "log" / "spawning.txt", env=env)
    output, _ = process.communicate(timeout=DEADLINE)
    return output.decode().strip()


@pytest.mark.thorough
def test_helper_beside_planted_modules_writes_records(helped):
    assert helped["record"]["state"] == "imported"


@pytest.mark.thorough
def test_helper_beside_planted_modules_draws_picture(helped):
    assert helped["picture"]["png"].startswith(b"\x89PNG")


@pytest.mark.thorough
def test_azure_helper_beside_planted_modules_answers(helped):
    assert helped["azure"]["pid"]


def test_helper_child_beside_planted_modules_imports_real_ones(helped):
    assert helped["spawned"] == "imported"


@pytest.mark.parametrize("name", NAMES)
def test_planted_module_is_not_run_by_helper(helped, name):
    assert not (helped["ran"] / name).exists()


def test_helper_environment_keeps_absolute_pythonpath_entries(tmp_path, monkeypatch):
    here, libraries = tmp_path / "notebook", tmp_path / "libraries"
    here.mkdir()
    link = tmp_path / "link"
    link.symlink_to(here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "lib", str(here), str(link), str(libraries), "."]))
    assert child_process.environment()["PYTHONPATH"] == str(libraries)
    monkeypatch.setenv("PYTHONPATH", "lib")
    assert "PYTHONPATH" not in child_process.environment()


def test_helper_environment_relative_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "company.pem")
    assert child_process.environment()["REQUESTS_CA_BUNDLE"] == str(tmp_path / "company.pem")


def test_helper_environment_in_deleted_folder_is_made(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setenv("SSL_CERT_FILE", "company.pem")
    assert child_process.environment()["SSL_CERT_FILE"] == "company.pem"


def test_helper_command_passes_arguments(tmp_path):
    (tmp_path / "shown.py").write_text("import sys; print(__name__, sys.argv[1:], sys.path[0] != '')")
    line = child_process.command("shown", "-x", "a b", "")
    done = subprocess.run(line, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout.strip() == "__main__ ['-x', 'a b', ''] True", done.stderr
