"""One picture of a run: the charts look the same live, ended and reopened without a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, open_notebook

pytestmark = pytest.mark.thorough

SUBMIT = """%%aml_submit --name design
import math
import time
import mlflow

mlflow.log_metric("parameters", 1.2e6)
for i in range(30):
    mlflow.log_metric("loss", math.exp(-i / 6), step=10 * i)
    mlflow.log_metric("accuracy", 1 - math.exp(-i / 9), step=10 * i)
    mlflow.log_metric("grad", math.nan if i == 9 else 1 / (1 + i), step=10 * i)
    mlflow.log_metric("rate", 0.1 * 0.9**i, step=10 * i)
    mlflow.log_metric("entropy", 2 - i / 30, step=10 * i)
    time.sleep(0.1)
time.sleep(600)
"""

#: Of each visible chart with a caption: title, and box of the drawing and of the caption relative to the output.
BOXES = """run => {
    const outer = run.getBoundingClientRect();
    const box = node => { const b = node.getBoundingClientRect();
        return [b.left - outer.left, b.top - outer.top, b.width, b.height].map(Math.round); };
    const shown = node => node.getClientRects().length > 0;
    const live = [...run.querySelectorAll('.jp-AmlRun-figure')].filter(shown).map(node =>
        [node.querySelector('.jp-AmlRun-chartTitle').textContent, box(node)]);
    const saved = [...run.querySelectorAll('figure.jp-AmlRun-chart')].filter(shown).map(node =>
        [node.querySelector('.jp-AmlRun-chartTitle').textContent, box(node.querySelector('svg'))]);
    return live.length ? { kind: 'live', charts: live } : { kind: 'saved', charts: saved };
}"""


#: Of each visible chart: title, and the labels of its ticks beside and below it, live or saved.
LABELS = """run => {
    const shown = node => node.getClientRects().length > 0;
    const texts = nodes => [...nodes].map(node => node.textContent).filter(Boolean);
    const live = [...run.querySelectorAll('.jp-AmlRun-figure')].filter(shown).map(node => [
        node.querySelector('.jp-AmlRun-chartTitle').textContent,
        texts(node.querySelectorAll("g[text-anchor='end'] > .tick")).sort(),
        texts(node.querySelectorAll("g[text-anchor='middle'] > .tick")).sort()]);
    const saved = [...run.querySelectorAll('figure.jp-AmlRun-chart')].filter(shown).map(node => {
        const labels = [...node.querySelectorAll('.jp-AmlRun-axes text')];
        const isBeside = label => Number(label.getAttribute('x')) < 50;
        return [node.querySelector('.jp-AmlRun-chartTitle').textContent,
            texts(labels.filter(isBeside)).sort(), texts(labels.filter(label => !isBeside(label))).sort()];
    });
    return live.length ? live : saved;
}"""


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> Iterator[NotebookPage]:
    found = open_notebook(page, lab, lab.write("design.ipynb", [code_cell("# a notebook")]))
    try:
        found.cell("%load_ext jupyter_amltrain")
        found.cell(SUBMIT)
        expect(found.runs.first.locator(".jp-AmlRun-figure", has_text="loss")).to_be_visible(timeout=MS)
        yield found
    finally:
        found.close()
        lab.end_runs()


def boxes(run: Locator) -> dict[str, Any]:
    found: dict[str, Any] = run.evaluate(BOXES)
    return found


def titles(run: Locator) -> list[str]:
    return [title for title, _ in boxes(run)["charts"]]


EXPECTED = ["loss", "accuracy", "grad (1 not finite)", "rate", "CPU", "Memory"]


def ticks(run: Locator, title: str, side: str) -> list[str]:
    """Labels of the ticks of a live chart: ``middle``: below it, ``end``: beside it."""
    figure = run.locator(".jp-AmlRun-figure:visible", has_text=title)
    return [text for text in figure.locator(f"g[text-anchor='{side}'] > .tick").all_text_contents() if text]


def test_metrics_are_charted_as_chosen(notebook: NotebookPage, page: Page, shots: Path) -> None:
    run = notebook.runs.first
    eventually("all charts are live", lambda: titles(run) == EXPECTED)
    bar = run.get_by_role("group", name="Charts of metrics").locator("visible=true")
    bar.get_by_label("Y axis").select_option("log")
    eventually("the axis is logarithmic", lambda: "0.01" in ticks(run, "loss", "end"))
    bar.get_by_label("X axis").select_option("time")
    eventually("the axis is time", lambda: all(":" in text for text in ticks(run, "loss", "middle")))
    bar.get_by_label("Smoothing").select_option("0.9")
    page.screenshot(path=shots / "design-log-time.png")
    bar.get_by_label("Y axis").select_option("linear")
    bar.get_by_label("X axis").select_option("step")
    eventually("the axis is steps", lambda: "200" in ticks(run, "loss", "middle"))
    bar.get_by_label("Smoothing").select_option("0")
    bar.locator("summary").click()
    bar.get_by_label("entropy").check()
    bar.get_by_label("rate").uncheck()
    bar.locator("summary").click()
    eventually("other metrics are charted", lambda: titles(run)[:4] == ["loss", "accuracy", EXPECTED[2], "entropy"])
    bar.locator("summary").click()
    bar.get_by_label("entropy").uncheck()
    bar.get_by_label("rate").check()
    bar.locator("summary").click()
    eventually("the first metrics are charted", lambda: titles(run) == EXPECTED)


def test_live_chart_is_read_by_keyboard(notebook: NotebookPage, page: Page) -> None:
    run = notebook.runs.first
    figure = run.locator(".jp-AmlRun-figure:visible", has_text="accuracy")
    eventually("the last step is there", lambda: "200" in ticks(run, "accuracy", "middle"))
    figure.focus()
    page.keyboard.press("Home")
    spoken = figure.locator(".jp-AmlRun-chartSpoken")
    expect(spoken).to_have_text(re.compile("step 0, accuracy 0$"), timeout=MS)
    page.keyboard.press("ArrowRight")
    expect(spoken).to_contain_text("step 10, accuracy 0.10")
    page.keyboard.press("End")
    expect(spoken).to_have_text(re.compile("step 2.0, accuracy 0.9"), timeout=MS)


def test_header_leads_to_views_of_run(notebook: NotebookPage, page: Page, shots: Path) -> None:
    run = notebook.runs.first
    handle = notebook.records()[0]["handle"]
    links = run.get_by_role("navigation", name="Views of design").get_by_role("button")
    expect(links).to_have_text(["Log", "Files", "MLflow", "Dashboard", "Copy handle"], timeout=MS)
    expect(run.locator(".jp-AmlRun-handle")).to_be_hidden()
    run.locator("summary", has_text="Details").click()
    expect(run.locator(".jp-AmlRun-handle")).to_have_text(handle)
    expect(run.locator(".jp-AmlRun-logPath")).to_contain_text("rank-0")
    run.locator("summary", has_text="Details").click()
    links.filter(has_text="Dashboard").click()
    tab = page.locator(".jp-AmlDashboardTab")
    expect(tab.locator(".jp-AmlRun-figure:visible", has_text="loss")).to_be_visible(timeout=MS)
    assert axe(page, ".jp-AmlDashboardTab") == []
    page.screenshot(path=shots / "design-tab.png")
    page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")
    links.filter(has_text="Copy handle").click()
    expect(page.locator(".Toastify__toast", has_text=handle)).to_be_visible(timeout=MS)


def test_charts_stay_in_place_live_ended_and_reopened(
    notebook: NotebookPage, lab: LabServer, page: Page, shots: Path
) -> None:
    run = notebook.runs.first
    eventually(f"all charts are live: {titles(run)}", lambda: titles(run) == EXPECTED)
    expect(run.locator(".jp-AmlRun-tile:visible")).to_contain_text("parameters", timeout=MS)
    expect(run.locator(".jp-AmlRun-tile:visible")).to_contain_text("1.20e+6")
    live = boxes(run)
    assert live["kind"] == "live"
    page.screenshot(path=shots / "design-live.png")
    expect(run.get_by_role("button", name="Live", exact=True)).to_be_visible()
    assert axe(page, ".jp-AmlRun") == []
    handle = notebook.records()[0]["handle"]
    notebook.cell(f"%aml_runs cancel {handle}\n%aml_runs wait {handle}")
    expect(run).to_contain_text("canceled", timeout=MS)
    expect(run.get_by_role("button", name="Live", exact=True)).to_be_hidden(timeout=MS)
    page.screenshot(path=shots / "design-ended.png")
    labels = run.evaluate(LABELS)
    notebook.save()
    name = lab.copy_without_kernel("design.ipynb", "design-saved.ipynb")
    saved = open_notebook(page, lab, name, kernel=False)
    eventually("the saved charts are drawn", lambda: titles(saved.runs.first) == EXPECTED)
    page.screenshot(path=shots / "design-saved.png")
    for before, after in zip(labels, saved.runs.first.evaluate(LABELS), strict=True):
        assert after[:2] == before[:2]
        if before[0] not in ("CPU", "Memory"):  # the last tick of the time may be at the very end
            assert after[2] == before[2]
    again = boxes(saved.runs.first)
    assert again["kind"] == "saved"
    for (title, before), (_, after) in zip(live["charts"], again["charts"], strict=True):
        shift = [abs(a - b) for a, b in zip(before, after, strict=True)]
        # Below the header, whose lines differ while the run lives, everything is at the same place.
        assert max(shift[0], shift[2], shift[3]) <= 2, (title, before, after)
    saved.close()
