"""The whole way: a cell in JupyterLab, the agent, the kernel's pushes, the page, and back by Cancel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, load_page, open_notebook

SUBMIT = """%%aml_submit --name epochs --param epochs=100000
import time
import mlflow

for epoch in range(epochs):
    mlflow.log_metric("loss", 1 / (epoch + 1), step=epoch)
    print("epoch", epoch, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def notebook(page: Page, lab: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    name = lab.write(f"{request.node.name}.ipynb", [code_cell("# a notebook")])
    # A run that an earlier test left would hold the slot that ours waits for.
    lab.end_runs()
    found = open_notebook(page, lab, name)
    try:
        found.cell("%load_ext jupyter_amltrain")
        found.cell(SUBMIT)
        run = found.runs.first
        expect(run.locator(".jp-AmlRun-state")).to_have_text("running", timeout=MS)
        expect(run.locator(".jp-AmlRun-log pre")).to_contain_text("epoch 3", timeout=MS)
        yield found
    finally:
        found.close()
        lab.end_runs()


@pytest.mark.thorough
def test_real_run_is_drawn_live_and_canceled_while_cell_runs(notebook: NotebookPage, shots: Path) -> None:
    run = notebook.runs.first
    for title in ("loss", "CPU"):  # live charts have taken the place of the record's
        expect(run.locator(".jp-AmlRun-figure .jp-AmlRun-chartTitle", has_text=title)).to_be_visible(timeout=MS)
    notebook.page.screenshot(path=shots / "live.png")
    prompt = notebook.sleeping_cell()
    notebook.cancel(run, "epochs")
    expect(run.locator(".jp-AmlRun-state")).to_have_text("canceled", timeout=MS)
    expect(prompt).to_have_text("[*]:")
    eventually("the page sees the kernel busy again", lambda: notebook.kernel_status() == "busy")
    eventually("the record is final", lambda: notebook.records()[-1]["done"])
    notebook.page.screenshot(path=shots / "canceled.png")
    notebook.interrupt()


@pytest.mark.thorough
def test_real_run_after_reload_is_followed_to_end(notebook: NotebookPage, lab: LabServer) -> None:
    name = str(notebook.page.evaluate("() => jupyterapp.shell.currentWidget.context.path"))
    notebook.save()
    again = load_page(notebook.page, lab, name)
    run = again.runs.first
    expect(run).to_have_attribute("data-source", "live", timeout=MS)
    expect(run.locator(".jp-AmlRun-log pre")).to_contain_text("epoch 30", timeout=MS)
    notebook.cancel(run, "epochs")
    expect(run.locator(".jp-AmlRun-state")).to_have_text("canceled", timeout=MS)
    eventually("the model holds the end", lambda: again.records()[-1]["done"])
