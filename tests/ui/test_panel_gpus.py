"""The GPUs section: live charts of the target in use and of runs, and that nothing is measured for nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from jupyter_amltrain.demo.fake_node import gpu_values
from tests.conftest import end_all
from tests.ui.lab import MS, LabServer, NotebookPage, eventually, open_notebook
from tests.ui.panel import PanelPage, now
from tests.ui.traffic import Traffic

pytestmark = pytest.mark.thorough

LONG = {"kind": "fake", "queued": 0.1, "running": 3600.0}
TARGETS = {
    "one": {**LONG, "gpus": 1},
    "eight": {**LONG, "gpus": 8},
    "many": {**LONG, "gpus": 64},
    "none": LONG,
    "brief": {**LONG, "gpus": 8, "running": 6.0},
}

thorough = pytest.mark.thorough


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A server of its own: a setting of the panel is changed here."""
    server = LabServer(tmp_path_factory.mktemp("gpus") / "lab")
    server.put_targets(TARGETS, current="eight")
    yield server
    server.close()
    end_all(server.folder / "state")


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A page on a screen with two pixels for one."""
    context = browser.new_context(viewport={"width": 1200, "height": 950}, device_scale_factor=2)
    found = context.new_page()
    found.set_default_timeout(MS)
    yield found
    context.close()


@pytest.fixture(scope="module")
def traffic(page: Page) -> Traffic:
    return Traffic().listen(page)


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer, traffic: Traffic) -> NotebookPage:
    return open_notebook(page, lab, lab.write("gpus.ipynb", []))


@pytest.fixture(scope="module")
def opened(notebook: NotebookPage) -> PanelPage:
    panel = PanelPage(notebook.page).open().connect()
    for title in ("Compute", "Runs", "Submit"):
        panel.section(title, open=False)
    panel.section("GPUs")
    return panel


@pytest.fixture
def panel(opened: PanelPage) -> Iterator[PanelPage]:
    """The section with the target in use that it began with."""
    opened.use("eight")
    opened.gpus.locator("select").select_option(index=0)
    expect(option(opened)).to_have_text("eight (in use)", timeout=MS)
    yield opened


def option(panel: PanelPage) -> Locator:
    """What is chosen."""
    return panel.gpus.locator("option:checked")


def plot(panel: PanelPage, title: str) -> Locator:
    """A chart by its title."""
    return panel.gpus.locator(".jp-AmlRun-chart", has=panel.page.get_by_text(title, exact=True))


def read(panel: PanelPage, title: str, *keys: str) -> list[str]:
    """What the chart's cursor says after these keys."""
    area = plot(panel, title).locator(".jp-AmlRun-chartArea")
    label = plot(panel, title).locator(".jp-AmlRun-chartSpoken")

    def heard() -> str:
        area.focus()
        for key in keys:
            area.press(key)
        return str(label.text_content())  # empty where the chart was just drawn again for another source

    text = str(eventually(f"{title} is read", heard))
    area.press("Escape")
    return text.split(", ")


def painted(panel: PanelPage, title: str) -> int:
    """Pixels of a heat map with anything in them."""
    found: int = (
        plot(panel, title)
        .locator("canvas")
        .evaluate(
            """c => c.getContext("2d").getImageData(0, 0, c.width, c.height).data
                .filter((v, i) => i % 4 === 3 && v).length"""
        )
    )
    return found


def submitted(notebook: NotebookPage, target: str, name: str) -> str:
    notebook.cell(f"%%aml_submit --target {target} --name {name}\npass")
    return str(notebook.records()[-1]["handle"])


def show(panel: PanelPage, handle: str) -> None:
    """The GPUs of a run, once the panel has heard of it."""
    eventually("the panel knows the run", lambda: panel.enabled("run-gpus", handle=handle))
    panel.command("run-gpus", handle=handle)


def cancel(panel: PanelPage, handle: str) -> None:
    """End a run without a question."""
    panel.command("run-cancel", handle=handle)
    panel.confirm("Cancel run")


