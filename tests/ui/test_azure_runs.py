"""Children and links of runs in Azure, in a real JupyterLab on the sandbox of ``tests/azure``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.azure import yaml_files
from tests.azure.conftest import Azure
from tests.ui.azure import TRAIN, connect, sandboxed
from tests.ui.lab import MS, LabServer, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

STEPS = yaml_files.PIPELINE.replace(
    "jobs:\n", f"jobs:\n  wrong:\n    command: echo about to fail; exit 3\n    environment: {yaml_files.ENVIRONMENT}\n"
)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Azure, LabServer]]:
    with sandboxed(tmp_path_factory.mktemp("azure") / "lab") as found:
        yield found


@pytest.fixture(scope="module")
def lab(sandbox: tuple[Azure, LabServer]) -> LabServer:
    return sandbox[1]


@pytest.fixture(scope="module")
def page(browser: Browser, sandbox: tuple[Azure, LabServer]) -> Iterator[Page]:
    """A page of a server whose kernels know the workspace ``lab`` and the cluster ``cpus``."""
    azure, lab = sandbox
    page = browser.new_page(viewport={"width": 1300, "height": 950})
    page.set_default_timeout(MS)
    notebook = open_notebook(page, lab, lab.write("setup.ipynb", []))
    PanelPage(page).open().connect()
    notebook.cell(connect(azure))
    notebook.cell("%aml_compute create cpus --kind amlcompute --size Standard_DS2_v2 --max-nodes 2 --yes --wait\n")
    yield page
    page.close()


def test_trials_and_steps_are_tables_in_output_and_panel(page: Page, lab: LabServer, shots: Path) -> None:
    (lab.notebooks / "src").mkdir()
    (lab.notebooks / "src" / "score.py").write_text(yaml_files.SCORE)
    (lab.notebooks / "sweep.yml").write_text(yaml_files.SCORED)
    (lab.notebooks / "steps.yml").write_text(STEPS)
    notebook = open_notebook(page, lab, lab.write("children.ipynb", []))
    panel = PanelPage(page).open().connect()
    notebook.cell("%aml_submit sweep.yml --target cpus --wait\n")
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "completed")
    panel.select(handle)
    output = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-AmlRun-view").last
    best = f"{handle.partition('/')[2]}_1"
    table = panel.node.locator(".jp-AmlChildren")
    expect(table.locator("tbody tr")).to_have_count(3, timeout=MS)
    expect(table.locator(".jp-AmlChildren-best")).to_have_count(1)
    row = table.locator(f"tr[data-child='{best}']")
    expect(row).to_contain_text("loss 0.125")
    expect(row.locator(".jp-AmlChildren-best")).to_be_visible()
    expect(row.get_by_role("link")).to_have_attribute("href", re.compile(rf"https://ml\.azure\.com/runs/{best}\?"))
    output.scroll_into_view_if_needed()
    expect(output.locator("tbody tr[data-trial]")).to_have_count(3, timeout=MS)  # the board of the sweep
    expect(output.locator("tbody tr.jp-mod-best")).to_contain_text("0.125")
    page.screenshot(path=shots / "children-sweep.png")
    panel.node.get_by_role("button", name=f"Log of {best}").click()
    log = page.locator(".jp-AmlLog:visible")
    expect(log).to_contain_text("scored 0.125", timeout=MS)
    expect(log.locator(".jp-AmlLog-state")).to_contain_text(best)
    page.screenshot(path=shots / "children-log.png")

    open_notebook(page, lab, "children.ipynb")
    notebook.cell("%aml_submit steps.yml --target cpus\n")
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "failed")
    panel.select(handle)
    table = panel.node.locator(".jp-AmlChildren")
    expect(table.locator("tbody tr[data-child]").filter(has_text="wrong")).to_have_attribute(
        "data-state", "failed", timeout=MS
    )
    expect(table).to_contain_text("exit code 3")
    page.screenshot(path=shots / "children-steps.png")


def test_run_links_are_shown_in_panel_and_menu(page: Page, lab: LabServer, shots: Path) -> None:
    """Its page all the time, the others while it runs: in the panel, in its menu and in the cell's output."""
    notebook = open_notebook(page, lab, lab.write("links.ipynb", []))
    panel = PanelPage(page).open().connect()
    line = TRAIN.replace(
        "--name", "--service jupyterlab --service tensorboard --env AzureML-acpt-pytorch-2.8-cuda12.6 --name"
    )
    notebook.cell(line.format(target="cpus", name="links").replace("import time,", "import sklearn, time,"))
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "running")
    panel.row(handle).click()
    output = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-AmlRun-view").last
    for links in (panel.node.locator(".jp-AmlRuns-doors"), output.locator(".jp-AmlRun-doors")):
        studio = links.get_by_role("link", name="Azure ML studio")
        expect(studio).to_have_attribute(
            "href", re.compile(rf"https://ml\.azure\.com/runs/{handle.partition('/')[2]}\?wsid=")
        )
        for title in ("JupyterLab", "TensorBoard"):
            link = links.get_by_role("link", name=title)
            expect(link).to_have_attribute("href", re.compile(r"https://\S+\.nodes\.azureml\.ms"), timeout=MS)
    expect(output.locator(".jp-AmlRun-notes")).to_contain_text("lacks scikit-learn")
    output.scroll_into_view_if_needed()
    menu = panel.menu(handle)
    for title in ("Azure ML Studio", "JupyterLab", "TensorBoard"):
        expect(menu.get_by_text(f"Open in {title}", exact=True)).to_be_visible()
    expect(menu.get_by_text("Open in VS Code", exact=True)).to_be_hidden()
    panel.page.screenshot(path=shots / "azure-links.png")
    panel.page.keyboard.press("Escape")
    notebook.cell(f"%aml_runs cancel {handle}\n%aml_runs wait {handle}")
    panel.wait_run(handle, "canceled")
    expect(panel.node.locator(".jp-AmlRuns-doors").get_by_role("link")).to_have_count(1)


SWEEP = """%%aml_sweep --target cpus --param x=choice(1,2,4) --sampler grid --goal "minimize loss" --name grid --wait
import mlflow
for step in range(5):
    mlflow.log_metric("loss", (x - 2) ** 2 + 1 / (step + 1), step=step)
"""


def test_cell_sweep_of_service_has_board(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("azure-sweep.ipynb", []))
    notebook.cell("%load_ext jupyter_amltrain")
    notebook.cell(SWEEP)
    run = notebook.runs.last
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    expect(run.locator("tbody tr[data-trial]")).to_have_count(3, timeout=MS)
    expect(run.locator("tbody tr.jp-mod-best")).to_contain_text("0.2")
    run.scroll_into_view_if_needed()
    page.screenshot(path=shots / "azure-sweep.png")
