"""What the panel opens in the main area: a run's cell, its dashboard, its log, two runs compared, MLflow's page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.conftest import end_all
from tests.past_runs import write_runs
from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, NotebookPage, eventually, open_notebook
from tests.ui.panel import PanelPage
from tests.ui.scripted_run import ScriptedRun

pytestmark = pytest.mark.thorough

thorough = pytest.mark.thorough

TARGETS = {"long": {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": 2, "period": 0.25}}

LINES = 20_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A server of its own, with runs of the past, one of them with a long log."""
    folder = tmp_path_factory.mktemp("tabs")
    server = LabServer(folder / "lab")
    server.put_targets(TARGETS)
    state = server.folder / "state"
    past = write_runs(state, 3, time.time() - 3600)
    (state / "runs" / past[2] / "log" / "rank-0.txt").write_text("".join(f"line {k}\n" for k in range(LINES)))
    yield server
    server.close()
    end_all(state)


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1200, "height": 950})
    context.set_default_timeout(MS)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    return open_notebook(page, lab, lab.write("tabs.ipynb", []))


@pytest.fixture(scope="module")
def panel(notebook: NotebookPage) -> PanelPage:
    panel = PanelPage(notebook.page).open().connect()
    expect(panel.rows.first).to_be_visible(timeout=MS)
    return panel


@pytest.fixture(scope="module")
def scripted(notebook: NotebookPage, panel: PanelPage, lab: LabServer) -> Iterator[ScriptedRun]:
    run = ScriptedRun(notebook, lab, "scripted")
    panel.wait_run(run.handle, "running")
    yield run
    lab.end_runs()


def log_of(panel: PanelPage, handle: str) -> Locator:
    """Open the log of a run."""
    panel.command("run-logs", handle=handle)
    tab = panel.page.locator(".jp-AmlLog:visible")
    expect(tab.locator(".jp-AmlLog-state")).to_contain_text(handle, timeout=MS)
    return tab


def close(panel: PanelPage) -> None:
    """Close the tab in front."""
    panel.page.evaluate("() => jupyterapp.shell.currentWidget.close()")


def title(panel: PanelPage) -> str:
    """Of the tab in front."""
    return str(panel.page.evaluate("() => jupyterapp.shell.currentWidget.title.label"))


def place(text: Locator, words: str) -> float:
    """CSS pixels of a line below the upper edge of the log."""
    found: float = text.evaluate(
        """(node, words) => {
            const line = [...node.children].find(child => child.textContent === words);
            return line ? line.getBoundingClientRect().top - node.getBoundingClientRect().top : NaN;
        }""",
        words,
    )
    return found


def at_end(text: Locator) -> bool:
    """Whether the end is in view."""
    return bool(text.evaluate("node => node.scrollHeight - node.scrollTop - node.clientHeight < 4"))


def test_log_tab_follows_until_scrolled_up(scripted: ScriptedRun, panel: PanelPage, shots: Path) -> None:
    tab = log_of(panel, scripted.handle)
    text = tab.locator(".jp-AmlLog-text")
    scripted.say("".join(f"row {k}\n" for k in range(200)))
    expect(text).to_contain_text("row 199", timeout=MS)
    assert at_end(text)
    follow = tab.get_by_role("button", name="Follow")
    expect(follow).to_have_attribute("aria-pressed", "true")
    text.hover()
    panel.page.mouse.wheel(0, -600)
    expect(follow).to_have_attribute("aria-pressed", "false")
    before = place(text, "row 170")
    scripted.say("row 200\n")
    expect(text).to_contain_text("row 200", timeout=MS)
    assert place(text, "row 170") == before
    follow.click()
    expect(follow).to_have_attribute("aria-pressed", "true")
    assert at_end(text)
    scripted.say("\x1b[31mred\x1b[0m plain\n" + "".join(f"\r{k:3d} %" for k in range(0, 101, 10)))
    expect(text.locator(".ansi-red-fg")).to_have_text("red", timeout=MS)
    expect(text.locator("> :last-child")).to_have_text("100 %", timeout=MS)
    scripted.say("\n" + "wide " * 300 + "\n")
    expect(text).to_contain_text("wide wide", timeout=MS)
    assert not text.evaluate("node => node.scrollWidth > node.clientWidth")
    tab.get_by_role("button", name="Wrap").click()
    assert text.evaluate("node => node.scrollWidth > node.clientWidth")
    tab.get_by_role("button", name="Wrap").click()
    panel.settle()
    panel.page.screenshot(path=shots / "tab-log.png")
    scripted.say("".join(f"more {k}\n" for k in range(5200)))  # beyond what is kept
    expect(text).to_contain_text("more 5199", timeout=MS)
    text.hover()
    panel.page.mouse.wheel(0, -900)
    expect(follow).to_have_attribute("aria-pressed", "false")
    before = place(text, "more 5150")
    scripted.say("".join(f"last {k}\n" for k in range(500)))
    expect(text).to_contain_text("last 499", timeout=MS)
    assert abs(place(text, "more 5150") - before) <= 1
    assert text.locator("> *").count() <= 5000
    follow.click()
    scripted.end()
    expect(tab.locator(".jp-AmlLog-state")).to_contain_text("completed", timeout=MS)
    expect(text.locator("> :last-child")).to_have_text("last 499")
    close(panel)


