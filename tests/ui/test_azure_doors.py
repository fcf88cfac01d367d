"""Links of a run in Azure, in a real JupyterLab on the sandbox of ``tests/azure``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.azure.conftest import Azure
from tests.ui.azure import TRAIN, connect, sandboxed
from tests.ui.lab import MS, LabServer, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Azure, LabServer]]:
    with sandboxed(tmp_path / "lab") as found:
        yield found


def test_run_links_are_shown_in_panel_and_menu(browser: Browser, place: tuple[Azure, LabServer], shots: Path) -> None:
    """Its page all the time, the others while it runs: in the panel, in its menu and in the cell's output."""
    azure, lab = place
    page = browser.new_page(viewport={"width": 1300, "height": 950})
    page.set_default_timeout(MS)
    notebook = open_notebook(page, lab, lab.write("doors.ipynb", []))
    panel = PanelPage(page).open().connect()
    notebook.cell(connect(azure))
    notebook.cell("%aml_compute create cpus --kind amlcompute --size Standard_DS2_v2 --yes --wait\n")
    line = TRAIN.replace(
        "--name", "--service jupyterlab --service tensorboard --env AzureML-acpt-pytorch-2.8-cuda12.6 --name"
    )
    notebook.cell(line.format(target="cpus", name="doors").replace("import time,", "import sklearn, time,"))
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "running")
    panel.row(handle).click()
    output = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-AmlRun-view").last
    for doors in (panel.node.locator(".jp-AmlRuns-doors"), output.locator(".jp-AmlRun-doors")):
        studio = doors.get_by_role("link", name="Azure ML studio")
        expect(studio).to_have_attribute(
            "href", re.compile(rf"https://ml\.azure\.com/runs/{handle.partition('/')[2]}\?wsid=")
        )
        for title in ("JupyterLab", "TensorBoard"):
            link = doors.get_by_role("link", name=title)
            expect(link).to_have_attribute("href", re.compile(r"https://\S+\.nodes\.azureml\.ms"), timeout=MS)
    expect(output.locator(".jp-AmlRun-notes")).to_contain_text("lacks scikit-learn")
    output.scroll_into_view_if_needed()
    menu = panel.menu(handle)
    for title in ("Azure ML Studio", "JupyterLab", "TensorBoard"):
        expect(menu.get_by_text(f"Open in {title}", exact=True)).to_be_visible()
    expect(menu.get_by_text("Open in VS Code", exact=True)).to_be_hidden()
    panel.page.screenshot(path=shots / "azure-doors.png")
    panel.page.keyboard.press("Escape")
    notebook.cell(f"%aml_runs cancel {handle}\n%aml_runs wait {handle}")
    panel.wait_run(handle, "canceled")
    expect(panel.node.locator(".jp-AmlRuns-doors").get_by_role("link")).to_have_count(1)
    page.close()
