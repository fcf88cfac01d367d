"""The side panel in a real JupyterLab: its runs, and what a magic and a click see of each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, eventually, open_notebook
from tests.ui.panel import PanelPage

TARGETS = {
    "quick": {"kind": "fake", "queued": 0.1, "running": 1.0},
    "long": {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": 8, "period": 0.25},
}


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    lab.put_targets(TARGETS)
    return open_notebook(page, lab, lab.write("panel.ipynb", []))


@pytest.fixture(scope="module")
def panel(notebook: NotebookPage) -> PanelPage:
    return PanelPage(notebook.page).open().connect()


def submitted(notebook: NotebookPage, target: str, name: str, code: str = "pass", **params: object) -> str:
    """Submit a cell by the magic; its handle."""
    words = " ".join(f"--param {key}={value}" for key, value in params.items())
    notebook.cell(f"%%aml_submit --target {target} --name {name} {words}\n{code}")
    return str(next(r["handle"] for r in reversed(notebook.records()) if r["handle"].startswith(f"{target}/{name}-")))


def test_run_of_magic_appears_and_ends(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    handle = submitted(notebook, "quick", "first", lr=0.5)
    panel.wait_run(handle, "completed")
    panel.select(handle)
    expect(panel.node.locator(".jp-AmlRuns-facts")).to_contain_text("lr=0.5")
    expect(panel.status_item).to_contain_text("No live runs", timeout=MS)
    panel.page.screenshot(path=shots / "panel.png")


def test_panel_cancel_while_cell_runs_cancels_run(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    handle = submitted(notebook, "long", "victim")
    panel.wait_run(handle, "running")
    expect(panel.status_item).to_contain_text("1 running", timeout=MS)
    prompt = notebook.sleeping_cell()
    panel.select(handle)
    panel.action("run-cancel").click()
    assert "victim" in panel.confirm("Cancel run")
    panel.wait_run(handle, "canceled")
    assert prompt.inner_text() == "[*]:"
    eventually("the page says busy again", lambda: notebook.kernel_status() == "busy")
    panel.page.screenshot(path=shots / "panel-busy.png")
    notebook.interrupt()


@pytest.mark.thorough
def test_target_change_while_cell_runs_is_shown(notebook: NotebookPage, panel: PanelPage) -> None:
    notebook.cell(
        "import time\nfrom jupyter_amltrain import api\nip = get_ipython()\n"
        "ip.run_line_magic('aml_compute', 'use long')\n"
        "while api.current_target() == 'long': time.sleep(0.05)\n"
        "print('back to', api.current_target())",
        wait=False,
    )
    expect(panel.target("long")).to_contain_text("in use", timeout=MS)
    panel.target("local").locator(".jp-AmlTarget-summary").dblclick()
    expect(panel.target("local")).to_contain_text("in use", timeout=MS)
    eventually("the cell has seen it", lambda: "back to local" in notebook.outputs_text())


@pytest.mark.thorough
def test_inline_figure_with_open_panel_is_kept(notebook: NotebookPage, panel: PanelPage) -> None:
    handle = submitted(notebook, "long", "streaming")
    panel.wait_run(handle, "running")
    panel.select(handle)
    panel.command("run-gpus")
    expect(panel.gpus).to_contain_text("%", timeout=MS)
    for i in range(3):
        notebook.cell(
            "%matplotlib inline\nimport matplotlib.pyplot as plt, time\n"
            f"figure, axes = plt.subplots(figsize=(1, 1)); axes.plot([1, {i}]); time.sleep(1)"
        )
    pictures = notebook.page.evaluate(
        """() => [...jupyterapp.shell.currentWidget.content.model.cells].slice(-3)
            .map(cell => cell.outputs.toJSON().filter(output => output.data?.['image/png']).length)"""
    )
    assert pictures == [1, 1, 1]
    panel.command("run-cancel", handle=handle)
    panel.confirm("Cancel run")
    panel.wait_run(handle, "canceled")