#: Utilization of a fake GPU after its first two seconds: a wave between these.
LOW, HIGH = 55, 95


def test_current_target_gpus_are_shown(panel: PanelPage, shots: Path) -> None:
    value = plot(panel, "Utilization").locator(".jp-AmlRun-chartValue")
    expect(value).to_have_text(re.compile(r"^\d+ % \(\d+–\d+ %\)$"), timeout=MS)
    at, highest, mean, lowest = read(panel, "Utilization", "End")
    assert at == "now"
    numbers = [int(re.sub(r"\D", "", text)) for text in (lowest, mean, highest)]
    assert numbers == sorted(numbers) and numbers[0] >= LOW and numbers[2] <= HIGH
    gpu, _ = read(panel, "By GPU", "End", "ArrowDown", "ArrowDown")
    assert gpu.startswith("GPU 2: ")
    assert painted(panel, "By GPU")
    for title in ("Utilization", "Memory"):
        assert plot(panel, title).locator("path.jp-AmlRun-line").get_attribute("d")
    canvas = plot(panel, "By GPU").locator("canvas")
    assert canvas.evaluate("c => c.width / c.clientWidth") == pytest.approx(2, abs=0.02)  # sharp on this screen
    panel.page.screenshot(path=shots / "gpus-8.png")


def test_gpu_values_equal_target(panel: PanelPage, notebook: NotebookPage) -> None:
    """At its first ticks a run's GPUs load; then each value of the wave is known."""
    handle = submitted(notebook, "brief", "curve")
    show(panel, handle)
    expect(panel.gpus).to_contain_text("Finished", timeout=MS)
    rows = [[round(gpu_values(0, g, s)["util"]) for g in range(8)] for s in range(7)]
    for back, expected in enumerate(reversed(rows)):
        _, highest, mean, lowest = read(panel, "Utilization", "End", *["ArrowLeft"] * back)
        assert highest == f"highest {max(expected)} %" and lowest == f"lowest {min(expected)} %"
        assert mean == f"mean {int(sum(expected) / 8 + 0.5)} %"
    gpu, at = read(panel, "By GPU", "End", *["ArrowDown"] * 5)
    assert gpu == f"GPU 5: {rows[-1][5]} %" and at == "at the end"


@pytest.mark.thorough
def test_gpus_without_viewer_are_not_sampled(panel: PanelPage, traffic: Traffic, page: Page) -> None:
    def silent(what: str) -> None:
        begin = now()

        def quiet() -> bool:
            page.wait_for_timeout(100)  # frames are taken only while something is asked of the page
            frames = traffic.events("gpus")
            return now() - max([begin, *(frame.at for frame in frames)]) > 4

        eventually(f"no samples come when {what}", quiet, 20)
        traffic.clear()

    def heard() -> None:
        def some() -> bool:
            page.wait_for_timeout(100)
            return bool(traffic.events("gpus"))

        eventually("samples come", some)

    heard()
    panel.hide()
    silent("the panel is hidden")
    panel.open()
    heard()
    panel.section("GPUs", open=False)
    silent("the section is closed")
    panel.section("GPUs")
    heard()
    panel.node.get_by_role("button", name="Stop watching").click()
    silent("a person has stopped it")
    expect(panel.gpus.locator(".jp-AmlGpus-state")).to_contain_text("Not watched.")
    panel.gpus.locator(".jp-AmlGpus-ask").click()
    heard()


@pytest.mark.thorough
def test_target_without_gpus_shows_reason(panel: PanelPage, shots: Path) -> None:
    panel.use("none")
    expect(option(panel)).to_have_text("none (in use)", timeout=MS)
    expect(panel.node.locator(".jp-AccordionPanel-title", has_text="Resources")).to_be_visible(timeout=MS)
    expect(panel.gpus.get_by_title("a fake target without GPUs")).to_be_visible(timeout=MS)
    expect(plot(panel, "Utilization")).to_be_hidden()
    value = plot(panel, "Host CPU").locator(".jp-AmlRun-chartValue")
    expect(value).to_have_text(re.compile(r"^\d+ % of 800 %$"), timeout=MS)
    expect(plot(panel, "Host memory").locator(".jp-AmlRun-chartValue")).to_contain_text("of 32.0 GiB")
    panel.settle()
    panel.page.screenshot(path=shots / "gpus-none.png")