@pytest.mark.thorough
def test_log_tab_of_long_log_is_bounded_and_keeps_position(panel: PanelPage, shots: Path) -> None:
    handle = "local/bert-base-00002"
    tab = log_of(panel, handle)
    text = tab.locator(".jp-AmlLog-text")
    expect(text).to_contain_text(f"line {LINES - 1}", timeout=MS)
    assert at_end(text)
    first = text.locator("> :first-child")
    earlier = tab.get_by_role("button", name="Load earlier")
    text.evaluate("node => node.scrollTo(0, 0)")
    words = first.inner_text()
    panel.page.screenshot(path=shots / "tab-log-earlier.png")
    for _ in range(3):
        words, count = first.inner_text(), text.locator("> *").count()
        text.evaluate("node => node.scrollTo(0, 0)")
        before = place(text, words)
        earlier.click()
        expect(first).not_to_have_text(words, timeout=MS)
        assert abs(place(text, words) - before) <= 1, (words, before, place(text, words), count)
        assert text.locator("> *").count() <= 5000
    while earlier.is_visible():
        words = first.inner_text()
        earlier.click()
        expect(first).not_to_have_text(words, timeout=MS)
    assert first.inner_text() == "line 0"
    assert text.locator("> *").count() <= 5000
    tab.get_by_role("button", name="Follow").click()
    expect(text.locator("> :last-child")).to_have_text(f"line {LINES - 1}", timeout=MS)
    assert at_end(text)
    close(panel)


@pytest.fixture
def here(notebook: NotebookPage, panel: PanelPage) -> Iterator[str]:
    """A live run of a cell far above."""
    notebook.cell("%%aml_submit --target long --name here\npass")
    handle = str(notebook.records()[-1]["handle"])
    notebook.cell("print('\\n' * 200)")
    expect(panel.row(handle)).to_be_visible(timeout=MS)
    yield handle
    notebook.cell(
        "import jupyter_amltrain as _a\nfor _run in _a.runs():\n    _run.status.state.terminal or _run.cancel()"
    )
    expect(panel.status_item).to_contain_text("No live runs", timeout=MS)
    panel.quiet()


def test_go_to_cell_shows_cell(here: str, panel: PanelPage) -> None:
    output = panel.page.locator(f".jp-AmlRun:has-text('{here}')").first
    panel.page.evaluate(
        """() => {
            const notebook = jupyterapp.shell.currentWidget.content;
            return notebook.scrollToItem(notebook.widgets.length - 1, 'end');
        }"""
    )
    expect(output).not_to_be_in_viewport()
    flashes = panel.record_flashes()
    panel.row(here).dblclick()
    expect(output).to_be_in_viewport(timeout=MS)
    eventually("its cell flashes", lambda: any("--name here" in source for source in flashes()))
    expect(panel.page.locator(".jp-Cell.jp-AmlFlash")).to_have_count(0, timeout=MS)


