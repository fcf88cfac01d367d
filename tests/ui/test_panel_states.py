"""Every connection state of panel and kernel: its message, its actions, how it recovers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from tests.conftest import end_all
from tests.ui.lab import MS, LabServer, NotebookPage, attach, code_cell, eventually, load_page, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

#: The package cannot be found, as in an environment that has none.
WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == 'jupyter_amltrain':
            raise ModuleNotFoundError("No module named 'jupyter_amltrain'", name='jupyter_amltrain')
sys.meta_path.insert(0, Without())
"""

thorough = pytest.mark.thorough


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A server of its own: it does not start dead kernels again, and has kernels of other kinds."""
    folder = tmp_path_factory.mktemp("states")
    server = LabServer(folder / "lab", ["--KernelRestarter.restart_limit=0"])
    server.kernelspec("other", "R, so to speak", language="R")
    server.kernelspec("bare", "Python (bare)", site=WITHOUT)
    server.put_targets({"long": {"kind": "fake", "queued": 0.1, "running": 3600.0}})
    yield server
    server.close()
    end_all(server.folder / "state")


class Wire:
    """The websockets of a page, which can be cut."""

    def __init__(self, page: Page) -> None:
        self._open: list[WebSocketRoute] = []
        self.cut = False
        page.route_web_socket("**/channels*", self._take)

    def _take(self, route: WebSocketRoute) -> None:
        if self.cut:
            route.close(code=3001)
            return
        route.connect_to_server()
        self._open.append(route)

    def sever(self) -> None:
        self.cut = True
        for route in self._open:
            route.close(code=3001)
        self._open.clear()


@pytest.fixture
def notebook(page: Page, lab: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    """A notebook of its own for each test, the panel open."""
    found = open_notebook(page, lab, lab.write(f"{request.node.name.partition('[')[0]}.ipynb", []))
    PanelPage(page).open()
    yield found
    found.close()


@pytest.fixture
def panel(notebook: NotebookPage) -> PanelPage:
    return PanelPage(notebook.page)


def shown(panel: PanelPage, shots: Path, name: str) -> str:
    """Keep a picture; the words of the state."""
    panel.settle()
    panel.page.screenshot(path=shots / f"state-{name}.png")
    return panel.state_view.inner_text()


def test_connect_button_loads_extension(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    panel.wait_state("not-loaded")
    assert "%load_ext jupyter_amltrain" in shown(panel, shots, "not-loaded") or panel.state_view.is_visible()
    panel.connect()
    expect(panel.state_view).to_be_hidden(timeout=MS)
    expect(panel.target("local")).to_contain_text("in use", timeout=MS)
    notebook.cell("ip = get_ipython(); print(len(ip.user_ns['In']), 'aml_submit' in ip.magics_manager.magics['cell'])")
    assert "2 True" in notebook.outputs_text()  # In[0] is empty, In[1] this cell: what Connect ran is none


@thorough
def test_manual_load_is_detected(notebook: NotebookPage, panel: PanelPage) -> None:
    panel.wait_state("not-loaded")
    notebook.cell("%load_ext jupyter_amltrain")
    panel.wait_state("ready")


@thorough
def test_connect_waits_for_running_cell(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    panel.wait_state("not-loaded")
    notebook.sleeping_cell()
    panel.state_view.get_by_role("button", name="Connect").click()
    panel.wait_state("loading")
    assert "cell" in shown(panel, shots, "loading")
    notebook.interrupt()
    panel.wait_state("ready")


def test_long_native_call_shows_not_responding_then_recovers(
    notebook: NotebookPage, panel: PanelPage, shots: Path
) -> None:
    panel.connect()
    notebook.cell("%%aml_submit --target long --name held\npass")
    handle = notebook.records()[0]["handle"]
    panel.wait_run(handle, "running")
    # A call in a cell's first instant keeps even the word that a cell runs from the page.
    with notebook.interpreter_held():
        panel.wait_state("not-responding")
        text = shown(panel, shots, "not-responding")
        assert "not responding" in text.lower() and "last seen" in text.lower()
        expect(panel.row(handle)).to_be_visible()  # as last seen
        assert not panel.enabled("run-cancel", handle=handle)
        assert not panel.state_view.get_by_role("button", name="Connect").is_visible()
    panel.wait_state("ready")
    panel.select(handle)
    panel.action("run-cancel").click()
    panel.confirm("Cancel run")
    panel.wait_run(handle, "canceled")


def test_reload_during_long_cell_restores_panel(page: Page, lab: LabServer, shots: Path) -> None:
    name = lab.write("reloaded.ipynb", [])
    notebook = load_page(page, lab, name)
    panel = PanelPage(page).open().connect()
    notebook.cell("%%aml_submit --target long --name kept\npass")
    handle = notebook.records()[0]["handle"]
    panel.wait_run(handle, "running")
    notebook.save()
    notebook.sleeping_cell()
    page.reload()
    page.wait_for_function("name => window.jupyterapp?.shell?.currentWidget?.context?.path === name", arg=name)
    panel.open()
    panel.wait_state("ready")
    panel.wait_run(handle, "running")
    panel.select(handle)
    panel.action("run-cancel").click()
    panel.confirm("Cancel run")
    panel.wait_run(handle, "canceled")
    panel.page.screenshot(path=shots / "state-reloaded.png")
    notebook.interrupt()
    notebook.close()


def test_two_windows_show_same_state(
    notebook: NotebookPage, panel: PanelPage, lab: LabServer, browser: Browser, shots: Path
) -> None:
    panel.connect()
    other_page = browser.new_page(viewport={"width": 900, "height": 800})
    other_page.set_default_timeout(MS)
    try:
        path = notebook.page.evaluate("() => jupyterapp.shell.currentWidget.context.path")
        notebook.save()
        other_page.goto(f"{lab.url}/lab/workspaces/second/tree/{path}?reset&token={lab.token}")
        other = PanelPage(attach(other_page, path).page).open()
        other.wait_state("ready")
        notebook.cell("%%aml_submit --target long --name shared\npass")
        handle = notebook.records()[0]["handle"]
        for one in (panel, other):
            one.wait_run(handle, "running")
        other.select(handle)
        other.action("run-cancel").click()
        other.confirm("Cancel run")
        for one in (panel, other):
            one.wait_run(handle, "canceled")
        panel.use("long")
        for one in (panel, other):
            expect(one.target("long")).to_contain_text("in use", timeout=MS)
        other.use("local")
        for one in (panel, other):
            expect(one.target("local")).to_contain_text("in use", timeout=MS)
        other_page.screenshot(path=shots / "state-second-window.png")
    finally:
        other_page.close()


@thorough
def test_panel_follows_active_notebook(notebook: NotebookPage, panel: PanelPage, page: Page, lab: LabServer) -> None:
    panel.connect()
    second = open_notebook(page, lab, lab.write("second.ipynb", []))
    panel.wait_state("not-loaded")
    expect(panel.node.locator(".jp-AmlHeader-notebook")).to_have_text("second.ipynb", timeout=MS)
    second.close()
    panel.wait_state("ready")


@thorough
def test_kernel_restart_and_death_are_shown(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    panel.connect()
    notebook.cell("%%aml_submit --target local --name outlives\nimport time; time.sleep(600)")
    handle = notebook.records()[0]["handle"]
    panel.wait_run(handle, "running")
    with panel.reconnects():  # without a click, because it was connected before
        notebook.restart_kernel()
    panel.wait_run(handle, "running")  # runs outlive kernels
    notebook.cell("import os; print('pid', os.getpid())")
    pid = int(next(line for line in notebook.outputs_text().splitlines() if line.startswith("pid")).split()[1])
    os.kill(pid, signal.SIGKILL)
    panel.wait_state("dead")
    text = shown(panel, shots, "dead")
    assert "runs" in text.lower()
    expect(panel.row(handle)).to_be_visible()
    button = panel.state_view.get_by_role("button", name="Restart")
    dialog = panel.page.locator(".jp-Dialog")
    # JupyterLab's own word about it comes at any moment.
    panel.page.add_locator_handler(dialog, lambda: dialog.get_by_role("button").last.click())
    button.click()
    panel.page.remove_locator_handler(dialog)
    panel.wait_state("ready")
    panel.wait_run(handle, "running")
    panel.command("run-cancel", handle=handle)
    panel.confirm("Cancel run")
    panel.wait_run(handle, "canceled")


@thorough
def test_lost_connection_shows_reconnecting(browser: Browser, lab: LabServer, shots: Path) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 950})
    page.set_default_timeout(MS)
    wire = Wire(page)
    try:
        notebook = load_page(page, lab, lab.write("wire.ipynb", []))
        panel = PanelPage(page).open().connect()
        wire.sever()
        panel.wait_state("reconnecting")
        shown(panel, shots, "reconnecting")
        expect(panel.target("local")).to_be_visible()
        wire.cut = False
        panel.wait_state("ready")
        notebook.cell("%%aml_submit --target long --name after\npass")
        handle = notebook.records()[0]["handle"]
        panel.wait_run(handle, "running")
        panel.command("run-cancel", handle=handle)
        panel.confirm("Cancel run")
        notebook.close()
    finally:
        page.close()


@thorough
def test_panel_without_kernel_or_notebook_shows_state(page: Page, lab: LabServer, shots: Path) -> None:
    name = lab.write("kernelless.ipynb", [code_cell("1")], kernel=None)
    notebook = open_notebook(page, lab, name, kernel=False)
    panel = PanelPage(page).open()
    panel.wait_state("no-kernel")
    assert "kernel" in shown(panel, shots, "no-kernel").lower()
    expect(panel.state_view.get_by_role("button")).to_be_visible()
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")
    page.evaluate("() => [...jupyterapp.shell.widgets('main')].forEach(w => w.dispose())")
    panel.wait_state("no-notebook")
    assert "notebook" in shown(panel, shots, "no-notebook").lower()
    expect(panel.state_view.get_by_role("button")).to_be_visible()


@thorough
def test_panel_with_other_language_shows_state(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("r.ipynb", [], kernel="other"))
    panel = PanelPage(page).open()
    panel.wait_state("other-language")
    assert "Python" in shown(panel, shots, "other-language")
    notebook.close()


@thorough
def test_panel_without_package_shows_install(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("bare.ipynb", [], kernel="bare"))
    panel = PanelPage(page).open()
    panel.wait_state("not-loaded")
    panel.state_view.get_by_role("button", name="Connect").click()
    panel.wait_state("missing")
    text = shown(panel, shots, "missing")
    assert "%pip install jupyter-amltrain" in text and "Python (bare)" in text
    notebook.close()


@thorough
def test_panel_with_other_protocol_version_shows_state(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    panel.wait_state("not-loaded")
    notebook.cell(
        "import jupyter_amltrain.frontend.protocol as protocol\nprotocol.VERSION = 99\n%load_ext jupyter_amltrain"
    )
    panel.wait_state("other-version")
    text = shown(panel, shots, "other-version")
    assert "99" in text and "same version" in text


@thorough
def test_not_responding_state_counts_seconds(notebook: NotebookPage, panel: PanelPage) -> None:
    panel.connect()
    # A call in a cell's first instant keeps even the word that a cell runs from the page.
    with notebook.interpreter_held():
        panel.wait_state("not-responding")
        first = panel.state_view.locator(".jp-AmlState-seen").inner_text()
        eventually("the seconds count", lambda: panel.state_view.locator(".jp-AmlState-seen").inner_text() != first)
    panel.wait_state("ready")
