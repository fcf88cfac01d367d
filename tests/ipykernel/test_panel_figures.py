"""Inline figures are drawn at the end of a cell by IPython's own hook: the panel's traffic must not fire it early.

A comm message of ipywidgets' kind does (ipykernel#1564): the figure then goes to nowhere.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from tests.ipykernel import test_panel
from tests.ipykernel.test_panel import Page

page = test_panel.page

CELL = """
import matplotlib.pyplot as plt, time
figure, axes = plt.subplots(figsize=(1, 1))
axes.plot([1, 2, {i}])
time.sleep(0.3)
print("drawn")
"""


@pytest.fixture
def asking(page: Page) -> Iterator[list[str]]:
    """Questions of all kinds, one after the other, from a second thread; the operations that were answered."""
    page.live.run("%matplotlib inline\n%load_ext jupyter_amltrain")
    page.live.run("%%aml_submit --target wide --name wide\npass")
    handle = page.live.run("from jupyter_amltrain import api; print(api.attach('last').handle)").stdout.strip()
    stop, answered = threading.Event(), list[str]()
    wants = {"comm": "c", "shown": "panel", "gpus": handle, "looks": (handle,), "seq": -1}
    kinds = (("events", wants), ("run", {"handle": handle}), ("kinds", {}), ("log", {"handle": handle}), ("hello", {}))

    def ask() -> None:
        while not stop.is_set():
            for op, fields in kinds:
                page.ask(op, **fields)
                answered.append(op)

    thread = threading.Thread(target=ask)
    thread.start()
    yield answered
    stop.set()
    thread.join()


@pytest.mark.thorough
def test_cell_figures_while_panel_is_active_are_kept(page: Page, asking: list[str]) -> None:
    client = page.live.client
    figures, events = 0, 0
    for i in range(8):
        before = len(asking)
        message = client.execute(CELL.format(i=i))
        shown, drawn, ended = 0, False, False
        end = time.monotonic() + test_panel.DEADLINE
        while not ended:
            assert time.monotonic() < end
            try:
                found = client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            content, mine = found["content"], found["parent_header"].get("msg_id") == message
            if found["msg_type"] == "display_data" and "image/png" in content["data"]:
                assert mine and drawn  # in this cell's output, at its end
                shown += 1
            events += found["msg_type"] == "comm_msg" and "seq" in content["data"]
            drawn = drawn or (mine and found["msg_type"] == "stream" and "drawn" in content["text"])
            ended = mine and found["msg_type"] == "status" and content["execution_state"] == "idle"
        assert shown == 1
        figures += shown
        assert len(asking) > before  # questions were answered while the cell ran
    assert figures == 8 and events > 8
