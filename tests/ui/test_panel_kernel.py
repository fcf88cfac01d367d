"""The panel without a connected notebook: a kernel of its own lists the runs of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import end_all
from tests.ui.lab import MS, LabServer, attach, code_cell, load_page
from tests.ui.panel import PanelPage
from tests.ui.test_panel_runs import shell

pytestmark = pytest.mark.thorough

SCRIPT = """
import mlflow
for step in range(4):
    mlflow.log_metric("loss", 1 / (1 + step), step=step)
print("trained")
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A server with one past run, whose kernels are all visible in its log."""
    server = LabServer(tmp_path_factory.mktemp("own") / "lab")
    (server.notebooks / "train.py").write_text(SCRIPT)
    shell(server, "submit", "train.py", "--wait")
    yield server
    server.close()
    end_all(server.folder / "state")


def kernels(page: Page) -> list[str]:
    """Paths of the Jupyter sessions of the server."""
    found: list[str] = page.evaluate(
        "async () => { const s = jupyterapp.serviceManager.sessions; await s.refreshRunning();"
        " return [...s.running()].map(model => model.path); }"
    )
    return found


def test_runs_are_listed_without_notebook(page: Page, lab: LabServer, shots: Path) -> None:
    page.goto(f"{lab.url}/lab/workspaces/none?reset&token={lab.token}")
    page.wait_for_function("() => window.jupyterapp?.commands.hasCommand('jupyter-amltrain:open')")
    page.evaluate("() => jupyterapp.restored.then(() => true)")
    panel = PanelPage(page).open()
    panel.wait_state("no-notebook")
    expect(panel.rows).to_have_count(1, timeout=MS)
    row = panel.rows.first
    expect(row).to_have_attribute("data-state", "completed", timeout=MS)
    row.click()
    expect(panel.node.locator(".jp-AmlRuns-facts")).to_contain_text(re.compile(r"loss\s*0\.25"), timeout=MS)
    panel.action("run-logs").first.click()
    expect(page.locator(".jp-AmlLogTab, .jp-AmlTab").last).to_contain_text("trained", timeout=MS)
    panel.settle()
    page.screenshot(path=shots / "own-kernel-no-notebook.png")
    assert kernels(page) == ["training-runs-panel"]
    # Another page, and this one after a reload, use the same kernel.
    page.reload()
    page.wait_for_function("() => window.jupyterapp?.commands.hasCommand('jupyter-amltrain:open')")
    page.evaluate("() => jupyterapp.restored.then(() => true)")
    panel.open()
    expect(panel.rows).to_have_count(1, timeout=MS)
    assert kernels(page) == ["training-runs-panel"]


def test_cell_is_submitted_from_unconnected_notebook(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = load_page(page, lab, lab.write("fresh.ipynb", [code_cell("print('trained')")]))
    panel = PanelPage(page).open()
    panel.wait_state("not-loaded")
    expect(panel.rows).to_have_count(1, timeout=MS)
    expect(panel.state_view.get_by_role("button", name="Connect")).to_be_visible()
    page.screenshot(path=shots / "own-kernel-not-connected.png")
    panel.command("submit-cell")
    submit = panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name="Submit", exact=True)
    expect(panel.submit.locator(".jp-AmlSubmit-line")).to_have_text("%%aml_submit", timeout=MS)
    submit.click()
    panel.wait_state("ready")
    expect(panel.rows).to_have_count(2, timeout=MS)
    expect(panel.rows.filter(has_text="fresh")).to_have_attribute("data-state", "completed", timeout=MS)
    # The line that loads the extension is still there for others, and says nothing here.
    notebook.cell("%load_ext jupyter_amltrain")
    assert "already" not in notebook.outputs_text()
    notebook.close()


def test_restarted_kernel_reconnects_without_click(page: Page, lab: LabServer) -> None:
    notebook = load_page(page, lab, lab.write("again.ipynb", []))
    panel = PanelPage(page).open().connect()
    notebook.cell("before = 1")
    with panel.reconnects():
        notebook.restart_kernel()
    notebook.cell("print('before' in globals())")
    assert "False" in notebook.outputs_text()
    # Who unloads the extension wants it unloaded.
    notebook.cell("%reload_ext jupyter_amltrain\n%unload_ext jupyter_amltrain")
    panel.command("refresh")
    panel.wait_state("not-loaded")
    notebook.cell("1 + 1")
    page.wait_for_timeout(1000)
    assert panel.state == "not-loaded"
    notebook.close()


def test_kernel_without_extension_logs_no_error(page: Page, lab: LabServer) -> None:
    log = lab.folder / "server.txt"
    before = log.stat().st_size
    notebook = load_page(page, lab, lab.write("plain.ipynb", []))
    panel = PanelPage(page).open()
    panel.wait_state("not-loaded")
    for source in ("1 + 1", "2 + 2"):
        notebook.cell(source)
    panel.command("refresh")
    panel.wait_state("not-loaded")
    notebook.close()
    assert "UNKNOWN CONTROL MESSAGE" not in log.read_text()[before:].upper()


def test_launcher_card_opens_first_notebook_that_runs(page: Page, lab: LabServer, shots: Path) -> None:
    page.goto(f"{lab.url}/lab/workspaces/first?reset&token={lab.token}")
    card = page.locator(".jp-LauncherCard", has_text="First training run")
    card.scroll_into_view_if_needed()
    page.screenshot(path=shots / "launcher.png")
    card.click()
    notebook = attach(page, "first-training-run.ipynb")
    page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")
    output = notebook.runs.first
    expect(output).to_contain_text("completed", timeout=MS)
    page.screenshot(path=shots / "first-notebook.png")
    notebook.close()
