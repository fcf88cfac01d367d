"""The section of runs in a real JupyterLab: everything that can be seen of a run and done with it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import end_all
from tests.past_runs import write_runs
from tests.ui.lab import MS, LabServer, NotebookPage, attach, eventually, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

thorough = pytest.mark.thorough

TARGETS = {
    "quick": {"kind": "fake", "queued": 0.1, "running": 0.5},
    "long": {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": 2, "period": 0.25},
    "busy": {"kind": "fake", "queued": 3600.0},
    "broken": {"kind": "fake", "queued": 0.1, "running": 0.5, "exit_code": 3},
    "lazy": {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": 1, "idle": True, "period": 0.25},
}
PAST = 40
SCRIPT = """import sys, time
import mlflow
for step in range(3):
    mlflow.log_metric("accuracy", 0.5 + step / 10, step=step)
    print("step", step, flush=True)
"""

Submit = Callable[..., str]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A server of its own, with runs of the past."""
    folder = tmp_path_factory.mktemp("runs")
    server = LabServer(folder / "lab")
    server.put_targets(TARGETS)
    write_runs(server.folder / "state", PAST, time.time() - 3600)
    (server.notebooks / "train.py").write_text(SCRIPT)
    yield server
    server.close()
    end_all(server.folder / "state")


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": 1200, "height": 950}, permissions=["clipboard-read", "clipboard-write"]
    )
    context.set_default_timeout(MS)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    return open_notebook(page, lab, lab.write("runs.ipynb", []))


@pytest.fixture(scope="module")
def panel(notebook: NotebookPage) -> PanelPage:
    panel = PanelPage(notebook.page).open().connect()
    expect(panel.rows.first).to_be_visible(timeout=MS)
    return panel


@pytest.fixture
def submit(notebook: NotebookPage, panel: PanelPage) -> Iterator[Submit]:
    """Submits a cell by the magic and returns the handle; what still runs ends with the test."""

    def send(target: str, name: str, *words: str, code: str = "pass") -> str:
        notebook.cell(f"%%aml_submit --target {target} --name {name} {' '.join(words)}\n{code}")
        found = [r["handle"] for r in notebook.records() if re.fullmatch(rf"{target}/{name}-\w+", r["handle"])]
        handle = str(found[-1])
        expect(panel.row(handle)).to_be_visible(timeout=MS)
        return handle

    panel.filter()
    yield send
    panel.filter()
    notebook.cell(
        "import jupyter_amltrain as _a\nfor _run in _a.runs():\n    _run.status.state.terminal or _run.cancel()"
    )
    expect(panel.status_item).to_contain_text("No live runs", timeout=MS)
    panel.quiet()


@pytest.fixture
def unseen(panel: PanelPage) -> Iterator[None]:
    """Outputs are not in sight: then notifications tell of the ends of runs."""
    style = panel.page.add_style_tag(content=".jp-Notebook .jp-AmlRun { display: none; }")
    yield
    style.evaluate("node => node.remove()")


def shell(lab: LabServer, *words: str) -> str:
    """What ``amltrain`` says in another process."""
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_amltrain.cli", *words],
        env=lab.environment,
        cwd=lab.notebooks,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@thorough
def test_run_of_other_process_appears(lab: LabServer, panel: PanelPage, shots: Path) -> None:
    handle = shell(lab, "submit", "train.py", "--name", "shell", "--param", "lr=0.25")
    row = panel.row(handle)
    panel.wait_run(handle, "completed")
    expect(row.locator(".jp-AmlRuns-metric")).to_have_text("accuracy 0.7", timeout=MS)
    expect(row.locator(".jp-AmlRuns-progress")).to_have_text(re.compile(r"completed \d+ s"))
    expect(row.locator(".jp-AmlRuns-when")).to_contain_text("ago")
    panel.select(handle)
    facts = panel.node.locator(".jp-AmlRuns-facts")
    for text in ("lr=0.25", re.compile(r"accuracy\s*0\.7"), "local", handle):
        expect(facts).to_contain_text(text, timeout=MS)
    shell(lab, "runs", "delete", handle, "--force")
    expect(row).to_have_count(0, timeout=MS)
    expect(panel.node.locator(".jp-AmlRuns-detail")).to_be_hidden(timeout=MS)


