"""Controller of this process: created at first use, closed at exit, not shared with forked children."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading

from jupyter_amltrain.backends.target_kinds import target_kinds
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import notebook_path

_guard = threading.Lock()
_controller: Controller | None = None
_at_exit_once = False
_owner = -1


def _after_fork() -> None:
    """Drop the controller in a forked child, because its pipes and its loop belong to the parent."""
    global _guard, _controller
    _guard, _controller = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    """Close the controller when the interpreter ends, while threads still work.

    `atexit` runs too late: executors are already shut down, and every live task would log an
    error. The hook that the executors of the standard library use runs early enough.
    """
    global _at_exit_once
    if not _at_exit_once:
        _at_exit_once = True
        import concurrent.futures.thread  # registers its own hook, which must run after this one

        del concurrent
        register = getattr(threading, "_register_atexit", atexit.register)
        with contextlib.suppress(RuntimeError):  # the interpreter is already shutting down
            register(functools.partial(close, at_exit=True))


def _import_numpy() -> None:
    """Import numpy before the loop thread needs it, while no code of a cell runs.

    Some libraries (plotly) take it from ``sys.modules``, also while another thread has imported a half of it.
    """
    if "ipykernel" in sys.modules and threading.current_thread() is threading.main_thread():
        import numpy  # noqa: F401


def controller() -> Controller:
    """Return the controller of this process, created at first use."""
    global _controller, _owner
    with _guard:
        if _controller is None:
            _import_numpy()
            _controller = Controller()
            _owner = os.getpid()
            _at_exit()
        return _controller


def current_controller() -> Controller | None:
    """Return the controller if this process has one, without creating it."""
    return _controller


def known_targets() -> TargetFile:
    """Return the targets of this user, without creating a controller."""
    return controller().targets if _controller is not None else TargetFile(StateRoot(), target_kinds(), notebook_path())


def close(*, at_exit: bool = False) -> None:
    """Close the controller; runs continue. The next use creates a new one."""
    global _controller
    with _guard:
        if _controller is not None and _owner == os.getpid():
            try:
                _controller.close(at_exit=at_exit)
            finally:
                _controller = None
