"""A real ipykernel to measure in."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator
from typing import Any


class Kernel:
    """Runs code in a kernel and gives its standard output."""

    def __init__(self, client: Any, manager: Any) -> None:
        self._client = client
        self.client, self.manager = client, manager

    def run(self, code: str, timeout: float = 120.0) -> str:
        """Standard output of `code`; raises ``RuntimeError`` when it fails."""
        parts: list[str] = []

        def take(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                parts.append(message["content"]["text"])

        reply = self._client.execute_interactive(code, timeout=timeout, output_hook=take)
        if reply["content"]["status"] != "ok":
            raise RuntimeError("\n".join(reply["content"].get("traceback", ["failed"])))
        return "".join(parts)

    def latency(self) -> float:
        """Milliseconds from sending an empty cell to its reply."""
        begin = time.perf_counter()
        message_id = self._client.execute("", store_history=False)
        while True:
            with contextlib.suppress(queue.Empty):
                if self._client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") == message_id:
                    return (time.perf_counter() - begin) * 1000


@contextlib.contextmanager
def running_kernel(environ: dict[str, str], cwd: str) -> Iterator[Kernel]:
    """Start a kernel of this interpreter; it is shut down at the end."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environ, cwd=cwd)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        yield Kernel(client, manager)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
