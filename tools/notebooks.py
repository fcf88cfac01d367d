"""Executes the notebooks of ``notebooks/`` and saves them with their outputs: ``python -m tools.notebooks [name ...]``.

They run in a home folder made for that, so that no path of this machine, no older run and no
MLflow store of a developer gets into an output. Those that connect to Azure ML find the sandbox of
``tests/azure`` there, by a ``config.json`` beside them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.environment import ROOT

FOLDER = ROOT / "notebooks"
CELL_TIMEOUT = 600  # seconds
_starting = threading.Lock()


def executed(notebook: Path, home: Path, **environ: str) -> Any:
    """The notebook with the outputs of a run from top to bottom in ``home/notebooks``; from any thread.

    Parameters
    ----------
    environ
        Further environment variables of the kernel.

    Raises
    ------
    CellExecutionError
        A cell failed that is not tagged ``raises-exception``.
    """
    import nbformat
    from nbclient import NotebookClient

    class Client(NotebookClient):
        """Takes what changes an earlier cell's output, as a page does; nbclient looks at the current cell only."""

        async def async_start_new_kernel(self, **kwargs: Any) -> None:
            # Ports are chosen free and bound later: kernels that start at once may choose the same.
            _starting.acquire()
            try:
                await super().async_start_new_kernel(**kwargs)
            except BaseException:
                _starting.release()
                raise

        async def async_start_new_kernel_client(self) -> Any:
            try:
                client = await super().async_start_new_kernel_client()
            finally:
                _starting.release()
            get = client.iopub_channel.get_msg

            async def get_msg(*args: Any, **kwargs: Any) -> Any:
                message = await get(*args, **kwargs)
                if message["header"]["msg_type"] == "update_display_data":
                    self.process_message(copy.deepcopy(message), self.nb.cells[0], 0)
                return message

            client.iopub_channel.get_msg = get_msg
            return client

    work = home / "notebooks"
    work.mkdir(parents=True, exist_ok=True)
    found = nbformat.read(notebook, as_version=4)
    for cell in found.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = Client(
        found,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(work)}},
        # Warnings of ipykernel about its own transport would stand between our lines.
        extra_arguments=["--log-level=40"],
    )
    ours = ("AMLTRAIN_", "MLFLOW_", "XDG_", "JPY_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    places = {"HOME": str(home), "AMLTRAIN_QUEUE": str(home / "queue"), "AMLTRAIN_DISPATCHER_IDLE": "5"}
    client.execute(env={**inherited, **places, **environ})
    found = _without_places(found, home)
    found.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return found


def _without_places(notebook: Any, home: Path) -> Any:
    """The notebook with ``~`` in place of this checkout and of the home folder that was made for it."""
    import nbformat

    text = nbformat.writes(notebook)
    for place in (home, ROOT):
        text = text.replace(json.dumps(str(place))[1:-1], "~")
    return nbformat.reads(text, as_version=4)


def connects(notebook: Path) -> bool:
    """Whether a notebook needs an Azure ML workspace."""
    return "%aml_compute connect" in notebook.read_text(encoding="utf-8")


@contextlib.contextmanager
def ssh(home: Path) -> Iterator[dict[str, str]]:
    """A machine that the user with the folder `home` reaches as ``ssh gpubox``."""
    from tools.openssh import Sshd, machine_environ

    server = Sshd(home / "sshd", machine_environ(home))
    try:
        server.alias(home, "gpubox")
        yield {"PYTHON_OF_GPUBOX": sys.executable}
    finally:
        server.stop()


@contextlib.contextmanager
def slurm(home: Path) -> Iterator[dict[str, str]]:
    """A Slurm cluster of two nodes."""
    from tools.slurm_cluster import Cluster

    cluster = Cluster(home / "cluster")
    try:
        yield cluster.environ
    finally:
        cluster.stop()


def place_of(notebook: Path, home: Path) -> contextlib.AbstractContextManager[dict[str, str]]:
    """What a notebook needs besides this machine; the environment that leads there."""
    if connects(notebook):
        return azure(home / "notebooks")
    if "--kind ssh" in notebook.read_text(encoding="utf-8"):
        return ssh(home)
    if "--kind slurm" in notebook.read_text(encoding="utf-8"):
        return slurm(home)
    return contextlib.nullcontext(dict[str, str]())


@contextlib.contextmanager
def azure(work: Path) -> Iterator[dict[str, str]]:
    """A sandbox, and its ``config.json`` in the folder `work`; the environment that leads there."""
    from tests.azure.conftest import sandbox

    with sandbox() as found:
        work.mkdir(parents=True, exist_ok=True)
        names = {"subscription_id": found.subscription, "resource_group": found.resource_group}
        names["workspace_name"] = found.workspace
        (work / "config.json").write_text(json.dumps(names))
        yield found.environ


def main(names: list[str]) -> int:
    """Execute and save the notebooks called `names`, all without one."""
    import nbformat

    for notebook in sorted(FOLDER.glob("*.ipynb")):
        if names and notebook.stem not in [name.removesuffix(".ipynb") for name in names]:
            continue
        home, began = Path(tempfile.mkdtemp(prefix="amltrain-notebooks-")), time.monotonic()
        try:
            with place_of(notebook, home) as environ:
                nbformat.write(executed(notebook, home, **environ), notebook)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        print(f"{notebook.name}: {time.monotonic() - began:.0f} s, {notebook.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