def test_live_run_row_shows_state_time_and_gpus(submit: Submit, panel: PanelPage) -> None:
    handle = submit("long", "lively")
    panel.wait_run(handle, "running")
    row = panel.row(handle)
    seen = row.locator(".jp-AmlRuns-progress")
    expect(seen).to_have_text(re.compile(r"running \d+ s"), timeout=MS)
    before = seen.inner_text()
    eventually("time goes on", lambda: seen.inner_text() != before)
    expect(row.locator(".jp-AmlRuns-metric")).to_have_text("loss 0.5", timeout=MS)
    expect(row.locator(".jp-AmlRuns-spark polyline").first).to_be_attached(timeout=MS)
    assert "running" in (row.get_attribute("aria-label") or "")


NUMBERS = """row => {
    const edge = row.getBoundingClientRect();
    return [...row.querySelectorAll('.jp-AmlRuns-number')].filter(node => node.textContent).map(node => {
        const { left, right } = node.getBoundingClientRect();
        const { x, width } = node.parentElement.parentElement.getBoundingClientRect();
        const hit = document.elementFromPoint(right - 1, edge.top + edge.height * 0.7);
        return {
            text: node.textContent,
            whole: node.scrollWidth <= node.clientWidth + 1 || getComputedStyle(node).overflow === 'visible',
            inside: left >= x - 0.5 && right <= x + width + 0.5 && (node.contains(hit) || hit === node),
        };
    });
}"""


@pytest.mark.parametrize("name", ["loss", "validation_cross_entropy_of_the_whole_set"])
def test_narrow_row_never_cuts_number(submit: Submit, panel: PanelPage, shots: Path, name: str) -> None:
    plain = submit("local", "tiny", code=f"import mlflow; mlflow.log_metric('{name}', 9.5367e-7)")
    gpus = submit("long", "with-gpus")
    panel.width(250)
    try:
        panel.wait_run(plain, "completed")
        number = panel.row(plain).locator(".jp-AmlRuns-metric .jp-AmlRuns-number")
        expect(number).to_have_text("9.54e-7", timeout=MS)
        expect(panel.row(gpus).locator(".jp-AmlRuns-spark polyline").first).to_be_attached(timeout=MS)
        panel.page.screenshot(path=shots / f"narrow-{name[:4]}.png")
        # A run without a curve leaves the room of it to the name.
        expect(panel.row(plain).locator(".jp-AmlRuns-spark")).to_be_hidden(timeout=MS)
        if name == "loss":
            caption = panel.row(plain).locator(".jp-AmlRuns-metricCaption")
            assert caption.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
        for handle, count in ((plain, 2), (gpus, 2)):
            found = panel.row(handle).evaluate(NUMBERS)
            assert len(found) == count and all(each["whole"] and each["inside"] for each in found), found
    finally:
        panel.width(330)


def test_runs_filter_by_text_and_state(submit: Submit, panel: PanelPage) -> None:
    live = submit("long", "needle", "--param", "lr=0.125")
    panel.wait_run(live, "running")
    total = int(panel.filter())
    assert panel.filter("NEEDLE lr=0.125") == f"1 of {total}"
    assert panel.handles() == [live]
    assert panel.filter(state="live") == f"1 of {total}"
    count = panel.filter("resnet", "failed")
    eventually("only failed ones", lambda: panel.handles() and panel.rows.first.get_attribute("data-state") == "failed")
    assert all(re.match(r"local/resnet-", handle) for handle in panel.handles())
    assert count.endswith(f"of {total}") and not count.startswith("0")
    assert panel.filter("nothing like it") == f"0 of {total}"
    panel.node.get_by_role("button", name="Clear filter").click()
    eventually("all are there again", lambda: len(panel.handles()) > 5)
    assert panel.filter() == str(total)


