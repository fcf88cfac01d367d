"""The emulated Azure (``tests/azure``) in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any


class Sandbox:
    """A sandbox that runs; its attributes are as in ``tests.azure.conftest.Azure``."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.environ: dict[str, str] = facts["environ"]
        self.subscription = str(facts["subscription"])
        self.resource_group = str(facts["resource_group"])
        self.workspace = str(facts["workspace"])
        self._control = str(facts["control"])
        self._seen = 0

    def control(self, path: str, **body: Any) -> Any:
        """Call its control endpoint."""
        request = urllib.request.Request(self._control + path, json.dumps(body).encode(), method="POST")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)

    def wired(self) -> int:
        """Number of the last request that came."""
        self.wire(self._seen)
        return self._seen

    def wire(self, since: int) -> list[dict[str, Any]]:
        """Requests after that number."""
        found: list[dict[str, Any]] = self.control("/wire", since=since)
        self._seen = max([self._seen, *(entry["n"] for entry in found)])
        return found


@contextlib.contextmanager
def running_sandbox() -> Iterator[Sandbox]:
    """Start it; it ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "azureml_emulator.sandbox"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        text = next((one for one in process.stdout if one.startswith("{")), "")
        if not text:
            raise RuntimeError("the sandbox did not start; its own message stands above")
        yield Sandbox(json.loads(text))
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
