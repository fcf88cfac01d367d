"""Runs a notebook as a job: its code cells in a kernel of this Python, their text in the log, the notebook as a file.

``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_notebook``. The job's Python needs nbclient
and ipykernel. The executed notebook is saved after each cell in ``$AML_OUTPUT_DIR``.
"""

from __future__ import annotations

import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_COLOR = re.compile("\x1b\\[[0-9;]*m")
#: Longest folder of the kernel's sockets: the path of one has at most 107 bytes.
_MAX_SOCKET_FOLDER = 50
#: Tag of the cell with default values of parameters, and of the one with those of the run, as in papermill.
_DEFAULTS, _INJECTED = "parameters", "injected-parameters"


def with_parameters(notebook: Any, params: Any) -> None:
    """Insert a cell that assigns `params` behind the one that is tagged ``parameters``, or as the first one."""

    def tagged(tag: str) -> Any:
        return [at for at, cell in enumerate(notebook.cells) if tag in cell.get("metadata", {}).get("tags", ())]

    for at in reversed(tagged(_INJECTED)):  # of an earlier run
        del notebook.cells[at]
    if not params:
        return
    text = "\n".join("%s = %s" % (name, _literal(value)) for name, value in params.items())
    defaults = tagged(_DEFAULTS)
    cell = _nbformat().v4.new_code_cell("# Parameters of the run\n" + text, metadata={"tags": [_INJECTED]})
    if notebook.nbformat_minor < 5:
        cell.pop("id", None)
    notebook.cells.insert(defaults[0] + 1 if defaults else 0, cell)


def _literal(value: Any) -> str:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "float(%r)" % str(value)
    return repr(value)


def text_of(output: Any) -> str:
    """Return the text of a kernel's message that belongs into the log."""
    kind = output.get("output_type")
    if kind == "stream":
        return str(output["text"])
    if kind in ("execute_result", "display_data"):
        text = output.get("data", {}).get("text/plain", "")
        return "".join(text) + "\n"
    if kind == "error":
        return _COLOR.sub("", "\n".join(output["traceback"])) + "\n"
    return ""


def _shown(content: Any, display_id: Any, update: bool = False) -> bool:
    """Whether the content of a message is a value, which is now shown with its rich forms."""
    data, metadata = content.get("data"), content.get("metadata")
    if not isinstance(data, dict) or (update and not display_id):
        return False
    try:
        show = __import__("amltrain_display").publish_display_data
    except ImportError:  # not among the hooks of a job
        return False
    show(data, metadata, transient={"display_id": display_id} if display_id else None, update=update)
    return True


def _client(notebook: Any, saved: str) -> Any:
    """Return a client of a kernel of this Python, which writes what the cells show and saves the notebook."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_core.paths import jupyter_runtime_dir
    from nbclient import NotebookClient

    nbformat = _nbformat()

    class OwnKernel(KernelSpecManager):
        """The kernel is this Python, whatever the notebook names."""

        def get_kernel_spec(self, kernel_name: str) -> Any:
            argv = [sys.executable, "-u", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    class KernelClient(NotebookClient):
        def output(self, outs: Any, msg: Any, display_id: Any, cell_index: int) -> Any:
            made = super().output(outs, msg, display_id, cell_index)
            if made is not None:
                if not _shown(msg["content"], display_id):
                    sys.stdout.write(text_of(nbformat.v4.output_from_msg(msg)))
                sys.stdout.flush()
            return made

        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] == "update_display_data":
                _shown(msg["content"], (msg["content"].get("transient") or {}).get("display_id"), update=True)
            return super().process_message(msg, cell, cell_index)

        async def async_execute_cell(self, cell: Any, cell_index: int, *rest: Any, **more: Any) -> Any:
            try:
                return await super().async_execute_cell(cell, cell_index, *rest, **more)
            finally:
                _save(self.nb, saved)

    manager = AsyncKernelManager(kernel_spec_manager=OwnKernel())
    if os.name == "posix" and len(jupyter_runtime_dir()) <= _MAX_SOCKET_FOLDER:  # no port that others can reach
        manager.transport = "ipc"
    return KernelClient(notebook, km=manager, timeout=None, resources={"metadata": {"path": os.getcwd()}})


def run(path: str, params: Any, folder: str) -> int:
    """Run a notebook; return the exit code of the job.

    Parameters
    ----------
    path
        The notebook.
    params
        Values of its parameters.
    folder
        Where the executed notebook is saved.
    """
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    notebook = _nbformat().read(path, 4)
    with_parameters(notebook, params)
    name = os.path.basename(path)
    saved = os.path.join(folder, name)
    try:
        _client(notebook, saved).execute(cleanup_kc=True)  # exit handlers of the notebook run
    except CellExecutionError as error:
        number = next(
            (count for count, cell in enumerate(_code_cells(notebook), 1) if _failed(cell)), len(_code_cells(notebook))
        )
        print("Traceback (most recent call last):\n  Code cell %d of %s" % (number, name))
        print("%s: %s" % (error.ename, error.evalue))
        return 1
    except DeadKernelError:
        print("The kernel of %s died: its process was killed or crashed." % name)
        return 1
    finally:
        _save(notebook, saved)
    return 0


def _nbformat() -> Any:
    """Return the module, which has no types."""
    from importlib import import_module

    return import_module("nbformat")


def _code_cells(notebook: Any) -> Any:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _failed(cell: Any) -> bool:
    return any(output.get("output_type") == "error" for output in cell.get("outputs", ()))


def _save(notebook: Any, path: str) -> None:
    """Write the notebook; a full disk must not end the job."""
    try:
        with open(path + ".part", "w", encoding="utf-8") as file:
            _nbformat().write(notebook, file)
        os.replace(path + ".part", path)
    except OSError as error:
        print("The notebook could not be saved: %s" % (error.strerror or error))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], json.loads(sys.argv[2]), os.environ.get("AML_OUTPUT_DIR") or os.getcwd()))