def test_runs_list_is_operable_by_keyboard(panel: PanelPage) -> None:
    panel.filter()
    panel.press("Home")
    eventually("rows are there", lambda: len(panel.handles()) > 5)
    first, second, third, *_ = panel.handles()
    assert panel.selected() == [first]
    panel.press("ArrowDown")
    assert panel.selected() == [second]
    panel.press("Shift+ArrowDown")
    assert panel.selected() == [second, third]
    panel.press("ArrowUp", "ArrowUp")
    assert panel.selected() == [first]
    panel.press("End")
    eventually("the last one is in view", lambda: panel.selected() == panel.handles()[-1:])
    last = panel.row(f"local/ablation-{PAST - 1:05d}")
    expect(last).to_have_attribute("aria-selected", "true")
    # What is read from the disk only for those who look.
    expect(last.locator(".jp-AmlRuns-metric")).to_have_text("loss 0.25", timeout=MS)
    expect(last.locator(".jp-AmlRuns-spark polyline").first).to_be_attached(timeout=MS)
    panel.press("PageUp")
    eventually("a page up", lambda: panel.selected() != panel.handles()[-1:])
    panel.press("Home")
    eventually("the first one is in view", lambda: panel.handles()[0] == first)
    panel.select(first, third)
    assert panel.selected() == [first, third]
    panel.press("Space")
    assert panel.selected() == [first]
    panel.select(first)
    panel.row(third).click(modifiers=["Shift"])
    expect(panel.row(second)).to_have_attribute("aria-selected", "true")
    panel.press("Home", "Shift+F10")
    menu = panel.page.locator(".lm-Menu")
    expect(menu).to_be_visible(timeout=MS)
    panel.page.keyboard.press("Escape")
    expect(menu).to_have_count(0)
    panel.press("Delete")
    assert "permanently deletes" in panel.dialog().inner_text()
    panel.confirm("Cancel")
    expect(panel.row(first)).to_be_visible()
    panel.press("ContextMenu")
    expect(menu).to_be_visible(timeout=MS)
    panel.page.keyboard.press("Escape")


@thorough
def test_row_menu_matches_run_state(submit: Submit, panel: PanelPage, shots: Path) -> None:
    def offered(handle: str) -> set[str]:
        menu = panel.menu(handle)
        found = menu.locator(".lm-Menu-item[data-type='command']:not(.lm-mod-disabled) .lm-Menu-itemLabel")
        labels = set(found.all_inner_texts())
        panel.page.screenshot(path=shots / "runs-menu.png")
        panel.page.keyboard.press("Escape")
        return labels

    always = {
        "Go to cell",
        "Open dashboard in a tab",
        "Open log",
        "Show GPUs",
        "Run again",
        "Copy handle",
        "Open in MLflow",
    }
    live = submit("long", "menu")
    panel.wait_run(live, "running")
    assert offered(live) == {*always, "Cancel…", "Where is it now?"}
    assert offered(panel.handles()[1]) == {*always, "Delete…"}


def test_cancel_asks_for_running_run_but_not_for_queued(submit: Submit, panel: PanelPage) -> None:
    queued = submit("busy", "patient")
    panel.wait_run(queued, "queued")
    panel.choose(queued, "Cancel…")
    panel.wait_run(queued, "canceled")
    assert not panel.page.locator(".jp-Dialog").is_visible()
    running = submit("long", "stays")
    panel.wait_run(running, "running")
    panel.choose(running, "Cancel…")
    assert "stays" in panel.dialog().inner_text()
    panel.confirm("Keep running")
    expect(panel.row(running)).to_have_attribute("data-state", "running")
    panel.select(running)
    panel.action("run-cancel").click()
    panel.dialog()
    panel.confirm("Cancel run")
    panel.wait_run(running, "canceled")


def test_run_again_resubmits_and_selects(submit: Submit, panel: PanelPage) -> None:
    handle = submit("quick", "twice", "--param", "lr=0.75")
    panel.wait_run(handle, "completed")
    panel.select(handle)
    panel.action("run-again").click()
    panel.toast("Submitted again as quick/twice-")
    eventually("the new one is selected", lambda: panel.selected() and panel.selected() != [handle])
    (new,) = panel.selected()
    assert new.startswith("quick/twice-")
    expect(panel.node.locator(".jp-AmlRuns-facts")).to_contain_text("lr=0.75")
    panel.wait_run(new, "completed")


def test_runs_delete_asks_kernel_question(
    submit: Submit, notebook: NotebookPage, panel: PanelPage, shots: Path
) -> None:
    first, second, third = (submit("quick", name) for name in ("one", "two", "three"))
    for handle in (first, second, third):
        panel.wait_run(handle, "completed")
    panel.choose(first, "Delete…")
    text = panel.dialog().inner_text()
    assert "permanently deletes" in text and first in text and "MLflow record is kept" in text
    panel.page.screenshot(path=shots / "runs-delete.png")
    panel.confirm("Delete")
    expect(panel.row(first)).to_have_count(0, timeout=MS)
    panel.toast(f"Deleted {first}")
    panel.select(second, third)
    panel.press("Delete")
    text = panel.dialog().inner_text()
    assert "Delete 2 runs?" in text and second in text and third in text
    panel.confirm("Delete")
    for handle in (second, third):
        expect(panel.row(handle)).to_have_count(0, timeout=MS)
    assert panel.selected() == []
    fourth = submit("quick", "four")
    panel.wait_run(fourth, "completed")
    panel.select(fourth)
    notebook.cell(f"%aml_runs delete {fourth} --force")
    expect(panel.row(fourth)).to_have_count(0, timeout=MS)
    expect(panel.node.locator(".jp-AmlRuns-detail")).to_be_hidden(timeout=MS)


