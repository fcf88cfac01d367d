"""The notebook of an Azure cluster in a page, from *Run All Cells* to its last line: nothing bills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import end_all
from tests.test_notebooks import azure_cluster_is_right, outputs_are_right
from tests.ui.lab import MS, LabServer, eventually, open_notebook
from tests.ui.panel import PanelPage
from tools.notebooks import FOLDER, azure

pytestmark = pytest.mark.thorough
NAME = "03_azure_cluster.ipynb"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabServer]:
    """A server whose kernels find the sandbox, with the notebook as it is shipped, its outputs taken away."""
    with azure(tmp_path / "place") as environ:
        server = LabServer(tmp_path / "lab", **environ)
        (server.notebooks / "config.json").write_bytes((tmp_path / "place" / "config.json").read_bytes())
        notebook = json.loads((FOLDER / NAME).read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        (server.notebooks / NAME).write_text(json.dumps(notebook))
        yield server
        server.close()
        end_all(server.folder / "state")


def test_azure_notebook_runs_in_jupyterlab(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, NAME)
    panel = PanelPage(page).open()
    page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")
    eventually("the job is sent", notebook.records)
    handle = notebook.records()[0]["handle"]
    panel.wait_run(handle, "running")
    page.evaluate(
        """mime => {
            const {content} = jupyterapp.shell.currentWidget;
            const cells = [...content.model.cells];
            const at = cells.findIndex(cell => cell.outputs?.toJSON().some(output => output.data?.[mime]));
            return content.scrollToItem(at, 'start');
        }""",
        "application/vnd.amltrain.run+json",
    )
    run = notebook.runs.first
    run.scroll_into_view_if_needed()
    expect(run.locator("pre.jp-AmlTerminal")).to_contain_text("epoch", timeout=MS)
    expect(run.locator(".jp-AmlRun-figure .jp-AmlRun-chartTitle", has_text="loss")).to_be_visible(timeout=MS)
    page.screenshot(path=shots / "03-live.png")
    eventually("the last cell has printed it", lambda: "costing money" in notebook.outputs_text())
    for name in ("cpu-cluster", "gpu-cluster"):
        expect(panel.target(name)).to_have_count(0, timeout=MS)
    panel.wait_run(handle, "completed")  # its cluster is gone, the run is not
    panel.wait_run(notebook.records()[-1]["handle"], "failed")
    page.screenshot(path=shots / "03-completed.png")
    notebook.save()
    eventually("the file has the end", lambda: "costing money: no machine" in (lab.notebooks / NAME).read_text())
    saved = lab.read(NAME)
    outputs_are_right(saved)
    azure_cluster_is_right(saved)
