"""Runs a command that must not outlive whoever holds our standard input.

``python -m jupyter_amltrain.tracking.ui_guard <command>``: the kernel and the worker
may be killed without a word; then the pipe closes, and the whole process group of the
command is stopped. MLflow's server starts processes of its own, so killing the one
that we started would leave them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

#: Seconds between SIGTERM and SIGKILL.
GRACE = 5.0


def main(command: list[str]) -> None:
    """Run `command` until it ends or standard input does."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        _stop(child)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    _kill_group(child, getattr(signal, "SIGKILL", signal.SIGTERM))
    os._exit(code & 0xFF)


def _stop(child: subprocess.Popen[bytes]) -> None:
    _kill_group(child, signal.SIGTERM)
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        _kill_group(child, getattr(signal, "SIGKILL", signal.SIGTERM))


def _kill_group(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            child.terminate()
        else:
            os.killpg(child.pid, number)


if __name__ == "__main__":
    main(sys.argv[1:])