@thorough
def test_go_to_cell_shows_other_notebook(here: str, panel: PanelPage, page: Page, lab: LabServer) -> None:
    other = open_notebook(page, lab, lab.write("other.ipynb", []))
    try:
        panel.connect()
        flashes = panel.record_flashes()
        panel.command("run-open", handle=here)
        eventually("the first notebook is in front", lambda: title(panel) == "tabs.ipynb")
        eventually("its cell flashes", lambda: any("--name here" in source for source in flashes()))
    finally:
        page.evaluate("() => void jupyterapp.commands.execute('docmanager:open', {path: 'other.ipynb'})")
        eventually("the second notebook is in front", lambda: title(panel) == "other.ipynb")
        other.close()
        eventually("the first notebook is in front", lambda: title(panel) == "tabs.ipynb")
        panel.wait_state("ready")


@thorough
def test_dashboard_tab_of_live_run_is_drawn_to_end(here: str, panel: PanelPage, shots: Path) -> None:
    panel.select(here)
    panel.action("run-tab").click()
    tab = panel.page.locator(".jp-AmlDashboardTab:visible")
    expect(tab.locator(".jp-AmlRun-state")).to_have_text("running", timeout=MS)
    expect(tab.locator(".jp-AmlRun-figure .jp-AmlRun-chartTitle", has_text="GPU utilization")).to_be_visible(timeout=MS)
    panel.settle(2)
    panel.page.screenshot(path=shots / "tab-live.png")
    panel.action("run-cancel").click()
    panel.dialog()
    panel.confirm("Cancel run")
    expect(tab.locator(".jp-AmlRun-state")).to_have_text("canceled", timeout=MS)
    close(panel)


@pytest.mark.thorough
def test_run_without_cell_opens_dashboard_tab(panel: PanelPage, shots: Path) -> None:
    handle = "local/digits-00000"
    panel.row(handle).dblclick()
    tab = panel.page.locator(".jp-AmlDashboardTab:visible")
    expect(tab).to_contain_text("loss", timeout=MS)
    eventually("it has the run's name", lambda: title(panel) == "digits")
    panel.settle(2)
    panel.page.screenshot(path=shots / "tab-dashboard.png")
    close(panel)


def test_compare_tab_shows_two_runs(panel: PanelPage, shots: Path) -> None:
    a, b = "local/digits-00000", "local/resnet-00001"
    panel.select(a, b)
    panel.action("run-compare").click()
    tab = panel.page.locator(".jp-AmlCompare:visible")
    expect(tab.locator(".jp-AmlCompare-run").first).to_contain_text(a, timeout=MS)
    differing = tab.locator("tr.jp-mod-differs")
    expect(differing.filter(has_text="lr")).to_have_count(1)
    expect(tab.locator("figure").first).to_be_visible()
    differences = tab.locator("tbody tr").count()
    tab.get_by_label("Only differences").uncheck()
    eventually("all rows", lambda: tab.locator("tbody tr").count() > differences)
    expect(tab.locator(".jp-AmlCompare-code")).to_contain_text("Code", timeout=MS)
    panel.settle()
    panel.page.screenshot(path=shots / "tab-compare.png")
    assert axe(panel.page, ".jp-AmlCompare", not_ours=("<jp-button",)) == []
    close(panel)


@thorough
def test_tabs_are_restored_after_reload(panel: PanelPage, page: Page, notebook: NotebookPage) -> None:
    one, two = "local/digits-00000", "local/resnet-00001"
    panel.command("run-tab", handle=one)
    expect(page.locator(".jp-AmlDashboardTab:visible")).to_contain_text("loss", timeout=MS)
    panel.command("run-logs", handle=two)
    expect(page.locator(".jp-AmlLog:visible")).to_contain_text(two, timeout=MS)
    panel.command("run-compare", handles=[one, two])
    expect(page.locator(".jp-AmlCompare:visible")).to_contain_text(two, timeout=MS)
    page.evaluate("() => void jupyterapp.commands.execute('docmanager:open', {path: 'tabs.ipynb'})")
    notebook.save()
    page.evaluate("() => jupyterapp.shell.saveState?.()")
    panel.settle(2)
    page.goto(re.sub(r"/lab.*", "/lab", page.url))
    page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.path === 'tabs.ipynb'")
    for kind, words in (("DashboardTab", "loss"), ("Log", two), ("Compare", two)):
        node = page.locator(f".jp-Aml{kind}")
        expect(node).to_have_count(1, timeout=MS)
        page.evaluate(
            "name => { for (const w of jupyterapp.shell.widgets('main'))"
            " if (w.node.querySelector(name)) jupyterapp.shell.activateById(w.id); }",
            f".jp-Aml{kind}",
        )
        expect(node).to_contain_text(words, timeout=MS)
        close(panel)


