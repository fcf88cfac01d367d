"""Starting a helper process, and its input.

The messages: :mod:`jupyter_amltrain.rpc.framing`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from jupyter_amltrain.rpc import framing

#: Runs a module as ``-m`` does, but without the working folder on the module path. The ``-P`` switch needs Python 3.11.
#: Our package's folder goes last: in front it would hide the standard library behind whatever site-packages holds.
_BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; root = sys.argv.pop(1); "
    "root in sys.path or sys.path.append(root); del sys.argv[0]; "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
_PACKAGES = str(Path(__file__).resolve().parents[2])

#: Variables that hold a path. A helper has another working folder than the kernel, so a relative path is made absolute.
_PATHS = (
    "AMLTRAIN_HOME",
    "AMLTRAIN_QUEUE",
    "AZURE_CLIENT_CERTIFICATE_PATH",
    "AZURE_CONFIG_DIR",
    "AZURE_FEDERATED_TOKEN_FILE",
    "CURL_CA_BUNDLE",
    "MPLCONFIGDIR",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
)


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of ours without the working folder on its module path.

    Parameters
    ----------
    module
        Module or package, run as ``__main__``.
    arguments
        What it finds in ``sys.argv[1:]``.
    """
    return [sys.executable, "-c", _BOOTSTRAP, _PACKAGES, module, *arguments]


def start(module: str, *arguments: str, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a module of ours in a session of its own; its standard error goes to the end of `log`.

    It works in the folder of `log`, never in the notebook's: a file ``random.py`` beside the
    notebook must not be what the helper, or a Python that a library starts from it, imports.
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
    """Return our environment, fit for a helper: paths are absolute, and no module path leads to the notebook.

    Absolute entries of ``PYTHONPATH`` stay (they may hold the packages themselves), but for the
    working folder. Empty and relative entries mean the working folder, so they go.
    """
    env = dict(os.environ) | absolute_paths(os.environ)
    here = _working_folder()
    kept = [
        entry
        for entry in env.pop("PYTHONPATH", "").split(os.pathsep)
        if os.path.isabs(entry) and os.path.realpath(entry) != here
    ]
    if kept:
        env["PYTHONPATH"] = os.pathsep.join(kept)
    return env


def absolute_paths(env: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of `env` that hold a relative path, made absolute."""
    here = _working_folder()
    relative = [name for name in _PATHS if env.get(name) and not os.path.isabs(env[name])] if here else []
    return {name: os.path.join(here, env[name]) for name in relative}


def _working_folder() -> str:
    """Return our working folder, or nothing when it has been deleted."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return ""


def ending(code: int) -> str:
    """Return how a process ended, in words, from its exit code."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


class FrameWriter:
    """Writes whole frames to the input of a process, from any thread.

    A frame of more than some kilobytes goes in pieces, and an abandoned request is still written to its end:
    a lock keeps the frames of other threads out of it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self._stream = process.stdin
        self._turn = threading.Lock()

    def write(self, frame: bytes) -> None:
        """Write frames. Raises ``OSError`` or ``ValueError`` when nobody reads any more."""
        with self._turn:
            # asked for each time: the number of a closed pipe is soon another file's
            framing.write(lambda view: os.write(self._stream.fileno(), view), frame)

    def write_quietly(self, frame: bytes) -> None:
        """Write frames; ignore that nobody reads any more."""
        with contextlib.suppress(OSError, ValueError):
            self.write(frame)

    def close(self) -> None:
        """Tell the process to end; a frame that is on its way is finished first."""
        own = self._turn.acquire(timeout=1.0)
        try:
            with contextlib.suppress(OSError):
                self._stream.close()
        finally:
            if own:
                self._turn.release()