@pytest.mark.thorough
def test_run_handle_is_copied(panel: PanelPage) -> None:
    def clipboard() -> str:
        return str(panel.page.evaluate("() => navigator.clipboard.readText()"))

    panel.filter()
    eventually("rows are there", lambda: len(panel.handles()) > 3)
    first, second, *_ = panel.handles()
    panel.choose(first, "Copy handle")
    eventually("it is copied", lambda: clipboard() == first)
    panel.select(second)
    panel.node.get_by_role("button", name=f"Copy handle {second}").click()
    eventually("it is copied", lambda: clipboard() == second)


@thorough
def test_run_in_sight_ends_without_toast(submit: Submit, panel: PanelPage) -> None:
    panel.quiet()
    panel.wait_run(submit("quick", "seen"), "completed")
    panel.settle()
    assert not any("seen completed" in text for text in panel.notifications())


@pytest.mark.usefixtures("unseen")
def test_run_end_toasts_offer_actions(submit: Submit, panel: PanelPage, shots: Path) -> None:
    panel.quiet()
    submit("quick", "good")
    bad = submit("broken", "bad")
    panel.toast("good completed")
    panel.toast("bad failed")
    panel.page.screenshot(path=shots / "runs-toasts.png")
    panel.toast("bad failed").get_by_role("button", name="Logs").click()
    log = panel.page.locator(".jp-AmlLog:visible")
    expect(log.locator(".jp-AmlLog-text")).to_contain_text("fake: ended", timeout=MS)
    panel.page.evaluate("() => jupyterapp.shell.currentWidget.close()")
    expect(panel.row(bad).locator(".jp-AmlRuns-metric")).to_contain_text("Exited with code 3", timeout=MS)
    panel.select(bad)
    expect(panel.node.locator(".jp-AmlRuns-facts .jp-mod-error")).to_contain_text("Exited with code 3")
    facts = panel.node.locator(".jp-AmlRuns-facts").inner_text()
    assert facts.count("Exited with code 3") == 1
    assert "%aml_runs logs" not in facts  # there is a button for it


@thorough
@pytest.mark.usefixtures("unseen")
def test_failed_run_row_shows_cause(submit: Submit, panel: PanelPage) -> None:
    handle = submit("local", "fails", code="raise ValueError('no such color: grue')")
    panel.wait_run(handle, "failed")
    expect(panel.row(handle).locator(".jp-AmlRuns-metric")).to_contain_text("no such color: grue", timeout=MS)
    panel.select(handle)
    expect(panel.node.locator(".jp-AmlRuns-facts .jp-mod-error")).to_contain_text("ValueError", timeout=MS)
    flashes = panel.record_flashes()
    panel.toast("no such color: grue").get_by_role("button", name="Dashboard").click()
    eventually("its cell is shown", lambda: any("--name fails" in source for source in flashes()))


@thorough
def test_unused_gpus_show_toast(submit: Submit, panel: PanelPage, shots: Path) -> None:
    handle = submit("lazy", "waster", "--gpu-grace", "1")
    toast = panel.toast("GPUs are not used")
    expect(toast).to_be_visible()
    expect(panel.row(handle)).to_have_class(re.compile("jp-mod-attention"))
    expect(panel.row(handle).locator(".jp-AmlRuns-metric")).to_contain_text("GPUs are not used")
    panel.select(handle)
    panel.settle()
    panel.page.screenshot(path=shots / "runs-attention.png")


@pytest.mark.thorough
def test_multi_selection_offers_common_actions(panel: PanelPage) -> None:
    panel.filter()
    eventually("rows are there", lambda: len(panel.handles()) > 3)
    first, second, third, *_ = panel.handles()
    panel.select(first, second)
    eventually("two can be compared", lambda: panel.enabled("run-compare"))
    assert panel.enabled("run-delete")
    for command in ("run-open", "run-tab", "run-logs", "run-again", "run-mlflow", "run-cancel"):
        assert not panel.enabled(command), command
    panel.row(third).click(modifiers=["Control"])
    eventually("three can be compared, too", lambda: panel.enabled("run-compare"))
    expect(panel.node.locator(".jp-AmlRuns-detailTitle")).to_have_text("3 runs")
    panel.select(first)


