"""The one controller of a process: made at first use, closed in time, never shared by a fork."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading

from jupyter_amltrain.kernel.controller import Controller

_guard = threading.Lock()
_controller: Controller | None = None
_at_exit_once = False
_owner = -1


def _after_fork() -> None:
    """In a child: the controller, its pipes and its loop are the parent's."""
    global _guard, _controller
    _guard, _controller = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    """Close the controller when the interpreter ends, while threads still work.

    `atexit` comes too late: executors have been shut down by then, and every task that
    is alive would complain. What the standard library's own executors use comes in time.
    """
    global _at_exit_once
    if not _at_exit_once:
        _at_exit_once = True
        import concurrent.futures.thread  # registers its own end: ours must come before it

        del concurrent
        register = getattr(threading, "_register_atexit", atexit.register)
        with contextlib.suppress(RuntimeError):  # the interpreter is ending already
            register(close)


def controller() -> Controller:
    """The one controller of this process, made at first use."""
    global _controller, _owner
    with _guard:
        if _controller is None:
            _controller = Controller()
            _owner = os.getpid()
            _at_exit()
        return _controller


def existing() -> Controller | None:
    """The controller if this process has one; never makes it."""
    return _controller


def close() -> None:
    """Let go of the process' controller; runs go on. The next call makes a new one."""
    global _controller
    with _guard:
        if _controller is not None and _owner == os.getpid():
            try:
                _controller.close()
            finally:
                _controller = None