@pytest.mark.thorough
def test_one_and_64_gpus_are_shown(panel: PanelPage, shots: Path) -> None:
    panel.use("one")
    expect(option(panel)).to_have_text("one (in use)", timeout=MS)
    expect(plot(panel, "Utilization").locator(".jp-AmlRun-chartValue")).to_have_text(re.compile(r"^\d+ %$"), timeout=MS)
    expect(plot(panel, "By GPU")).to_be_hidden()
    assert read(panel, "Utilization", "End")[1].startswith("GPU 0: ")
    panel.settle(2)
    panel.page.screenshot(path=shots / "gpus-1.png")
    panel.use("many")
    expect(option(panel)).to_have_text("many (in use)", timeout=MS)
    expect(plot(panel, "By GPU")).to_be_visible(timeout=MS)
    gpu, _ = read(panel, "By GPU", "End", *["Shift+ArrowDown"] * 7)
    assert gpu.startswith("GPU 63: ")
    panel.settle(2)
    panel.page.screenshot(path=shots / "gpus-64.png")


@thorough
def test_run_gpus_show_last_sample(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    handle = submitted(notebook, "eight", "watched")
    show(panel, handle)
    expect(option(panel)).to_have_text("watched", timeout=MS)
    panel.settle(3)  # the first samples of this run
    expect(plot(panel, "Utilization")).to_be_visible(timeout=MS)
    # A kernel that is held by one call sends nothing: what is shown has an age.
    with notebook.interpreter_held():
        state = panel.gpus.locator(".jp-AmlGpus-state")
        expect(state).to_contain_text(re.compile(r"Last sample \d+ s ago"), timeout=MS)
        panel.page.screenshot(path=shots / "gpus-silent.png")
    expect(panel.gpus.locator(".jp-AmlGpus-state")).not_to_contain_text("Last sample", timeout=MS)
    cancel(panel, handle)
    expect(panel.gpus.locator(".jp-AmlGpus-state")).to_contain_text("Finished", timeout=MS)


@thorough
def test_gpu_watch_setting_off_asks(panel: PanelPage, page: Page, traffic: Traffic, shots: Path) -> None:
    def watch(on: bool) -> None:
        page.evaluate(
            """async on => {
                await jupyterapp.serviceManager.settings.save(
                    'jupyter-amltrain:panel', JSON.stringify({watchTarget: on}));
            }""",
            on,
        )

    watch(False)
    page.reload()
    traffic.clear()
    page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.isReady")
    panel.open()
    panel.wait_state("ready")
    try:
        panel.section("GPUs")
        state = panel.gpus.locator(".jp-AmlGpus-state")
        expect(state).to_have_text(re.compile("eight.*request"), timeout=MS)
        panel.settle()
        page.screenshot(path=shots / "gpus-ask.png")
        assert not traffic.events("gpus")
        panel.gpus.locator(".jp-AmlGpus-ask").click()
        expect(plot(panel, "Utilization")).to_be_visible(timeout=MS)
    finally:
        watch(True)


@thorough
def test_gpus_section_screenshots(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    expect(plot(panel, "By GPU")).to_be_visible(timeout=MS)
    before = painted(panel, "By GPU")
    for theme in ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"):
        notebook.theme(theme)
        for width in (250, 450):
            panel.width(width)
            panel.settle(1.2)
            assert painted(panel, "By GPU") and before
            assert panel.gpus.evaluate("node => node.scrollWidth <= node.clientWidth")
            panel.page.screenshot(path=shots / f"gpus-{theme[11:]}-{width}.png")
    notebook.theme("JupyterLab Light")