@thorough
def test_open_in_mlflow_shows_run(
    notebook: NotebookPage, panel: PanelPage, page: Page, lab: LabServer, shots: Path
) -> None:
    notebook.cell("%%aml_submit --target local --name recorded --wait\nimport mlflow\nmlflow.log_metric('f1', 0.5)")
    handle = str(notebook.records()[-1]["handle"])
    panel.wait_run(handle, "completed")
    panel.select(handle)

    begin = time.monotonic()
    panel.action("run-mlflow").click()

    def opened() -> Page | None:
        # A browser that forbids a window so long after the click gets a button.
        button = page.locator(".jp-toastContainer").get_by_role("button", name="Open")
        if button.is_visible():
            button.click()
        page.wait_for_timeout(50)
        return page.context.pages[-1] if len(page.context.pages) > 1 else None

    popup = eventually("MLflow's page is opened", opened)
    print(f"MLflow's page after {time.monotonic() - begin:.1f} s")
    expect(page.locator(".Toastify__toast", has_text="Waiting for MLflow")).to_have_count(0, timeout=MS)
    popup.wait_for_load_state()
    expect(popup.locator("body")).to_contain_text("f1", timeout=60_000)
    assert popup.url.startswith(f"{lab.url}/amltrain/mlflow/"), popup.url  # of the server, behind its sign-in
    assert re.search(r"#/experiments/\d+/runs/\w{32}", popup.url), popup.url
    popup.screenshot(path=shots / "tab-mlflow.png")
    popup.close()


LIVING = """%%aml_submit --target local --name living
import mlflow, time
for step in range(600):
    mlflow.log_metric("progress", step, step=step)
    time.sleep(0.5)"""


@thorough
def test_open_in_mlflow_shows_living_run(
    notebook: NotebookPage, panel: PanelPage, page: Page, lab: LabServer, shots: Path
) -> None:
    notebook.cell(LIVING)
    handle = str(notebook.records()[-1]["handle"])
    panel.wait_run(handle, "running")
    panel.select(handle)

    def opened() -> Page | None:
        button = page.locator(".jp-toastContainer").get_by_role("button", name="Open")
        if button.is_visible():
            button.click()
        page.wait_for_timeout(50)
        return page.context.pages[-1] if len(page.context.pages) > 1 else None

    try:
        panel.action("run-mlflow").click()  # at once: the record does not exist yet
        popup = eventually("MLflow's page is opened", opened)
        expect(popup.locator("body")).to_contain_text("Running", timeout=60_000)

        def shown() -> bool:
            if popup.get_by_text("progress").count() == 0:  # MLflow's page reads a run again after half a minute
                popup.reload()
                popup.wait_for_timeout(3000)
            return popup.get_by_text("progress").count() > 0

        eventually("the metric is in MLflow's page", shown)
        popup.screenshot(path=shots / "tab-mlflow-living.png")
        page.screenshot(path=shots / "tab-mlflow-living-notebook.png")
        popup.close()
    finally:
        notebook.cell(f"%aml_runs cancel {handle}")
    panel.wait_run(handle, "canceled")


def test_log_tab_shows_all_processes_marked_and_one_when_chosen(
    notebook: NotebookPage, panel: PanelPage, shots: Path
) -> None:
    code = "import time\nfor k in range(3):\n    print(f'line {k}', flush=True)\n    time.sleep(0.2)"
    notebook.cell(f"%%aml_submit --target local --name ranks --processes 2 --distribution tensorflow --wait\n{code}")
    handle = str(notebook.records()[-1]["handle"])
    tab = log_of(panel, handle)
    text = tab.locator(".jp-AmlLog-text")
    for rank in (0, 1):
        expect(text).to_contain_text(f"[rank {rank}] line 2", timeout=MS)
    choice = tab.get_by_role("combobox", name="Process")
    expect(choice).to_have_value("-1")
    panel.page.screenshot(path=str(shots / "log-ranks.png"))
    choice.select_option("1")
    expect(text).to_contain_text("line 2", timeout=MS)
    expect(text).not_to_contain_text("[rank")
    choice.select_option("-1")
    expect(text).to_contain_text("[rank 0] line 0", timeout=MS)
    close(panel)
