"""Live charts of a real run: metrics by step, ticks that are true, zooming that stays in the page."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui import charts
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, open_notebook

pytestmark = pytest.mark.thorough

SUBMIT = """%%aml_submit --name charts
import time
import mlflow

for i in range(41):
    mlflow.log_metric("loss", 1e-6 / (i + 1), step=10 * i)
    mlflow.log_metric("accuracy", min(1.0, i / 36), step=10 * i)
    mlflow.log_metric("stepless", i)
mlflow.log_metric("once", 0.5, step=7)
time.sleep(600)
"""

SENT = """() => {
    window.amlSent = [];
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    kernel.anyMessage.connect((_, { msg, direction }) => {
        if (direction === 'send') {
            window.amlSent.push(`${msg.header.msg_type} ${JSON.stringify(msg.content).slice(0, 300)}`);
        }
    });
}"""

#: Of a figure: its plot area, the box of its line, labels and places of the ticks below and beside it, and its dots.
DRAWN = """figure => {
    const area = figure.querySelector('.plotarea_background').getBoundingClientRect();
    const line = [...figure.querySelectorAll('path.line')].find(path => path.getAttribute('d'));
    const box = line?.getBoundingClientRect();
    const ticks = side => [...figure.querySelectorAll(`g[text-anchor='${side}'] > .tick`)].map(tick => {
        const { left, right, top, bottom } = tick.querySelector('line').getBoundingClientRect();
        return { label: tick.textContent, x: (left + right) / 2 - area.left, y: area.bottom - (top + bottom) / 2 };
    });
    const dots = [...figure.querySelectorAll('path.dot')].map(dot => {
        const { left, right, top, bottom } = dot.getBoundingClientRect();
        return { width: right - left, height: bottom - top, x: (left + right) / 2 - area.left };
    });
    return { width: area.width, height: area.height, dots, below: ticks('middle'), beside: ticks('end'),
             line: box ? { left: box.left - area.left, right: box.right - area.left } : null };
}"""


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> Iterator[NotebookPage]:
    found = open_notebook(page, lab, lab.write("charts.ipynb", [code_cell("# a notebook")]))
    try:
        found.cell("%load_ext jupyter_amltrain")
        found.cell(SUBMIT)
        expect(found.runs.first.locator(".jp-AmlRun-figure .jp-AmlRun-chartTitle", has_text="stepless")).to_be_visible(
            timeout=MS
        )
        yield found
    finally:
        found.close()
        lab.end_runs()


def drawn(notebook: NotebookPage, title: str) -> dict[str, Any]:
    found: dict[str, Any] = charts.figure(notebook.runs.first, title).evaluate(DRAWN)
    return found


def area(notebook: NotebookPage, figure: Locator) -> tuple[float, float, float, float]:
    """Left, top, width and height of a figure's plot area, which is on the screen."""
    figure.scroll_into_view_if_needed()
    box = figure.locator(".plotarea_background").bounding_box()
    assert box is not None
    return box["x"], box["y"], box["width"], box["height"]


def test_live_metric_chart_fills_width_by_step(notebook: NotebookPage, shots: Path) -> None:
    def filled() -> bool:
        found = drawn(notebook, "loss")
        line = found["line"]
        return bool(line and line["right"] - line["left"] >= 0.9 * found["width"])

    eventually("the curve fills the chart", filled)
    charts.figure(notebook.runs.first, "loss").scroll_into_view_if_needed()
    notebook.page.screenshot(path=shots / "metrics.png")

    def has_exact_ticks(title: str, last: int) -> bool:
        found = drawn(notebook, title)  # the last points may be on their way
        places = [(tick["x"], int(tick["label"]) / last * found["width"]) for tick in found["below"]]
        return len(places) >= 2 and all(at == pytest.approx(wanted, abs=1.5) for at, wanted in places)

    for title, last in (("loss", 400), ("stepless", 40)):
        eventually(f"ticks of {title}", functools.partial(has_exact_ticks, title, last))


def test_live_metric_chart_y_ticks_are_exact(notebook: NotebookPage) -> None:
    """A tick's label is its height: 0.75 is not called 0.8."""
    eventually("the ticks are there", lambda: len(drawn(notebook, "accuracy")["beside"]) > 1)
    for title, last in (("accuracy", 1.0), ("loss", 1e-6)):
        ticks = drawn(notebook, title)["beside"]
        values = [float(tick["label"]) for tick in ticks]
        assert len(values) > 1 and values == sorted(set(values)) and values[-1] <= last
        low, high = ticks[0], ticks[-1]
        for tick, value in zip(ticks, values, strict=True):
            share = (value - values[0]) / (values[-1] - values[0])
            assert tick["y"] == pytest.approx(low["y"] + share * (high["y"] - low["y"]), abs=1)


def test_live_metric_with_one_value_is_number(notebook: NotebookPage) -> None:
    tile = notebook.runs.first.locator(".jp-AmlRun-tile:visible")
    expect(tile).to_have_text(re.compile(r"once\s*0\.5"), timeout=MS)
    expect(charts.figure(notebook.runs.first, "once")).to_be_hidden(timeout=MS)


def test_chart_wheel_and_drag_stay_in_page(notebook: NotebookPage, lab: LabServer, shots: Path) -> None:
    page, run = notebook.page, notebook.runs.first
    eventually("the curve is drawn", lambda: drawn(notebook, "loss")["line"])
    log = lab.folder / "server.txt"
    before = len(log.read_bytes())
    page.evaluate(SENT)
    for figure in run.locator(".jp-AmlRun-figure:visible").all():
        left, top, width, height = area(notebook, figure)
        page.mouse.move(left + width / 2, top + height / 2)
        page.mouse.wheel(0, -300)
        page.mouse.down()
        page.mouse.move(left + width / 2 + 30, top + height / 2, steps=3)
        page.mouse.up()
    live = run.get_by_role("button", name="Live", exact=True)
    eventually("the charts hold still", lambda: "mod-active" not in (live.get_attribute("class") or ""))

    def inside() -> bool:
        labels = [int(tick["label"]) for tick in drawn(notebook, "loss")["below"]]
        return bool(labels) and labels[0] > 0 and labels[-1] < 400

    eventually("fewer steps are shown", inside)
    page.screenshot(path=shots / "zoomed.png")
    assert not [kind for kind in page.evaluate("amlSent") if kind.startswith("comm")]
    live.click()
    eventually("all steps are shown again", lambda: drawn(notebook, "loss")["below"][-1]["label"] == "400")
    notebook.cell("print('after the zoom')")  # the kernel has taken all that was sent before
    assert "after the zoom" in notebook.outputs_text()
    output = log.read_bytes()[before:].decode(errors="replace")
    assert "Traceback" not in output and "unconverted data" not in output, output[-2000:]
