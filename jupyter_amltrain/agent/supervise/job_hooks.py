"""Puts the hooks into a job's Python: the time of lines, PyTorch's memory, Matplotlib's figures, displayed values,
tqdm's bars, pandas' tables, files of values, MLflow's stores, the code of its models, values at failure, a debugger."""

from __future__ import annotations

import functools
import os
import pkgutil
import zlib
from typing import Dict, Mapping, Optional, Sequence, Tuple

from ..displays import display_hook
from ..distributed import stall
from ..failures import nan_hook
from ..pictures import matplotlib_hook
from ..protocol import (
    ASKS,
    ASKS_FOLDER,
    AUTOLOG,
    DEBUG,
    DEBUG_FOLDER,
    DISPLAYS,
    FAILURE,
    FAILURE_VARIABLE,
    LINES,
    LINES_FOLDER,
    PICTURES,
)
from ..telemetry import torch_hook
from ..trackers import tracker_hook
from ..trackers.tracker_files import NOTES_FILE
from . import import_hook, mlflow_hook, spawn_hook

_PACKAGE = __name__.rpartition(".supervise")[0]
#: Files of the hooks and their sources; the first one is written last.
_FILES = {
    "sitecustomize.py": "supervise/import_hook.py",
    import_hook.IMPORTABLE[1] + ".py": "values.py",
    import_hook.IMPORTABLE[2] + ".py": "shared_objects.py",
    import_hook.IMPORTABLE[3] + ".py": "pretty_text.py",
    import_hook.IMPORTABLE[4] + ".py": "secret_values.py",
    import_hook.IMPORTABLE[5] + ".py": "kept_values.py",
    import_hook.IMPORTABLE[6] + ".py": "supervise/notebook_runner.py",
    import_hook.IMPORTABLE[7] + ".py": "supervise/mlflow_hook.py",
    import_hook.IMPORTABLE[8] + ".py": "displays/display_hook.py",
    import_hook.IMPORTABLE[9] + ".py": "displays/rich_forms.py",
    "amltrain_warm.py": "supervise/warm_hook.py",
    "amltrain_failure.py": "failures/failure_hook.py",
    "amltrain_failing_names.py": "failures/failing_names.py",
    "amltrain_memory_lines.py": "failures/memory_lines.py",
    "amltrain_value_facts.py": "failures/value_facts.py",
    "amltrain_array_facts.py": "failures/array_facts.py",
    "amltrain_safe_access.py": "failures/safe_access.py",
    "amltrain_lines.py": "lines/lines_hook.py",
    "amltrain_line_sampler.py": "lines/line_sampler.py",
    "amltrain_line_sums.py": "lines/line_sums.py",
    "amltrain_line_file.py": "lines/line_file.py",
    "amltrain_thread_figures.py": "lines/thread_figures.py",
    "amltrain_switch_interval.py": "lines/switch_interval.py",
    "amltrain_gpu_use.py": "lines/gpu_use.py",
    "amltrain_stacks.py": "lines/stacks.py",
    "amltrain_asked.py": "asking/asked_hook.py",
    "amltrain_debugger.py": "debugging/debug_hook.py",
    import_hook.AFTER["torch"] + ".py": "telemetry/torch_hook.py",
    import_hook.AFTER["matplotlib"] + ".py": "pictures/matplotlib_hook.py",
    import_hook.AFTER["tqdm.notebook"] + ".py": "supervise/tqdm_hook.py",
    import_hook.AFTER["rich.console"] + ".py": "supervise/rich_hook.py",
    import_hook.AFTER["pandas"] + ".py": "supervise/pandas_hook.py",
    import_hook.AFTER["tensorboard"] + ".py": "trackers/tracker_hook.py",
    import_hook.AFTER["multiprocessing.spawn"] + ".py": "supervise/spawn_hook.py",
    import_hook.AFTER["mlflow.utils.model_utils"] + ".py": "supervise/code_paths_hook.py",
    import_hook.AFTER["mlflow.tracking.client"] + ".py": "failures/nan_hook.py",
}


