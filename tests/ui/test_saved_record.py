"""A notebook is drawn from what is saved in it, with no kernel at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, open_notebook, run_output

DATA = Path(__file__).parent / "data"


def saved(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return record


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> Iterator[NotebookPage]:
    names = ("completed", "failed", "running", "sparse")
    cells = [code_cell(f"# {name}", [run_output(saved(name))]) for name in names]
    found = open_notebook(page, lab, lab.write("saved.ipynb", cells, kernel=None), kernel=False)
    expect(found.runs).to_have_count(4, timeout=MS)
    yield found
    found.close()


def test_saved_finished_run_shows_all_parts(notebook: NotebookPage, shots: Path) -> None:
    run = notebook.runs.nth(0)
    run.scroll_into_view_if_needed()
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed")
    # The label of a phase that is too short for one is on its tooltip.
    parts = run.locator(".jp-AmlRun-phase")
    titles = parts.evaluate_all("nodes => nodes.map(node => node.title)")
    assert titles == ["queued 1.20 s", "running 41.3 s", "finalizing 0.60 s"]
    widths = parts.evaluate_all("nodes => nodes.map(node => node.getBoundingClientRect().width)")
    assert min(widths) >= 2 and widths[1] > 0.9 * sum(widths), "not true to scale"
    expect(run.locator(".jp-AmlRun-outputs")).to_contain_text("accuracy0.9694")
    expect(run.locator(".jp-AmlRun-chartTitle")).to_have_text(["loss", "accuracy", "learning_rate", "CPU", "Memory"])
    expect(run.locator(".jp-AmlRun-chartValue")).to_have_text(
        ["0.12", "0.9709", "0.001", "mean 87 of 200 %", "peak 417 MiB of 23.5 GiB"]
    )
    expect(run.locator(".jp-AmlRun-log pre")).to_contain_text("epoch 29")
    expect(run.locator(".jp-AmlRun-cancel")).to_be_hidden()
    expect(run.locator(".jp-AmlRun-notice")).to_be_hidden()
    line = run.locator("path.jp-AmlRun-line").first.get_attribute("d") or ""
    assert line.count("L") == 29
    notebook.page.screenshot(path=shots / "saved-light.png")


def test_saved_chart_shows_value_under_pointer(notebook: NotebookPage) -> None:
    chart = notebook.runs.nth(0).locator(".jp-AmlRun-chart").first
    chart.scroll_into_view_if_needed()
    box = chart.locator("svg").bounding_box()
    assert box is not None
    notebook.page.mouse.move(box["x"] + box["width"] - 11, box["y"] + 40)
    expect(chart.locator(".jp-AmlRun-chartValue")).to_contain_text("step 29:")
    notebook.page.mouse.move(0, 0)
    expect(chart.locator(".jp-AmlRun-chartValue")).not_to_contain_text("step")


def test_saved_record_of_earlier_version_has_charts_of_its_series(notebook: NotebookPage) -> None:
    run = notebook.runs.nth(2)
    assert "charts" not in notebook.records()[2]
    titles = run.locator(".jp-AmlRun-chartTitle")
    expect(titles).to_have_text(["loss", "accuracy", "learning_rate", "CPU", "Memory"])
    assert all(run.locator("path.jp-AmlRun-line").evaluate_all("lines => lines.map(line => line.getAttribute('d'))"))
    expect(run.locator("[data-series='host memory'] .jp-AmlRun-axes")).to_contain_text("MiB")


def test_saved_failed_run_shows_cause(notebook: NotebookPage) -> None:
    run = notebook.runs.nth(1)
    expect(run.locator(".jp-AmlRun-state")).to_have_text("failed (exit code 1)")
    expect(run.get_by_role("alert").first).to_contain_text("line 7 of the cell")
    expect(run.locator(".jp-AmlRun-log pre")).to_contain_text("ValueError: shapes (3,) and (4,) do not match")
    assert run.locator(".jp-AmlRun-phase").last.get_attribute("data-state") == "failed"


def test_saved_runs_have_no_serious_accessibility_violation(notebook: NotebookPage) -> None:
    assert axe(notebook.page, ".jp-AmlRun") == []


def test_saved_unfinished_run_shows_age_and_reconnect(notebook: NotebookPage) -> None:
    run = notebook.runs.nth(2)
    run.scroll_into_view_if_needed()
    expect(run.locator(".jp-AmlRun-notice")).to_contain_text("Last update")
    expect(run.locator(".jp-AmlRun-notice")).to_contain_text("%load_ext jupyter_amltrain")
    expect(run.locator(".jp-AmlRun-cancel")).to_be_hidden()
    # Nobody knows how long it has been running: its length is the one that was saved.
    expect(run.locator(".jp-AmlRun-phaseText")).to_have_text(["queued 1.20 s", "running 18.8 s"])


def test_saved_record_with_wrong_fields_is_drawn(notebook: NotebookPage) -> None:
    run = notebook.runs.nth(3)
    expect(run.locator(".jp-AmlRun-name")).to_have_text("x")
    expect(run.locator(".jp-AmlRun-notice")).to_contain_text("newer jupyter-amltrain (schema 99")


@pytest.mark.thorough
def test_saved_record_dark_and_narrow_screenshot(notebook: NotebookPage, shots: Path) -> None:
    notebook.theme("JupyterLab Dark")
    notebook.page.set_viewport_size({"width": 560, "height": 950})
    try:
        run = notebook.runs.nth(0)
        run.scroll_into_view_if_needed()
        expect(run.locator(".jp-AmlRun-chart").first).to_be_visible()
        widths = run.evaluate("node => [node.scrollWidth, node.clientWidth]")
        assert widths[0] <= widths[1], "wider than its output area"
        notebook.page.screenshot(path=shots / "saved-dark-narrow.png")
    finally:
        notebook.page.set_viewport_size({"width": 1200, "height": 950})
        notebook.theme("JupyterLab Light")
