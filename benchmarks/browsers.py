"""Notebooks of a real JupyterLab in a real Chromium, each in a process of its own, to be measured."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import end_all
from tests.ui.conftest import FLAGS
from tests.ui.lab import MS, LabServer, NotebookPage, load_page
from tests.ui.traffic import Frame, Traffic
from tools import chromium, frontend

ROOT = Path(__file__).parents[1]


class Measured:
    """One notebook and the protocol behind its page."""

    def __init__(self, notebook: NotebookPage, devtools: Any, traffic: Traffic) -> None:
        self.notebook, self._devtools, self._traffic = notebook, devtools, traffic
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        devtools.send("HeapProfiler.enable")

    def drawn(self) -> str:
        """All lines as they are drawn now."""
        return str(
            self.notebook.page.evaluate(
                "() => [...document.querySelectorAll('.bqplot path.line')].map(p => p.getAttribute('d')).join()"
            )
        )

    def cpu(self) -> float:
        """Seconds of CPU that the main thread has spent in tasks so far."""
        found = {m["name"]: m["value"] for m in self._devtools.send("Performance.getMetrics")["metrics"]}
        return float(found["TaskDuration"])

    def wait(self, seconds: float) -> None:
        """Wait, and hear what comes; a sleep would count it later."""
        self.notebook.page.wait_for_timeout(1000 * seconds)

    def received(self) -> tuple[int, int]:
        """Bytes that came from the kernel since the last call: all, and those of the feeds of live charts."""
        size = sum(frame.size for frame in self._traffic.frames)
        fed = sum(frame.size for frame in self._traffic.frames if _is_fed(frame))
        self._traffic.clear()
        return size, fed

    def heap(self) -> int:
        """Bytes on the JavaScript heap and in its buffers, after garbage was collected."""
        for _ in range(3):
            self._devtools.send("HeapProfiler.collectGarbage")
            time.sleep(0.2)
        found = self._devtools.send("Runtime.getHeapUsage")
        return int(found["usedSize"]) + int(found.get("backingStorageSize", 0))

    def nodes(self) -> int:
        """DOM nodes that are alive."""
        found = {m["name"]: m["value"] for m in self._devtools.send("Performance.getMetrics")["metrics"]}
        return int(found["Nodes"])


def _is_fed(frame: Frame) -> bool:
    data = frame.content.get("data")
    return frame.kind == "comm_msg" and isinstance(data, dict) and data.get("method") == "custom"


@contextlib.contextmanager
def lab(targets: Mapping[str, dict[str, Any]] | None = None) -> Iterator[Any]:
    """Gives `open(name, *cells)`, which shows a new notebook, runs the cells, and is a :class:`Measured`.

    Parameters
    ----------
    targets
        Fields of targets of the user, by name.
    """
    from playwright.sync_api import sync_playwright

    path = chromium.find()
    if path is None:
        raise SystemExit("no Chromium on this machine")
    frontend.ensure_bundle()  # else the page is of an earlier build, and may draw nothing
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        server = LabServer(Path(folder) / "lab", PYTHONPATH=paths)
        if targets:
            server.put_targets(dict(targets))
        flags = [*FLAGS, "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows"]
        browser = driver.chromium.launch(executable_path=path, args=flags)

        def open_(name: str, *cells: str) -> Measured:
            # A context each: pages of one context may share a process.
            context = browser.new_context(viewport={"width": 1300, "height": 1500})
            page = context.new_page()
            page.set_default_timeout(MS)
            traffic = Traffic().listen(page)
            notebook = load_page(page, server, server.write(f"{name}.ipynb", []))
            for cell in cells:
                notebook.cell(cell)
            page.locator(".bqplot:visible").first.wait_for()  # a metric with one point has no chart
            return Measured(notebook, context.new_cdp_session(page), traffic)

        try:
            yield open_
        finally:
            browser.close()
            server.close()
            end_all(server.folder / "state")
