"""Live charts in real JupyterLab: true to the script, through reloads, restarts and hidden tabs."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import end_all
from tests.fakes import nvml
from tests.tiers import thorough
from tests.ui import charts
from tests.ui.lab import (
    MS,
    RECORD_MIME,
    LabServer,
    NotebookPage,
    code_cell,
    eventually,
    load_page,
    open_notebook,
)

pytestmark = pytest.mark.thorough

GPUS = 64
PICTURED = """mime => [...jupyterapp.shell.currentWidget.content.model.cells]
    .flatMap(cell => cell.outputs ? cell.outputs.toJSON() : [])
    .some(output => output.data?.[mime] && output.data['image/png'])"""
PIXEL = 1.2  # percent: a figure's axis of 0 to 100 is some 140 pixels high
TARGETS = {"pair": {"queued": 0.2, "running": 600.0, "gpus": 4, "nodes": 2, "period": 0.25}}


def wave(gpu: int, t: float) -> tuple[float, float, float]:
    """A GPU at work: utilization (percent), memory (MiB), power (W)."""
    util = 55 + 35 * math.sin(t / 2 + gpu)
    return util, 2000 + 500 * (gpu % 8) + 800 * min(t, 40), 120 + 5 * util


def idle(gpu: int, t: float) -> tuple[float, float, float]:
    return 0, 3, 68


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> charts.Script:
    return charts.Script(tmp_path_factory.mktemp("curves") / "curves")


@pytest.fixture(scope="module")
def gpu_lab(tmp_path_factory: pytest.TempPathFactory, script: charts.Script) -> Iterator[LabServer]:
    folder = tmp_path_factory.mktemp("gpu-lab")
    script.play(GPUS, wave, 10)
    state = folder / "state"
    state.mkdir(mode=0o700)
    rows = {name: {"kind": "fake", "name": name, **fields} for name, fields in TARGETS.items()}
    (state / "targets.json").write_text(json.dumps({"schema": 1, "current": "local", "targets": rows}))
    server = LabServer(
        folder,
        LD_LIBRARY_PATH=str(nvml.needed()),
        AMLTRAIN_FAKE_NVML_GPUS=str(GPUS),
        AMLTRAIN_FAKE_NVML_CURVES=str(script.path),
        AMLTRAIN_SAMPLE_PERIOD="0.25",
        AMLTRAIN_GRACE="1",
        TZ="Asia/Kathmandu",
    )
    yield server
    server.close()
    end_all(state)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def notebook(page: Page, gpu_lab: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    name = gpu_lab.write(f"{request.node.name.partition('[')[0]}.ipynb", [code_cell("# a notebook")])
    gpu_lab.end_runs()
    found = open_notebook(page, gpu_lab, name)
    try:
        found.cell("%load_ext jupyter_amltrain")
        yield found
    finally:
        found.close()
        gpu_lab.end_runs()


def submit(notebook: NotebookPage, line: str = "", body: str = "import time; time.sleep(600)") -> Locator:
    """Submit a cell; its output once live charts are in it."""
    count = notebook.runs.count()
    notebook.cell(f"%%aml_submit {line}\n{body}")
    run = notebook.runs.nth(count)
    expect(run.locator(".bqplot:visible").first).to_be_visible(timeout=MS)  # a metric with one value has no chart
    return run


def folder_of(lab: LabServer, notebook: NotebookPage) -> Path:
    return lab.folder / "state" / "runs" / str(notebook.records()[-1]["run_id"])


def ended(notebook: NotebookPage, run: Locator) -> None:
    """Cancel the run; back when charts and record have its end."""
    notebook.cancel(run)
    expect(run.locator(".jp-AmlRun-state")).to_have_text("canceled", timeout=MS)
    eventually("the record is final", lambda: notebook.records()[-1]["done"])


def follows(drawn: list[float], truth: list[float], tolerance: float = PIXEL) -> bool:
    """Whether a drawn line is the ticks, one after another, from some tick to the last but few."""
    for late in range(4):
        end = len(truth) - late
        part = truth[end - len(drawn) : end] if end >= len(drawn) else []
        if part and all(abs(a - b) <= tolerance for a, b in zip(drawn, part, strict=True)):
            return True
    return False


@pytest.mark.parametrize("gpus", [1, *thorough(8, GPUS)])
def test_dashboard_pixels_equal_script(
    notebook: NotebookPage, gpu_lab: LabServer, script: charts.Script, gpus: int, shots: Path
) -> None:
    def curve(gpu: int, t: float) -> tuple[float, float, float]:
        # A burst of 0.3 s, each third second: most readings miss it, the driver's samples do not.
        util, memory, power = wave(gpu, t)
        return (100 if t % 3 >= 2.7 else util * 0.5), memory, power

    script.play(GPUS, curve, 120, 0.1)
    run = submit(notebook, f"--gpus {gpus}")
    folder = folder_of(gpu_lab, notebook)
    eventually("ticks are drawn", lambda: len(charts.ticks(folder)[1]) > 40)
    notebook.page.screenshot(path=shots / f"gpus-{gpus}.png")
    ended(notebook, run)

    def right() -> bool:
        # Read each time: the last ticks may come after the record has its end.
        util = [charts.column(folder, gpu, "util") for gpu in range(gpus)]
        peak = [charts.column(folder, gpu, "peak") for gpu in range(gpus)]
        found = charts.lines(run, "GPU utilization", 100)
        if gpus <= 8:
            means = [line for _, opacity, line in found if opacity > 0.9]
            peaks = [line for _, opacity, line in found if opacity <= 0.9]
            if len(means) != gpus or len(peaks) != gpus:
                return False
            pairs = [*zip(means, util, strict=True), *zip(peaks, peak, strict=True)]
            return all(follows(line, truth) for line, truth in pairs)
        high = [max(column) for column in zip(*peak, strict=True)]
        mean = [sum(column) / gpus for column in zip(*util, strict=True)]
        most, middle = found[0][2], found[1][2]
        return follows(most, high) and follows(middle, mean)

    eventually("the pixels are the ticks", right)
    top = max(max(line) for _, _, line in charts.lines(run, "GPU utilization", 100))
    assert top > 95  # the burst is on the screen
    # The ticks themselves are the script.
    header, rows = charts.ticks(folder)
    epoch = float(script.path.read_text().split(None, 2)[1])
    memory = charts.column(folder, gpus - 1, "memory")
    for row, found in list(zip(rows, memory, strict=True))[4::7]:
        near = [curve(gpus - 1, round(row[1] - epoch - late, 1))[1] for late in (0.5, 0.4, 0.3, 0.2, 0.1, 0.0, -0.1)]
        assert min(near) - 60 <= found <= max(near) + 60


def test_dashboard_of_two_nodes_shows_both(notebook: NotebookPage, shots: Path) -> None:
    run = submit(notebook, "--target pair")
    expect(run).to_contain_text("n1 GPU 3", timeout=MS)
    eventually("both nodes are drawn", lambda: len(charts.lines(run, "GPU memory", 1)) >= 8)
    notebook.page.screenshot(path=shots / "two-nodes.png")


@pytest.mark.thorough
def test_dashboard_after_reload_during_cell_continues(
    notebook: NotebookPage, gpu_lab: LabServer, script: charts.Script, shots: Path
) -> None:
    script.play(GPUS, wave, 300)
    submit(notebook, "--gpus 2")
    name = str(notebook.page.evaluate("() => jupyterapp.shell.currentWidget.context.path"))
    notebook.save()
    notebook.sleeping_cell()
    page = notebook.page
    page.goto(f"{gpu_lab.url}/lab/tree/{name}?reset&token={gpu_lab.token}")
    run = NotebookPage(page).runs.first
    expect(run.locator(".bqplot").first).to_be_visible(timeout=MS)  # the cell still runs
    eventually("the lines are drawn", lambda: len(charts.lines(run, "GPU utilization", 100)) >= 2)
    again = NotebookPage(page)
    again.interrupt()
    ended(again, run)
    eventually("its picture has come", lambda: page.evaluate(PICTURED, RECORD_MIME))  # drawn behind the first answer
    again.save()
    (output,) = [o for cell in gpu_lab.read(name)["cells"] for o in cell["outputs"] if RECORD_MIME in o.get("data", {})]
    record = output["data"][RECORD_MIME]
    assert record["state"] == "canceled" and len(record["gpu"]["gpus"]) == 2
    assert list(output["data"])[0] == RECORD_MIME
    assert {"image/png", "text/html", "text/plain"} <= set(output["data"])  # for readers without us


@pytest.mark.thorough
def test_dashboard_reopened_after_end_shows_end(
    notebook: NotebookPage, gpu_lab: LabServer, script: charts.Script
) -> None:
    """Nobody could write the end into the notebook; the next page that opens it does."""
    script.play(GPUS, wave, 300)
    gate = gpu_lab.folder / "gate"
    gate.unlink(missing_ok=True)
    submit(notebook, "--gpus 1", f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)")
    name = str(notebook.page.evaluate("() => jupyterapp.shell.currentWidget.context.path"))
    folder = folder_of(gpu_lab, notebook)
    notebook.save()
    notebook.page.goto("about:blank")
    gate.touch()
    eventually("the run has ended", lambda: json.loads((folder / "state.json").read_text())["state"] == "completed")
    again = load_page(notebook.page, gpu_lab, name)
    expect(again.runs.first.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    eventually("the picture is in it", lambda: "image/png" in kinds(again))
    eventually("and MLflow's word", lambda: again.records()[-1]["tracking"]["state"] == "imported")
    again.save()
    (output,) = [o for c in gpu_lab.read(name)["cells"] for o in c["outputs"] if RECORD_MIME in o.get("data", {})]
    assert output["data"][RECORD_MIME]["done"] and output["metadata"]["image/png"]["width"] > 100


def test_dashboard_after_kernel_restart_attaches(notebook: NotebookPage, script: charts.Script) -> None:
    script.play(GPUS, wave, 300)
    run = submit(notebook, "--gpus 1 --name lives")
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    notebook.wait_for_kernel()
    # The old models are gone; the record is still drawn.
    expect(run.locator(".bqplot")).to_have_count(0, timeout=MS)
    expect(run.locator(".jp-AmlRun-chartTitle").first).to_be_visible(timeout=MS)
    notebook.cell("%load_ext jupyter_amltrain\n%aml_runs dashboard last")
    again = notebook.runs.last
    again.scroll_into_view_if_needed()  # charts that nobody sees are not asked for
    expect(again.locator(".bqplot").first).to_be_visible(timeout=MS)
    eventually("the line is drawn", lambda: charts.lines(again, "GPU utilization", 100))
    run.scroll_into_view_if_needed()
    expect(run.locator(".bqplot").first).to_be_visible(timeout=MS)  # the submitted cell is live again too


@pytest.mark.thorough
def test_dashboard_executed_again_or_cleared_is_replaced(notebook: NotebookPage, script: charts.Script) -> None:
    script.play(GPUS, wave, 300)
    notebook.cell("%aml_monitor --gpus 0,1 --rate 4")
    expect(notebook.runs.last.locator(".bqplot").first).to_be_visible(timeout=MS)
    run_again = """async () => {
        const panel = jupyterapp.shell.currentWidget;
        panel.content.activeCellIndex = panel.content.model.sharedModel.cells.length - 1;
        await jupyterapp.commands.execute('notebook:run-cell');
    }"""
    first = notebook.records()[-1]["handle"]
    notebook.page.evaluate(run_again)
    eventually("another monitor", lambda: notebook.records() and notebook.records()[-1]["handle"] != first)
    expect(notebook.runs.last.locator(".bqplot").first).to_be_visible(timeout=MS)
    assert notebook.runs.count() == 1
    notebook.page.evaluate("() => jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    expect(notebook.page.locator(".jp-AmlDashboard")).to_have_count(0, timeout=MS)
    assert not notebook.records()


@pytest.mark.thorough
def test_dashboard_hidden_page_catches_up(notebook: NotebookPage, gpu_lab: LabServer, script: charts.Script) -> None:
    script.play(GPUS, wave, 300)
    run = submit(notebook, "--gpus 2")
    folder = folder_of(gpu_lab, notebook)
    hide = """hidden => {
        Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page = notebook.page
    charts.frames(page)
    eventually("ticks come", lambda: page.evaluate("amlFrames") > 2)
    try:
        page.evaluate(hide, True)
        counts = [0, -1]

        def quiet() -> bool:
            before = len(charts.ticks(folder)[1])
            counts.append(page.evaluate("amlFrames"))
            eventually("the run goes on", lambda: len(charts.ticks(folder)[1]) > before + 4)
            return bool(page.evaluate("amlFrames") == counts[-1])

        eventually("nothing comes", quiet)
    finally:
        page.evaluate(hide, False)
    eventually("ticks come again", lambda: page.evaluate("amlFrames") > counts[-1])
    ended(notebook, run)
    truth = charts.column(folder, 0, "util")
    eventually("nothing is missing", lambda: follows(charts.lines(run, "GPU utilization", 100)[-2][2], truth))


@pytest.mark.thorough
def test_dashboard_window_pause_and_zoom_work_in_page(
    notebook: NotebookPage, gpu_lab: LabServer, script: charts.Script, shots: Path
) -> None:
    script.play(GPUS, wave, 300)
    run = submit(notebook, "--gpus 1")
    folder = folder_of(gpu_lab, notebook)
    notebook.sleeping_cell()  # none of this needs the kernel
    eventually("ticks are drawn", lambda: len(charts.lines(run, "GPU utilization", 100)[-1][2]) > 20)
    live = run.get_by_role("button", name="Live", exact=True)
    expect(live).to_have_class(lambda_has("mod-active"))
    area = charts.figure(run, "GPU utilization").locator(".plotarea_background")
    area.scroll_into_view_if_needed()
    area.hover(force=True)  # bqplot lays a rectangle for its zooming over it
    notebook.page.screenshot(path=shots / "hover.png")
    notebook.page.mouse.wheel(0, -300)
    eventually("zooming leaves the live edge", lambda: "mod-active" not in (live.get_attribute("class") or ""))
    live.click()
    eventually("and Live goes back", lambda: "mod-active" in (live.get_attribute("class") or ""))
    run.locator("button:has(i.fa-pause)").click()
    held = charts.lines(run, "GPU utilization", 100)[-1][2]
    before = len(charts.ticks(folder)[1])
    eventually("the run goes on", lambda: len(charts.ticks(folder)[1]) > before + 6)
    assert charts.lines(run, "GPU utilization", 100)[-1][2] == held
    run.locator("button:has(i.fa-pause)").click()
    eventually("and is drawn again", lambda: charts.lines(run, "GPU utilization", 100)[-1][2] != held)
    notebook.interrupt()


def lambda_has(word: str) -> Any:
    import re

    return re.compile(rf"\b{word}\b")


def test_dashboard_of_idle_gpu_shows_banner(
    notebook: NotebookPage, gpu_lab: LabServer, script: charts.Script, shots: Path
) -> None:
    script.play(GPUS, idle, 300)
    run = submit(notebook, "--gpus 1 --gpu-grace 1")
    banner = run.locator("[role=alert]", has_text="GPU")
    expect(banner.first).to_be_visible(timeout=MS)
    expect(banner.first).to_contain_text("cuda", ignore_case=True)
    notebook.page.screenshot(path=shots / "idle.png")
    eventually("it is in the record", lambda: notebook.records()[-1]["truth"]["verdict"] == "not used")


@pytest.mark.thorough
def test_dashboard_saved_is_picture_without_extension(
    notebook: NotebookPage, gpu_lab: LabServer, script: charts.Script, shots: Path
) -> None:
    script.play(GPUS, wave, 300)
    run = submit(notebook, "--gpus 8 --wait", "import time; time.sleep(6)")
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    eventually("the picture is in it", lambda: "image/png" in kinds(notebook))
    name = str(notebook.page.evaluate("() => jupyterapp.shell.currentWidget.context.path"))
    notebook.save()
    assert (gpu_lab.notebooks / name).stat().st_size < 400_000
    copy = gpu_lab.copy_without_kernel(name, "reopened.ipynb")
    again = open_notebook(notebook.page, gpu_lab, copy, kernel=False)
    expect(again.runs.first.locator(".jp-AmlRun-chartTitle", has_text="utilization").first).to_be_visible(timeout=MS)
    assert not again.has_kernel() and again.runs.first.locator(".bqplot").count() == 0
    notebook.page.screenshot(path=shots / "reopened.png")
    from nbconvert import HTMLExporter  # type: ignore[attr-defined]

    html, _ = HTMLExporter().from_filename(str(gpu_lab.notebooks / name))
    assert "data:image/png;base64" in html and "Loading widget" not in html
    (shots / "converted.html").write_text(html)
    notebook.page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")
    open_notebook(notebook.page, gpu_lab, name)


def kinds(notebook: NotebookPage) -> list[str]:
    """MIME types of the newest of our outputs."""
    found: list[list[str]] = notebook.page.evaluate(
        """mime => [...jupyterapp.shell.currentWidget.content.model.cells]
            .flatMap(cell => cell.outputs ? cell.outputs.toJSON() : [])
            .filter(output => output.data?.[mime]).map(output => Object.keys(output.data))""",
        RECORD_MIME,
    )
    return found[-1] if found else []


@pytest.mark.thorough
def test_dashboard_dark_theme_screenshot(notebook: NotebookPage, script: charts.Script, shots: Path) -> None:
    script.play(GPUS, wave, 300)
    notebook.theme("JupyterLab Dark")
    try:
        run = submit(notebook, "--gpus 8")
        eventually("lines are drawn", lambda: len(charts.lines(run, "GPU utilization", 100)) >= 8)
        color = (
            charts.figure(run, "GPU utilization")
            .locator(".jp-AmlRun-chartTitle")
            .first.evaluate("node => getComputedStyle(node).color")
        )
        notebook.page.screenshot(path=shots / "dark.png")
        assert all(int(part) > 150 for part in color[4:-1].split(",")[:3]), color  # bright on dark
    finally:
        notebook.theme("JupyterLab Light")


POKED = """%%aml_submit --name poked --gpus 0
import time, mlflow
lr = 1.0
for step in range(2000):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
    time.sleep(0.2)
"""
#: Middle and height of the vertical lines of a figure, which alone have dashes and dots.
VERTICAL = """lines => lines.filter(one => getComputedStyle(one).strokeDasharray.split(',').length === 4).map(line => {
    const at = line.getBoundingClientRect();
    return [at.x + at.width / 2, at.y + at.height / 2, at.height];
})"""


def test_statement_is_a_line_in_the_live_charts_with_its_text(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("poked.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain")
        notebook.cell(POKED)
        run = notebook.runs.first
        figures = run.locator(".jp-AmlRun-figure")
        expect(run.locator(".jp-AmlRun-figure[data-kind='metric']")).to_be_visible(timeout=MS)
        notebook.cell('%aml_runs poke last "lr /= 10"')

        def lines(at: int) -> list[tuple[float, float, float]]:
            found: list[tuple[float, float, float]] = figures.nth(at).locator("path.line").evaluate_all(VERTICAL)
            return [line for line in found if line[2] > 20]

        for at in range(figures.count()):
            figures.nth(at).scroll_into_view_if_needed()
            eventually("a line in the chart", lambda at=at: len(lines(at)) == 1)  # type: ignore[misc]

            def reads(at: int = at) -> bool:
                ((x, y, _),) = lines(at)
                page.mouse.move(x, y)
                return "lr /= 10" in "".join(run.locator(".jp-AmlRun-hover").all_text_contents())

            eventually("the text of the statement", reads)
            page.screenshot(path=shots / f"poke-{at}.png")
        first = lines(0)[0][0]
        eventually("the line moves with its time", lambda: lines(0)[0][0] < first - 5)
    finally:
        notebook.close()
        lab.end_runs()
