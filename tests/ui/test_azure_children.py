"""Steps of a pipeline and trials of a sweep in a real JupyterLab on the sandbox of ``tests/azure``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.azure import yaml_files
from tests.azure.conftest import Azure
from tests.ui.azure import connect, sandboxed
from tests.ui.lab import MS, LabServer, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

STEPS = yaml_files.PIPELINE.replace(
    "jobs:\n", f"jobs:\n  wrong:\n    command: echo about to fail; exit 3\n    environment: {yaml_files.ENVIRONMENT}\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Azure, LabServer]]:
    with sandboxed(tmp_path / "lab") as found:
        yield found


def test_trials_and_steps_are_tables_in_output_and_panel(
    browser: Browser, place: tuple[Azure, LabServer], shots: Path
) -> None:
    azure, lab = place
    (lab.notebooks / "src").mkdir()
    (lab.notebooks / "src" / "score.py").write_text(yaml_files.SCORE)
    (lab.notebooks / "sweep.yml").write_text(yaml_files.SCORED)
    (lab.notebooks / "steps.yml").write_text(STEPS)
    page = browser.new_page(viewport={"width": 1300, "height": 950})
    page.set_default_timeout(MS)
    notebook = open_notebook(page, lab, lab.write("children.ipynb", []))
    panel = PanelPage(page).open().connect()
    notebook.cell(connect(azure))
    notebook.cell("%aml_compute create cpus --kind amlcompute --size Standard_DS2_v2 --max-nodes 2 --yes --wait\n")
    notebook.cell("%aml_submit sweep.yml --target cpus --wait\n")
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "completed")
    panel.select(handle)
    output = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-AmlRun-view").last
    best = f"{handle.partition('/')[2]}_1"
    for table in (panel.node.locator(".jp-AmlChildren"), output.locator(".jp-AmlChildren")):
        expect(table.locator("tbody tr")).to_have_count(3, timeout=MS)
        expect(table.locator(".jp-AmlChildren-best")).to_have_count(1)
        row = table.locator(f"tr[data-child='{best}']")
        expect(row).to_contain_text("loss 0.125")
        expect(row.locator(".jp-AmlChildren-best")).to_be_visible()
        expect(row.get_by_role("link")).to_have_attribute("href", re.compile(rf"https://ml\.azure\.com/runs/{best}\?"))
    output.scroll_into_view_if_needed()
    output.get_by_role("button", name=f"Log of {best}").click()
    expect(output.locator(".jp-AmlRun-childLog pre")).to_have_text("scored 0.125\n", timeout=MS)
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
    page.close()
