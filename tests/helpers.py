"""Helpers of many tests: a state root of their own, the API or a kernel over it, and waiting for a condition."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from . import prefork
from .conftest import SETTINGS, end_all

T = TypeVar("T")

#: Ten times what a busy machine needs (seconds).
DEADLINE = 240.0


def until(check: Callable[[], T | None], what: str = "", deadline: float = DEADLINE) -> T:
    """The first true value of `check`; fails after `deadline` seconds."""
    end, pause = time.monotonic() + deadline, 0.01
    while not (value := check()):
        assert time.monotonic() < end, f"waited {deadline:g} s for {what or check}"
        time.sleep(pause)
        pause = min(1.1 * pause, 0.05)  # reading all processes takes 5 ms of CPU
    return value


@contextlib.contextmanager
def state_root(folder: Path, name: str = "home", **more: str) -> Iterator[Path]:
    """Home, queue and working folder below `folder`, in the environment; nothing outlives it."""
    home, work = folder / name, folder / "work"
    with pytest.MonkeyPatch.context() as patch:
        for variable in list(os.environ):
            if variable.startswith(("AMLTRAIN_", "MLFLOW_")):
                patch.delenv(variable)
        settings = {**SETTINGS, "AMLTRAIN_HOME": str(home), "AMLTRAIN_QUEUE": str(folder / "queue"), **more}
        for variable, value in settings.items():
            patch.setenv(variable, value)
        work.mkdir()
        patch.chdir(work)
        try:
            yield home
        finally:
            end_all(home)


@contextlib.contextmanager
def api_of(folder: Path, name: str = "home", **more: str) -> Iterator[Any]:
    """`jupyter_amltrain.api` with a controller of its own over :func:`state_root`."""
    from jupyter_amltrain import api

    with state_root(folder, name, **more), prefork.installed():
        api.close()
        try:
            yield api
        finally:
            api.close()


@contextlib.contextmanager
def kernel_of(folder: Path, load: bool = True, **more: str) -> Iterator[Any]:
    """A kernel over a state root of its own, in ``folder/work``; `load` loads the extension."""
    from .ipykernel.harness import kernel

    with state_root(folder, **more):
        runtime = {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime")}
        with kernel({**os.environ, **runtime}, folder / "work") as live:
            if load:
                live.run("%load_ext jupyter_amltrain")
            yield live