@thorough
def test_status_bar_and_running_list_show_runs(submit: Submit, panel: PanelPage, shots: Path) -> None:
    panel.hide()
    panel.status_item.click()
    expect(panel.node).to_be_visible()
    live, queued = submit("long", "runs-on"), submit("busy", "waits")
    panel.wait_run(live, "running")
    expect(panel.status_item).to_contain_text("1 running · 1 queued", timeout=MS)
    panel.page.evaluate("() => void jupyterapp.commands.execute('running:show-panel')")
    items = panel.page.locator(".jp-RunningSessions-item.jp-AmlRunning-item:visible")
    expect(items).to_have_count(2, timeout=MS)
    panel.page.screenshot(path=shots / "runs-running.png")
    one = items.filter(has_text="waits")
    one.hover()
    one.locator(".jp-RunningSessions-itemShutdown").click()
    expect(items).to_have_count(1, timeout=MS)
    flashes = panel.record_flashes()
    items.locator(".jp-RunningSessions-itemLabel").click()
    eventually("its cell is shown", lambda: any("runs-on" in source for source in flashes()))
    items.hover()
    items.locator(".jp-RunningSessions-itemShutdown").click()
    panel.dialog()
    panel.confirm("Cancel run")
    expect(items).to_have_count(0, timeout=MS)
    panel.open()
    panel.wait_run(live, "canceled")
    panel.wait_run(queued, "canceled")


@thorough
@pytest.mark.usefixtures("unseen")
def test_other_window_delete_is_notified_once(
    submit: Submit, notebook: NotebookPage, panel: PanelPage, browser: Browser, lab: LabServer
) -> None:
    handle = submit("quick", "shared")
    panel.wait_run(handle, "completed")
    panel.toast("shared completed")
    notebook.save()
    place = lab.folder / "settings" / "jupyter-amltrain" / "panel.jupyterlab-settings"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text('{"notifyEnded": false}')
    window = browser.new_page(viewport={"width": 1000, "height": 800})
    window.set_default_timeout(MS)
    try:
        window.goto(f"{lab.url}/lab/workspaces/second/tree/runs.ipynb?reset&token={lab.token}")
        other = PanelPage(attach(window, "runs.ipynb").page).open()
        other.wait_state("ready")
        other.wait_run(handle, "completed")
        mute = submit("quick", "mute")
        panel.toast("mute completed")
        other.wait_run(mute, "completed")
        other.choose(handle, "Copy handle")
        other.toast("Copied")
        assert not any("completed" in text for text in other.notifications())  # neither again nor against the setting
        other.choose(handle, "Delete…")
        other.dialog()
        other.confirm("Delete")
        for one in (panel, other):
            expect(one.row(handle)).to_have_count(0, timeout=MS)
    finally:
        window.close()
        place.unlink()


@thorough
def test_runs_section_screenshots(submit: Submit, notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    names = {"long": "resnet50-augmented-long-name", "broken": "broken", "busy": "patient", "lazy": "waster"}
    handles = {target: submit(target, name, "--gpu-grace 1", "--param lr=0.1") for target, name in names.items()}
    panel.wait_run(handles["broken"], "failed")
    panel.toast("GPUs are not used")
    shell_handle = submit("long", "stopped")
    panel.choose(shell_handle, "Cancel…")
    if panel.page.locator(".jp-Dialog").is_visible():
        panel.confirm("Cancel run")
    panel.wait_run(shell_handle, "canceled")
    panel.quiet()
    try:
        for width in (250, 450):
            panel.drag_to_width(width)
            for theme in ("Light", "Dark"):
                notebook.theme(f"JupyterLab {theme}")
                for target in ("broken", "lazy"):
                    panel.press("Home")
                    panel.select(handles[target])
                    panel.settle()
                    expect(panel.row(handles[target])).to_be_in_viewport(ratio=1)
                    panel.page.screenshot(path=shots / f"runs-{width}-{theme.lower()}-{target}.png")
        panel.page.set_viewport_size({"width": 1200, "height": 680})
        panel.settle()
        panel.page.screenshot(path=shots / "runs-low.png")
        assert len(panel.handles()) >= 3
        seen = panel.node.locator(".jp-AmlRuns-list").bounding_box()
        assert seen is not None and seen["height"] >= 3 * 44
    finally:
        panel.page.set_viewport_size({"width": 1200, "height": 950})
        notebook.theme("JupyterLab Light")
        panel.drag_to_width(250)
