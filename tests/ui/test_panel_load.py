"""The panel with 500 past runs and 64 GPUs: what is in the page, and what goes over the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import end_all
from tests.past_runs import write_runs
from tests.ui.lab import MS, LabServer, NotebookPage, eventually, load_page
from tests.ui.panel import PanelPage
from tests.ui.traffic import Traffic

pytestmark = pytest.mark.thorough

PAST, GPUS = 500, 64
#: Seconds after which a panel that is not seen costs nothing, and how long that is looked at.
QUIET_AFTER, QUIET = 3.0, 10.0

#: Scrolls a list to its end and back in steps of a frame; the most rows that were in the page, and all handles seen.
SCROLL = """
async ([selector, step]) => {
  const list = document.querySelector(selector);
  const seen = new Set();
  let most = 0;
  const frame = () => new Promise(resolve => requestAnimationFrame(resolve));
  const look = () => {
    const rows = list.querySelectorAll('.jp-AmlRuns-row');
    most = Math.max(most, rows.length);
    rows.forEach(row => seen.add(row.dataset.handle));
  };
  for (const way of [step, -step]) {
    for (let last = -1; list.scrollTop !== last; ) {
      last = list.scrollTop;
      list.scrollTop += way;
      await frame();
      await frame();
      look();
    }
  }
  return {most, seen: seen.size, top: list.scrollTop};
}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("load") / "lab")
    wide = {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": GPUS, "period": 0.5}
    server.put_targets({"wide": wide})
    write_runs(server.folder / "state", PAST, time.time() - 3600, gpus=1, seconds=5)
    yield server
    server.close()
    end_all(server.folder / "state")


@pytest.fixture(scope="module")
def traffic(page: Page) -> Traffic:
    return Traffic().listen(page)


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer, traffic: Traffic) -> NotebookPage:
    assert traffic.frames == []
    return load_page(page, lab, lab.write("load.ipynb", []))


@pytest.fixture(scope="module")
def panel(notebook: NotebookPage) -> PanelPage:
    """Connected, a run with 64 GPUs going on, its GPUs shown; no dashboard is in the notebook."""
    panel = PanelPage(notebook.page).open().connect()
    notebook.cell("import jupyter_amltrain as aml\nrun = aml.submit('pass', target='wide', name='live')")
    eventually("the run is listed first", lambda: panel.handles()[:1] and panel.handles()[0].startswith("wide/"))
    # A list that is still being read is shorter, and its rows are traffic.
    list_ = panel.node.locator(".jp-AmlRuns-list")
    eventually("the past runs are listed", lambda: list_.evaluate("list => list.scrollHeight") >= 44 * (PAST + 1))
    handle = panel.handles()[0]
    panel.wait_run(handle, "running")
    panel.command("run-gpus", handle=handle)
    expect(panel.gpus.locator("canvas").first).to_be_visible(timeout=MS)
    return panel


def test_rows_out_of_view_are_not_rendered(panel: PanelPage, traffic: Traffic, shots: Path) -> None:
    errors: list[str] = []
    panel.page.on("pageerror", lambda error: errors.append(str(error)))
    list_ = panel.node.locator(".jp-AmlRuns-list")
    height = list_.evaluate("list => list.clientHeight")
    found = panel.page.evaluate(SCROLL, [".jp-AmlRuns-list", 600])
    # One more at each end that is cut, and a few around.
    assert found["most"] <= height / 44 + 20
    assert found["top"] == 0 and found["seen"] >= PAST // 2
    assert panel.rows.count() <= height / 44 + 20
    panel.row(panel.handles()[0]).click()
    panel.page.keyboard.press("End")
    oldest = panel.node.locator(f".jp-AmlRuns-row[aria-posinset='{PAST + 1}']")
    expect(oldest).to_be_visible(timeout=MS)
    panel.page.keyboard.press("Home")
    expect(oldest).to_be_hidden(timeout=MS)
    assert errors == []
    assert all(frame.event != "snapshot" for frame in traffic.frames[-20:])  # nothing was lost on the way
    panel.page.screenshot(path=shots / "load.png")


def test_updates_come_at_most_twice_per_second(panel: PanelPage, traffic: Traffic) -> None:
    traffic.clear()
    begin = time.monotonic()
    panel.settle(4)
    eventually("updates come", lambda: len(traffic.events("gpus")) >= 2)
    frames = traffic.events("gpus")
    seconds = time.monotonic() - begin
    assert len(frames) <= 2 * seconds + 2
    assert sum(frame.size for frame in traffic.events()) / seconds < 20_000


@pytest.mark.thorough
def test_hidden_data_is_not_sent(panel: PanelPage, traffic: Traffic) -> None:
    def quiet(*kinds: str) -> None:
        panel.settle(QUIET_AFTER)
        traffic.clear()
        panel.settle(QUIET)
        assert traffic.events(*kinds) == []

    def comes(kind: str) -> None:
        def come() -> bool:
            panel.settle(0.1)  # lets the page's messages in
            return bool(traffic.events(kind))

        eventually(f"{kind} come", come)

    title = panel.node.locator(".jp-AccordionPanel-title", has_text="GPUs")
    title.click()
    quiet("gpus")
    title.click()
    comes("gpus")
    panel.hide()
    quiet()
    panel.open()
    comes("snapshot")
    comes("gpus")
    expect(panel.gpus.locator("canvas").first).to_be_visible(timeout=MS)
