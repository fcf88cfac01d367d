"""Views of the GPUs' charts and the table of now, in real JupyterLab on a driver that the test switches."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import end_all
from tests.fakes import driver as fake
from tests.fakes.driver import ALL_ONES_32, GIB, Process, SwitchableDriver
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, open_notebook

pytestmark = pytest.mark.thorough

GPUS = 2
LINK_TX, LINK_RX = (138, ALL_ONES_32), (139, ALL_ONES_32)


class Load(threading.Thread):
    """GPUs at work: their values change ten times a second until it is stopped."""

    def __init__(self, driver: SwitchableDriver) -> None:
        super().__init__(daemon=True)
        self.driver, self.stopped = driver, threading.Event()
        self.rows: list[Process] = []

    def run(self) -> None:
        step = 0
        while not self.stopped.wait(0.1):
            step += 1
            self.play(step)

    def play(self, step: int) -> None:
        """Set the values of a tenth of a second."""
        t = step / 10
        with self.driver.changes():
            for gpu in range(GPUS):
                wave = math.sin(t / 4 + 2 * gpu)
                moved = int(t * (3 + gpu) * GIB)
                self.driver.set(
                    gpu, utilization=(97 - gpu, 40), memory=(80 * GIB, 512 << 20, int((38 + gpu + wave) * GIB)),
                    power=int(610_000 + 70_000 * wave), temperature=int(61 + 6 * wave), clock_reasons=4,
                    sm_clock=int(1755 + 120 * wave),
                )  # fmt: skip
                self.driver.gpm(gpu, {2: 71 + 12 * wave, 5: 38 + 9 * wave, 10: 55 + 20 * wave})
                self.driver.fields(gpu, {198: moved, 197: moved // 9, LINK_RX: moved >> 9, LINK_TX: moved >> 9})
                self.driver.violation(gpu, 0, int(t * 3e8))
                self.driver.processes(gpu, self.rows)
                self.driver.process_utilization(gpu, [(row.pid, step * 100_000, 93 - gpu) for row in self.rows])

    def stop(self) -> None:
        self.stopped.set()
        self.join()


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    found = Load(fake.needed(tmp_path_factory.mktemp("driver"), gpus=GPUS))
    found.play(0)  # what a device can tell is asked once
    yield found
    found.stop()


@pytest.fixture(scope="module")
def gpu_lab(tmp_path_factory: pytest.TempPathFactory, load: Load) -> Iterator[LabServer]:
    folder = tmp_path_factory.mktemp("gpu-views-lab")
    server = LabServer(folder, **load.driver.environment(), AMLTRAIN_GRACE="1")
    yield server
    server.close()
    end_all(folder / "state")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run(page: Page, gpu_lab: LabServer, load: Load) -> Iterator[tuple[NotebookPage, Locator]]:
    name = gpu_lab.write("views.ipynb", [code_cell("# a notebook")])
    notebook = open_notebook(page, gpu_lab, name)
    try:
        notebook.cell("%load_ext jupyter_amltrain")
        notebook.cell(f"%%aml_submit --gpus {GPUS}\nimport time; time.sleep(600)")
        output = notebook.runs.last
        expect(output.locator(".bqplot").first).to_be_visible(timeout=MS)
        yield notebook, output
    finally:
        notebook.close()
        gpu_lab.end_runs()


def titles(run: Locator) -> list[str]:
    return [text.strip() for text in run.locator(".jp-AmlRun-figure .jp-AmlRun-chartTitle").all_text_contents()]


def lines(run: Locator, chart: int) -> int:
    """Lines of a chart that have points."""
    paths = run.locator(".bqplot").nth(chart).locator("path.line")
    return int(paths.evaluate_all("all => all.filter(path => (path.getAttribute('d') || '').length > 40).length"))


def shows(run: Locator, title: str) -> bool:
    """Whether the first chart has this title, and lines."""
    return bool(found := titles(run)) and found[0].startswith(title) and lines(run, 0) >= GPUS


def choose(run: Locator, label: str) -> None:
    run.get_by_label("GPU charts").select_option(label=label)


def test_gpu_views_switch_charts_while_cell_runs(
    run: tuple[NotebookPage, Locator], gpu_lab: LabServer, load: Load, shots: Path
) -> None:
    notebook, output = run
    states = list((gpu_lab.folder / "state" / "runs").glob("*/state.json"))
    own = eventually("the job runs", lambda: json.loads(states[0].read_text()).get("rank"))["pid"]
    load.rows = [Process(own, 37 * GIB), Process(os.getpid(), 420 << 20)]
    load.start()
    eventually("the activity is drawn", lambda: any("SM activity" in title for title in titles(output)))
    notebook.cell("import time; time.sleep(3)", wait=False)  # a busy kernel
    choose(output, "Temperature, clocks, throttling")
    eventually("other charts", lambda: "".join(titles(output)[:1]).startswith("Temperature"))
    eventually("with their past", lambda: all(lines(output, chart) >= GPUS for chart in range(2)))
    choose(output, "SM, tensor cores, DRAM")
    eventually("activity", lambda: titles(output)[:3] == ["SM activity", "Tensor core activity", "DRAM bandwidth"])
    eventually("drawn", lambda: all(lines(output, chart) >= GPUS for chart in range(3)))
    choose(output, "PCIe, NVLink")
    eventually("transfers", lambda: "".join(titles(output)[:1]).startswith("PCIe"))
    eventually("drawn", lambda: lines(output, 1) >= GPUS)
    table = output.locator("table.jp-AmlDashboard-table")
    expect(table.first).to_contain_text("SM activity")
    expect(table.nth(1)).to_contain_text("command")
    notebook.page.wait_for_timeout(20_000 if "AMLTRAIN_SHOTS" in os.environ else 0)
    pictures = {
        "activity": ("SM, tensor cores, DRAM", "SM activity"),
        "charts": ("Temperature, clocks, throttling", "Temperature"),
        "now": ("Utilization, memory, power", "GPU utilization"),
    }
    for name, (view, title) in pictures.items():
        choose(output, view)
        eventually("its charts", functools.partial(shows, output, title))
        notebook.page.wait_for_timeout(1500)
        output.screenshot(path=shots / f"gpu-{name}.png")
    notebook.theme("JupyterLab Dark")
    output.screenshot(path=shots / "gpu-now-dark.png")
    notebook.page.set_viewport_size({"width": 760, "height": 950})
    notebook.page.wait_for_timeout(1500)
    output.screenshot(path=shots / "gpu-now-narrow.png")
    notebook.page.set_viewport_size({"width": 1200, "height": 950})
    notebook.theme("JupyterLab Light")