def clear(env: Dict[str, str]) -> None:
    """Remove the variables of an outer job, which submits this one."""
    pictures = (matplotlib_hook.FOLDER, matplotlib_hook.AT_EXIT)
    follow = (mlflow_hook.PORT, mlflow_hook.TOKEN, tracker_hook.NOTES)
    own = (torch_hook.FOLDER, display_hook.FOLDER, FAILURE_VARIABLE, LINES_FOLDER, spawn_hook.CELL)
    for name in (*own, *pictures, *follow, ASKS_FOLDER, DEBUG_FOLDER, stall.VARIABLE, nan_hook.VARIABLE):
        env.pop(name, None)


def add(
    env: Dict[str, str],
    folder: str,
    home: str,
    *,
    gpus: bool,
    cell: str = "",
    is_needed: bool = False,
    sink: Optional[Tuple[int, str]] = None,
    is_alone: bool = False,
) -> str:
    """Write the hooks and set their variables; return their folder, empty for a job that runs without them.

    Parameters
    ----------
    env
        Environment of the job; a hook whose variable is 0 is left out.
    folder
        The run folder.
    home
        Folder for the files of the hooks. All runs share them, with their byte code.
    gpus
        Whether to record PyTorch's memory.
    cell
        Name of the script of a cell, empty for a file. Figures that a cell does not show are shown at its end, tables
        are as wide as in a notebook, and children of ``multiprocessing`` do not run its body.
    is_needed
        Whether the job cannot run without the files.
    sink
        Port and token of the run's MLflow sink, which also records what the script logs to other stores.
    is_alone
        Whether the job is one process, which shows where it is when it hangs; ranks have it from ``rank.py``.
    """
    names = {matplotlib_hook.FOLDER: PICTURES, display_hook.FOLDER: DISPLAYS, tracker_hook.NOTES: NOTES_FILE}
    names[FAILURE_VARIABLE] = FAILURE
    if env.get(LINES_FOLDER) == "1":  # not by itself: its price is not known well enough
        names[LINES_FOLDER] = LINES
    if env.get(DEBUG_FOLDER) == "1":
        names[DEBUG_FOLDER] = DEBUG
        os.makedirs(os.path.join(folder, DEBUG), mode=0o700, exist_ok=True)
    if os.path.isdir(os.path.join(folder, ASKS)):
        names[ASKS_FOLDER] = ASKS
    if is_alone:
        names[stall.VARIABLE] = stall.ONE_PROCESS
    if gpus:
        names[torch_hook.FOLDER] = "telemetry"
    places = {variable: os.path.join(folder, name) for variable, name in names.items()}
    if sink:
        places[mlflow_hook.PORT] = str(sink[0])
    places = {name: place for name, place in places.items() if env.get(name) != "0"}
    if not (places or is_needed) or os.pathsep in home:  # its parts would be searched for modules
        return ""
    try:
        hook = _written(home)
    except OSError:  # the job runs without it
        return ""
    env.update(places)
    if sink and mlflow_hook.PORT in places:
        env[mlflow_hook.TOKEN] = sink[1]
    if cell:
        env.update({matplotlib_hook.AT_EXIT: "1", spawn_hook.CELL: cell})
    env["PYTHONPATH"] = os.pathsep.join(part for part in (hook, env.get("PYTHONPATH")) if part)
    return hook


def has_autolog(env: Mapping[str, str]) -> bool:
    """Whether MLflow logs in a job for the libraries that it knows."""
    return env.get(AUTOLOG, "") not in ("", "0")


def runs_notebook(argv: Sequence[str]) -> bool:
    """Whether the program of a job is the one that runs a notebook."""
    return import_hook.IMPORTABLE[6] in argv


@functools.lru_cache(maxsize=None)
def files() -> Dict[str, bytes]:
    """Return the files of this version of the hooks, by name; kept, because unpacking them takes 2 ms."""
    return {name: pkgutil.get_data(_PACKAGE, source) or b"" for name, source in _FILES.items()}


def _written(home: str) -> str:
    """Return the folder with the files of this version of the hooks; write them if they are absent."""
    data = files()
    folder = os.path.join(os.path.abspath(home), "hook-%08x" % zlib.crc32(b"".join(data.values())))
    if os.path.exists(os.path.join(folder, "sitecustomize.py")):
        return folder
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name in reversed(list(data)):
        path = os.path.join(folder, name)
        part = "%s.%d.part" % (path, os.getpid())
        with open(part, "wb") as file:
            file.write(data[name])
        os.replace(part, path)  # another job may be reading the same file
    return folder
