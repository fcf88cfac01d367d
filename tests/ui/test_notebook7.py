"""Jupyter Notebook 7: the same extension in a page with one notebook and another shell."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import end_all
from tests.ui.lab import MS, LabServer, NotebookPage, attach, eventually
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

if importlib.util.find_spec("notebook") is None:
    pytest.skip("notebook is not installed: pip install .[test]", allow_module_level=True)

TARGETS = {"long": {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": 2}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(
        tmp_path_factory.mktemp("notebook7") / "lab",
        ["--JupyterNotebookApp.expose_app_in_browser=True"],
        app="notebook",
    )
    server.put_targets(TARGETS, current="long")
    yield server
    server.close()
    end_all(server.folder / "state")


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """Errors that the page has thrown or written."""
    return []


@pytest.fixture(scope="module")
def page(browser: Browser, complaints: list[str]) -> Iterator[Page]:
    found = browser.new_page(viewport={"width": 1200, "height": 950})
    found.set_default_timeout(MS)
    found.on("pageerror", lambda error: complaints.append(f"{error}\n{error.stack}"))
    found.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    yield found
    found.close()


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    name = lab.write("seven.ipynb", [])
    page.goto(f"{lab.url}/notebooks/{name}?token={lab.token}")
    return attach(page, name)


@pytest.fixture(scope="module")
def panel(notebook: NotebookPage) -> PanelPage:
    return PanelPage(notebook.page).open().connect()


def test_notebook7_loads_without_error(notebook: NotebookPage, panel: PanelPage, complaints: list[str]) -> None:
    expect(panel.target("long")).to_contain_text("in use", timeout=MS)
    assert not [text for text in complaints if "amltrain" in text.lower()]


def test_notebook7_menu_shows_panel(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    page = notebook.page
    page.evaluate("() => jupyterapp.shell.collapseLeft()")
    expect(panel.node).to_be_hidden(timeout=MS)
    page.get_by_role("menuitem", name="View").click()
    page.get_by_role("menuitem", name="Training runs").first.click()
    page.screenshot(path=shots / "notebook7-menu.png")
    expect(panel.node).to_be_visible(timeout=MS)


def test_notebook7_cell_is_submitted_shown_and_canceled(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    notebook.cell("print('a cell')")
    panel.command("submit-cell")
    line = panel.submit.locator(".jp-AmlSubmit-line")
    expect(line).to_have_text("%%aml_submit", timeout=MS)
    panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name="Submit", exact=True).click()
    eventually("a run was submitted", lambda: notebook.records())
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "running")
    shown = notebook.page.locator(".jp-AmlRun").last
    expect(shown).to_contain_text(handle, timeout=MS)
    panel.settle(2)
    notebook.page.screenshot(path=shots / "notebook7.png")
    panel.select(handle)
    panel.action("run-cancel").click()
    panel.confirm("Cancel run")
    panel.wait_run(handle, "canceled")
    expect(shown).to_contain_text("canceled", timeout=MS)
