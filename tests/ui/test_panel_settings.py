"""The settings of the panel, each in a real page."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import end_all
from tests.ui.lab import MS, LabServer, NotebookPage, eventually, load_page
from tests.ui.panel import PanelPage
from tests.ui.traffic import Traffic

PLUGIN = "jupyter-amltrain:panel"

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A server of its own, since settings outlive pages."""
    server = LabServer(tmp_path_factory.mktemp("settings") / "lab")
    server.put_targets({"wide": {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": 4, "period": 0.5}}, "wide")
    yield server
    server.close()
    end_all(server.folder / "state")


@pytest.fixture(scope="module")
def traffic(page: Page) -> Traffic:
    return Traffic().listen(page)


@pytest.fixture
def notebook(page: Page, lab: LabServer, traffic: Traffic, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    found = load_page(page, lab, lab.write(f"{request.node.name}.ipynb", []))
    PanelPage(page).open()
    yield found
    found.close()


@pytest.fixture
def panel(notebook: NotebookPage) -> PanelPage:
    return PanelPage(notebook.page)


def put(panel: PanelPage, **values: object) -> None:
    """Change settings as the settings editor does."""
    panel.page.evaluate(
        """async ([plugin, values]) => {
            // A page has no other way to a token of JupyterLab's.
            const token = [...jupyterapp.pluginRegistry._services.keys()]
                .find(token => token.name === '@jupyterlab/coreutils:ISettingRegistry');
            const registry = await jupyterapp.resolveRequiredService(token);
            const settings = await registry.load(plugin);
            for (const [name, value] of Object.entries(values)) { await settings.set(name, value); }
        }""",
        [PLUGIN, values],
    )


def comes(panel: PanelPage, traffic: Traffic, kind: str) -> None:
    """Wait for an event of this type."""

    def come() -> bool:
        panel.settle(0.1)  # lets the page's messages in
        return bool(traffic.events(kind))

    eventually(f"{kind} come", come)


def test_auto_connect_after_restart(notebook: NotebookPage, panel: PanelPage) -> None:
    panel.wait_state("not-loaded")
    put(panel, autoConnect=True)
    try:
        panel.wait_state("ready")
        notebook.cell("answer = 42")
        with panel.reconnects():
            notebook.restart_kernel()
        notebook.cell("print('answer' in globals(), 'aml_runs' in get_ipython().magics_manager.magics['line'])")
        assert "False True" in notebook.outputs_text()
        # Who unloads it wants it unloaded.
        notebook.cell("%reload_ext jupyter_amltrain\n%unload_ext jupyter_amltrain")
        panel.command("refresh")
        panel.wait_state("not-loaded")
        panel.settle(1.0)
        assert panel.state == "not-loaded"
    finally:
        put(panel, autoConnect=False)


def test_status_bar_shows_gpus_of_current_target(notebook: NotebookPage, panel: PanelPage, traffic: Traffic) -> None:
    panel.connect()
    put(panel, statusBarSeconds=2)
    notebook.cell("import jupyter_amltrain as aml\nrun = aml.submit('pass', target='wide', name='busy')")
    panel.hide()
    percent = re.compile(r"\d+% GPU")
    expect(panel.status_item).to_have_text(percent, timeout=MS)
    comes(panel, traffic, "meter")
    put(panel, statusBarSeconds=0)
    panel.settle(1.0)
    traffic.clear()
    panel.settle(5)
    assert traffic.events("meter") == []
    expect(panel.status_item).to_have_text(re.compile("running"), timeout=MS)
    expect(panel.status_item).not_to_have_text(percent)
    notebook.cell("run.cancel()")


def test_watch_target_setting_off_stops_sampling(panel: PanelPage, traffic: Traffic) -> None:
    panel.connect()
    expect(panel.gpus.locator("canvas").first).to_be_visible(timeout=MS)
    put(panel, watchTarget=False)
    try:
        expect(panel.gpus.locator(".jp-AmlGpus-ask")).to_be_visible(timeout=MS)
        panel.settle(3)
        traffic.clear()
        panel.settle(3)
        assert traffic.events("gpus") == []
        panel.gpus.locator(".jp-AmlGpus-ask").click()
        comes(panel, traffic, "gpus")
    finally:
        put(panel, watchTarget=True)
