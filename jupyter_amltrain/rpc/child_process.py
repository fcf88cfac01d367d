"""Starting a helper process and writing to its input.

The message format is in :mod:`jupyter_amltrain.rpc.framing`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from jupyter_amltrain.rpc import framing

#: Runs a module as ``-m`` does, but without the working folder on the module path. The ``-P`` switch needs Python 3.11.
#: The folder of this package goes last: in front, other packages in site-packages could shadow the standard library.
_BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; root = sys.argv.pop(1); "
    "root in sys.path or sys.path.append(root); del sys.argv[0]; "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
_PACKAGES = str(Path(__file__).resolve().parents[2])

#: Variables that hold a path. A helper has another working folder than the kernel, so relative paths are made absolute.
_PATH_VARIABLES = (
    "AMLTRAIN_HOME",
    "AMLTRAIN_QUEUE",
    "CURL_CA_BUNDLE",
    "MPLCONFIGDIR",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
)


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs one of this package's modules without the working folder on its module path.

    Parameters
    ----------
    module
        Module or package, run as ``__main__``.
    arguments
        The values of ``sys.argv[1:]`` in the process.
    """
    return [sys.executable, "-c", _BOOTSTRAP, _PACKAGES, module, *arguments]


def start(module: str, *arguments: str, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start one of this package's modules in its own session; its standard error is appended to `log`.

    The working folder is that of `log`, never the notebook's: neither the helper nor a Python process that a
    library starts from it may import a ``random.py`` beside the notebook.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            command(module, *arguments),
            cwd=log.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            bufsize=0,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(out)


def environment() -> dict[str, str]:
    """Return this process' environment, adapted for a helper: absolute paths, and no module path to the notebook.

    Absolute entries of ``PYTHONPATH`` are kept (they may hold the packages themselves), except the working
    folder. Empty and relative entries mean the working folder, so they are removed.
    """
    env = dict(os.environ) | absolute_paths(os.environ)
    cwd = _working_folder()
    entries = [
        entry
        for entry in env.pop("PYTHONPATH", "").split(os.pathsep)
        if os.path.isabs(entry) and os.path.realpath(entry) != cwd
    ]
    if entries:
        env["PYTHONPATH"] = os.pathsep.join(entries)
    return env


def absolute_paths(env: Mapping[str, str], names: Sequence[str] = _PATH_VARIABLES) -> dict[str, str]:
    """Return the variables of `env` that hold a relative path, as absolute paths; `names` are those with paths."""
    cwd = _working_folder()
    relative = [name for name in names if env.get(name) and not os.path.isabs(env[name])] if cwd else []
    return {name: os.path.join(cwd, env[name]) for name in relative}


def _working_folder() -> str:
    """Return the current working folder, or an empty string when it has been deleted."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return ""


def ending(code: int) -> str:
    """Describe how a process ended, from its exit code."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


class FrameWriter:
    """Writes whole frames to the input of a process, from any thread.

    A frame larger than the pipe's buffer is written in pieces, and an abandoned request is still written to its end.
    A lock keeps frames of different threads apart.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self._stream = process.stdin
        self._lock = threading.Lock()

    def write(self, frame: bytes) -> None:
        """Write frames. Raises ``OSError`` or ``ValueError`` when the reading end is closed."""
        with self._lock:
            # read the descriptor each time: the number of a closed pipe is soon reused for another file
            framing.write(lambda view: os.write(self._stream.fileno(), view), frame)

    def write_quietly(self, frame: bytes) -> None:
        """Write frames; ignore a closed reading end."""
        with contextlib.suppress(OSError, ValueError):
            self.write(frame)

    def close(self) -> None:
        """Close the input, so that the process ends; a frame that is being written is finished first."""
        acquired = self._lock.acquire(timeout=1.0)
        try:
            with contextlib.suppress(OSError):
                self._stream.close()
        finally:
            if acquired:
                self._lock.release()
