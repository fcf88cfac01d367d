"""Puts the hooks into a job's Python (``hook_table.py``)."""

from __future__ import annotations

import functools
import os
import pkgutil
import zlib
from typing import Dict, Mapping, Optional, Sequence, Tuple

from ..distributed import own_rank
from ..pictures import matplotlib_hook
from ..protocol import AUTOLOG
from . import mlflow_hook, spawn_hook
from .hook_table import ALONE, EXISTS, GPUS, HOOKS

_PACKAGE = __name__.rpartition(".supervise")[0]
#: Further variables of hooks.
_MORE = (matplotlib_hook.AT_EXIT, mlflow_hook.PORT, mlflow_hook.TOKEN, spawn_hook.CELL, own_rank.VARIABLE)


def clear(env: Dict[str, str]) -> None:
    """Remove the variables of an outer job, which submits this one."""
    for name in (*(hook.variable for hook in HOOKS), *_MORE):
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
    values = _variables(env, folder, {"": True, GPUS: gpus, ALONE: is_alone})
    if sink and env.get(mlflow_hook.PORT) != "0":
        values.update({mlflow_hook.PORT: str(sink[0]), mlflow_hook.TOKEN: sink[1]})
    if not (values or is_needed) or os.pathsep in home:  # its parts would be searched for modules
        return ""
    try:
        hook = _written(home)
    except OSError:  # the job runs without it
        return ""
    env.update(values)
    if cell:
        env.update({matplotlib_hook.AT_EXIT: "1", spawn_hook.CELL: cell})
    env["PYTHONPATH"] = os.pathsep.join(part for part in (hook, env.get("PYTHONPATH")) if part)
    return hook


def _variables(env: Mapping[str, str], folder: str, facts: Mapping[str, bool]) -> Dict[str, str]:
    """Return the variables of the hooks that run in a job, each with the place of its file."""
    values = {}
    for one in HOOKS:
        place, value = os.path.join(folder, one.place), env.get(one.variable)
        is_on = facts.get(one.on) or (one.on == EXISTS and os.path.exists(place))
        is_opt_in = one.switch is not None and not one.switch.is_off
        if one.place and (value == "1" if is_opt_in else is_on and value != "0"):
            values[one.variable] = place
    return values


def has_autolog(env: Mapping[str, str]) -> bool:
    """Whether MLflow logs in a job for the libraries that it knows."""
    return env.get(AUTOLOG, "") not in ("", "0")


def runs_notebook(argv: Sequence[str]) -> bool:
    """Whether the program of a job is the one that runs a notebook."""
    return "amltrain_notebook" in argv


@functools.lru_cache(maxsize=None)
def files() -> Dict[str, bytes]:
    """Return the files of this version of the hooks, by name; kept, because unpacking them takes 2 ms."""
    data = {hook.module + ".py": pkgutil.get_data(_PACKAGE, hook.source) or b"" for hook in HOOKS}
    after = {library: hook.module for hook in HOOKS for library in hook.after}
    importable = tuple(hook.module for hook in HOOKS if hook.is_importable)
    started = {hook.variable: hook.module for hook in HOOKS if hook.starts}
    rows = repr((after, importable, started)).encode()
    data["sitecustomize.py"] = data["sitecustomize.py"].replace(b"({}, (), {})", rows)
    return data


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
