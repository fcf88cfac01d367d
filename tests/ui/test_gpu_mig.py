"""A machine with a split GPU: its instances in the panel, in a monitor's dashboard and in `compute show`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import end_all
from tests.fakes import driver as fake
from tests.fakes.driver import GIB, Instance, SwitchableDriver
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> SwitchableDriver:
    made = fake.needed(tmp_path_factory.mktemp("driver"), gpus=2)
    made.mig(0, [Instance(0, 3, used=7 * GIB), Instance(1, 4, used=2 * GIB), Instance(2, 5)])
    made.set(1, utilization=(64, 30), memory=(80 * GIB, 512 << 20, 31 * GIB))
    made.stream(1, 64)
    return made


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
    found = open_notebook(page, driver_lab, driver_lab.write("mig.ipynb", [code_cell("# a notebook")]))
    found.cell("%load_ext jupyter_amltrain")
    try:
        yield found
    finally:
        found.close()
        driver_lab.end_runs()


def test_mig_instances_are_named_and_counted(notebook: NotebookPage, driver: SwitchableDriver, shots: Path) -> None:
    notebook.cell("%aml_compute show")
    shown = notebook.page.get_by_text(re.compile("free of 4")).first
    expect(shown).to_be_visible(timeout=MS)
    notebook.cell("%aml_monitor")
    legend = notebook.page.locator(".jp-AmlDashboard-legend").first
    expect(legend).to_contain_text("GPU 0 MIG 2", timeout=MS)
    expect(legend).to_contain_text("2 × NVIDIA H100 80GB HBM3, 3 × NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    panel = PanelPage(notebook.page).open()
    panel.wait_state("ready")
    for title in ("Runs", "Submit"):
        panel.section(title, open=False)
    panel.section("GPUs")
    for name in ("GPU 0 MIG 0", "GPU 0 MIG 1", "GPU 0 MIG 2"):
        expect(panel.gpus.locator("li", has_text=name)).to_be_visible(timeout=MS)
    expect(panel.gpus.locator("li", has_text="GPU 0 MIG 0")).to_contain_text("7.00 GiB", timeout=MS)
    # Instances are not added to the GPU whose memory they have.
    expect(panel.gpus).to_contain_text("of 160 GiB", timeout=MS)
    expect(notebook.page.locator("#jupyter-amltrain-panel")).to_contain_text(
        "3 × NVIDIA H100 80GB HBM3 MIG 1g.10gb, 1 × NVIDIA H100 80GB HBM3", timeout=MS
    )
    panel.settle()
    notebook.page.screenshot(path=shots / "gpu-mig.png")
