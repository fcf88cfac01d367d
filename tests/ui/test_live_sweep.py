"""A sweep from a cell in JupyterLab: its board while it runs, beside a busy kernel, and after its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, code_cell, eventually, open_notebook

SWEEP = """%%aml_sweep --param x=uniform(0,5) --param kind=choice(a,b) --goal "minimize loss" --seed 1 --max-trials 8 --max-concurrent 2 --name curve --gpus 0
import time
import mlflow

for step in range(8):
    mlflow.log_metric("loss", (x - 2) ** 2 + (kind == "b") + 1 / (step + 1), step=step)
    time.sleep(0.2)
"""  # noqa: E501
ROWS = "tbody tr[data-trial]"


@pytest.mark.thorough
def test_sweep_is_drawn_live_while_cell_runs_and_stays(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("live-sweep.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain")
        notebook.cell(SWEEP)
        run = notebook.runs.first
        expect(run.locator(".jp-AmlSweep-counts")).to_contain_text("of 8 trials", timeout=MS)
        notebook.sleeping_cell()
        expect(run.locator(".jp-AmlSweep-best")).to_contain_text("trial", timeout=MS)
        page.screenshot(path=shots / "sweep-live.png")
        expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=2 * MS)
        expect(run.locator(ROWS)).to_have_count(8)
        expect(run.locator(f"{ROWS}.jp-mod-best")).to_have_count(1)
        eventually("the record is final", lambda: notebook.records()[-1]["done"])
        run.scroll_into_view_if_needed()
        page.screenshot(path=shots / "sweep-ended.png")
        assert not axe(page, ".jp-AmlRun")
        expect(page.locator(".jp-toast-message, .Toastify__toast")).to_have_count(0)
        notebook.interrupt()
    finally:
        notebook.close()
        lab.end_runs()


@pytest.mark.thorough
def test_dashboard_of_sweep_draws_curves_of_trials_by_bqplot(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("sweep-dashboard.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain")
        notebook.cell(SWEEP)
        notebook.cell("%aml_runs dashboard last")
        dashboard = notebook.runs.nth(1)
        trials = dashboard.locator(".jp-AmlRun-figure").first
        expect(trials.locator(".jp-AmlRun-chartTitle")).to_contain_text("loss of the trials", timeout=MS)
        lines = trials.locator("path.line")
        eventually("lines of trials", lambda: lines.evaluate_all("x => x.filter(e => e.getAttribute('d')).length") >= 2)
        expect(dashboard.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=2 * MS)
        eventually("all lines", lambda: lines.evaluate_all("x => x.filter(e => e.getAttribute('d')).length") == 8)
        trials.scroll_into_view_if_needed()  # what is not seen is not drawn
        expect(dashboard.locator(".jp-AmlRun-figure")).to_have_count(4, timeout=MS)
        right = "e => e.getBoundingClientRect().right"
        eventually("room for the best value", lambda: trials.evaluate("e => e.getBoundingClientRect().width") < 500)
        rightmost = "x => Math.max(...x.map(e => e.getBoundingClientRect().right))"
        eventually("a new drawing", lambda: lines.evaluate_all(rightmost) <= trials.evaluate(right))
        page.screenshot(path=shots / "sweep-dashboard.png")
    finally:
        notebook.close()
        lab.end_runs()
