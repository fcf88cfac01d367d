"""Real kernels for tests: started, spoken to, killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

#: Ten times what a busy machine needs (seconds).
DEADLINE = 120.0

_starting = threading.Lock()


class Cell:
    """What one execution gave."""

    def __init__(self) -> None:
        self.stdout = ""
        self.stderr = ""
        self.displays: list[dict[str, Any]] = []  #: display_data, execute_result and updates
        self.error: dict[str, Any] | None = None
        self.status = ""


class Kernel:
    """A kernel that was started by nobody but us (no server)."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client = manager, client

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def run(self, code: str, timeout: float = DEADLINE, check: bool = True) -> Cell:
        cell = Cell()

        def take(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                if content["name"] == "stdout":
                    cell.stdout += content["text"]
                else:
                    cell.stderr += content["text"]
            elif kind in ("display_data", "execute_result", "update_display_data"):
                cell.displays.append(content)
            elif kind == "error":
                cell.error = content

        reply = self.client.execute_interactive(code, timeout=timeout, output_hook=take, stdin_hook=None)
        cell.status = reply["content"]["status"]
        if check and cell.status != "ok":
            raise AssertionError("\n".join(reply["content"].get("traceback", ["failed"])))
        return cell

    def submit_and_die(self, code: str) -> None:
        """Execute `code`; return when the kernel's process is gone."""
        self.client.execute(code)
        psutil.Process(self.pid).wait(DEADLINE)

    def dump(self) -> None:
        """Let the kernel print the stacks of all its threads to standard error, and end: it does not answer."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGABRT)
        time.sleep(2)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@contextlib.contextmanager
def kernel(environ: dict[str, str], cwd: Path, **more: str) -> Iterator[Kernel]:
    from jupyter_client.manager import KernelManager

    # Ports are chosen free and bound later: kernels that start at once may choose the same.
    with _starting:
        manager = KernelManager(kernel_name="python3")
        manager.kernel_spec.argv[0] = sys.executable
        manager.start_kernel(env={"PYTHONFAULTHANDLER": "1", **environ, **more}, cwd=str(cwd))
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=DEADLINE)
        except BaseException:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
            raise
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
