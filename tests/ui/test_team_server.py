"""The record of a run leads to its page at the team's MLflow server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.tracking.team_server import PASSWORD, USER, TeamServer
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, open_notebook

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("flask_wtf") is None, reason="no Flask-WTF for MLflow's authentication"
    ),
]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    server = TeamServer(tmp_path_factory.mktemp("team")).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, team: TeamServer) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("lab"), **team.credentials)
    yield server
    server.end_runs()
    server.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    person = {"username": USER, "password": PASSWORD}
    context = browser.new_context(viewport={"width": 1200, "height": 950}, http_credentials=person)  # type: ignore[arg-type]
    context.set_default_timeout(MS)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    name = lab.write("team.ipynb", [code_cell("%load_ext jupyter_amltrain")])
    made = open_notebook(page, lab, name)
    made.cell("%load_ext jupyter_amltrain")
    return made


def test_mlflow_of_output_opens_team_page(notebook: NotebookPage, page: Page, team: TeamServer, shots: Path) -> None:
    notebook.cell(f"%config AMLTrain.tracking_uri = '{team.uri}'")
    notebook.cell("%%aml_submit --target local --name ours --wait\nimport mlflow\nmlflow.log_metric('f1', 0.5)")
    # The cell after a run's end waits a bounded time for the server; a busy machine may need longer.
    notebook.cell(
        "import mlflow, time\nfor _ in range(120):\n    found = len(mlflow.search_runs(search_all_experiments=True))\n"
        "    if found: break\n    time.sleep(0.5)\nprint(found, 'at the team')"
    )
    eventually("the cell's text", lambda: "1 at the team" in notebook.outputs_text())
    notebook.cell("%aml_runs show ours")
    page.screenshot(path=shots / "team-notebook.png")
    notebook.runs.get_by_role("button", name="MLflow").or_(
        notebook.runs.get_by_text("MLflow", exact=True)
    ).first.click()

    def opened() -> Page | None:
        button = page.locator(".jp-toastContainer").get_by_role("button", name="Open")
        if button.is_visible():
            button.click()
        page.wait_for_timeout(50)
        return page.context.pages[-1] if len(page.context.pages) > 1 else None

    popup = eventually("MLflow's page is opened", opened)
    popup.wait_for_load_state()
    expect(popup.locator("body")).to_contain_text("f1", timeout=60_000)
    assert popup.url.startswith(f"{team.uri}/#/experiments/"), popup.url
    popup.screenshot(path=shots / "team-page.png")
    popup.close()
