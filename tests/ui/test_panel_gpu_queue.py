"""A lost GPU in the panel, and a run that waits for a GPU which its own notebook holds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import end_all
from tests.fakes import driver as fake
from tests.fakes.driver import GIB, Process, SwitchableDriver
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> SwitchableDriver:
    return fake.needed(tmp_path_factory.mktemp("driver"), gpus=2)


@pytest.fixture(scope="module")
def driver_lab(tmp_path_factory: pytest.TempPathFactory, driver: SwitchableDriver) -> Iterator[LabServer]:
    folder = tmp_path_factory.mktemp("driver-lab")
    server = LabServer(folder, AMLTRAIN_SAMPLE_PERIOD="0.25", AMLTRAIN_GRACE="1", **driver.environment())
    yield server
    server.close()
    end_all(folder / "state")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def notebook(page: Page, driver_lab: LabServer) -> Iterator[NotebookPage]:
    found = open_notebook(page, driver_lab, driver_lab.write("gpus.ipynb", [code_cell("# a notebook")]))
    found.cell("%load_ext jupyter_amltrain")
    try:
        yield found
    finally:
        found.close()
        driver_lab.end_runs()


def test_lost_gpu_is_shown(notebook: NotebookPage, driver: SwitchableDriver, shots: Path) -> None:
    notebook.cell("%aml_compute show")
    driver.set(0, utilization=(87, 40), memory=(80 * GIB, 512 << 20, 52 * GIB))
    driver.stream(0, 87)
    panel = PanelPage(notebook.page).open()
    panel.wait_state("ready")
    for title in ("Runs", "Submit"):
        panel.section(title, open=False)
    panel.section("GPUs")
    row = panel.gpus.locator("li", has_text="GPU 1")
    expect(row).to_be_visible(timeout=MS)  # the monitor has both
    driver.lose(1)
    notebook.cell("import time, jupyter_amltrain.api as api\nwhile not api.compute().gpus_lost: time.sleep(0.2)")
    notebook.cell("%aml_compute show")
    expect(notebook.page.get_by_text(re.compile("free of 2, 1 lost")).first).to_be_visible(timeout=MS)
    expect(row).to_contain_text("lost", timeout=MS)
    expect(panel.gpus.locator("li", has_text="GPU 0")).to_contain_text("87 %", timeout=MS)
    panel.settle()
    notebook.page.screenshot(path=shots / "gpu-lost.png")
    panel.hide()


def test_queue_names_notebook_holding_gpu(notebook: NotebookPage, driver: SwitchableDriver, shots: Path) -> None:
    notebook.cell("import os; print(f'kernel={os.getpid()}')")
    pid = int(str(eventually("the pid", lambda: re.search(r"kernel=(\d+)", notebook.outputs_text())[1])))  # type: ignore[index]
    driver.processes(0, [Process(pid, 6 * GIB)])
    notebook.cell("%%aml_submit --gpus 1 --name digits --wait\nprint('trained')", wait=False)
    run = notebook.runs.first
    expect(run).to_contain_text("this notebook's kernel", timeout=MS)
    expect(run).to_contain_text("--share-gpus")
    run.scroll_into_view_if_needed()
    notebook.page.screenshot(path=shots / "gpu-queue.png")
    driver.processes(0, [])
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    expect(run).not_to_contain_text("in line")


def test_target_row_lists_who_uses_each_gpu(
    notebook: NotebookPage, driver: SwitchableDriver, driver_lab: LabServer, shots: Path
) -> None:
    driver.restore(1)
    driver.set(0, utilization=(98, 40), memory=(80 * GIB, 512 << 20, 12 * GIB))
    notebook.cell("%%aml_submit --gpus 0.25 --name shared\nimport time; time.sleep(600)")
    panel = PanelPage(notebook.page).open()
    panel.section("Compute")
    row = panel.target("local")
    row.click()
    expect(row).to_contain_text("local/shared-", timeout=MS)  # read again while it is open
    expect(row).to_contain_text("0.75 of it is free", timeout=MS)
    expect(row).to_contain_text("98 %, 12.0 GiB of 80.0 GiB", timeout=MS)
    driver.set(0, utilization=(7, 4))
    expect(row).to_contain_text("7 %, 12.0 GiB", timeout=MS)
    panel.settle()
    notebook.page.screenshot(path=shots / "gpu-users.png")
    row.press("ArrowLeft")
    driver_lab.end_runs()
    panel.hide()
