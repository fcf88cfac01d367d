"""The panel with 500 past runs while 64 GPUs stream: the page's main thread, and what goes over the wire.

The list of runs is scrolled to its end and back. No dashboard is in the notebook. Goals: none of our own tasks
above 50 ms; a visible panel receives what it shows; a panel hidden for 3 s receives nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks import tracing
from tests.conftest import end_all
from tests.past_runs import write_runs
from tests.ui.conftest import FLAGS
from tests.ui.lab import MS, LabServer, NotebookPage, load_page
from tests.ui.panel import PanelPage
from tests.ui.traffic import Traffic
from tools import chromium

PAST, GPUS, PERIOD = 500, 64, 0.5
SECONDS = 8.0
LIMIT = 50.0
#: Scrolls with every frame, down and up again, until the time is over; frames that were drawn.
SCROLL = """
async seconds => {
  const list = document.querySelector('.jp-AmlRuns-list');
  const end = performance.now() + 1000 * seconds;
  let step = 90, frames = 0, most = 0;
  while (performance.now() < end) {
    const before = list.scrollTop;
    list.scrollTop += step;
    if (list.scrollTop === before) { step = -step; }
    await new Promise(resolve => requestAnimationFrame(resolve));
    frames += 1;
    most = Math.max(most, list.querySelectorAll('.jp-AmlRuns-row').length);
  }
  return [frames, most];
}
"""


def submit_live(notebook: NotebookPage, panel: PanelPage) -> None:
    """Start the run and show its GPUs."""
    panel.connect()
    notebook.cell("import jupyter_amltrain as aml\nrun = aml.submit('pass', target='wide', name='live')")
    end = time.monotonic() + 60
    while not (panel.handles() or [""])[0].startswith("wide/"):
        assert time.monotonic() < end, "the run does not come"
        panel.settle(0.2)
    panel.command("run-gpus", handle=panel.handles()[0])
    panel.gpus.locator("canvas").first.wait_for()


def wire(page: Page, traffic: Traffic, seconds: float) -> str:
    """Return our own messages and bytes per second."""
    traffic.clear()
    begin = time.monotonic()
    page.wait_for_timeout(1000 * seconds)
    took = time.monotonic() - begin
    found = traffic.events()
    kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(frame.event for frame in found).items())
    return (
        f"{len(found) / took:6.2f} messages/s {sum(frame.size for frame in found) / took:9.0f} bytes/s"
        f"   in {took:.0f} s: {kinds or 'none'}"
    )


def show(name: str, trace: tracing.Trace) -> None:
    """Print a trace in a few lines."""
    tasks = trace.tasks
    longest = max((task.wall for task in tasks), default=0.0)
    ours = max((task for task in tasks if task.ours), key=lambda task: task.wall, default=None)
    words = f"{ours.wall:6.1f} ms (CPU {ours.cpu:.1f})" if ours else "none"
    above = trace.long(LIMIT)
    print(f"  {name:<28} longest task {longest:6.1f} ms, our own {words}; main thread {trace.cpu:.1f} %")
    print(f"  {'':<28} above {LIMIT:g} ms: {len(above)}, our own {sum(task.ours for task in above)}")
    for task in above[:6]:
        print(f"      {task}")


def main() -> None:
    """Print the table."""
    print(__doc__)
    path = chromium.find()
    if path is None:
        raise SystemExit("no Chromium on this machine")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        server = LabServer(Path(folder) / "lab")
        wide = {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": GPUS, "period": PERIOD}
        server.put_targets({"wide": wide})
        write_runs(server.folder / "state", PAST, time.time() - 3600, gpus=1, seconds=5)
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1300, "height": 950})
        page.set_default_timeout(MS)
        traffic = Traffic().listen(page)
        try:
            notebook = load_page(page, server, server.write("bench.ipynb", []))
            panel = PanelPage(page).open()
            submit_live(notebook, panel)
            page.wait_for_timeout(3000)
            for name, scrolls in (("seen, nobody touches it", False), ("seen, the list is scrolled", True)):
                tracing.start(browser, page)
                begin = time.monotonic()
                if scrolls:
                    frames, rows = page.evaluate(SCROLL, SECONDS)
                    shown = f"at most {rows} rows of {PAST + 1} in the page"
                    print(f"  {frames / SECONDS:.0f} frames/s while scrolling; {shown}")
                else:
                    page.wait_for_timeout(1000 * SECONDS)
                show(name, tracing.stop(browser, time.monotonic() - begin))
            print(f"  {'seen':<12}", wire(page, traffic, SECONDS))
            panel.hide()
            page.wait_for_timeout(3000)
            tracing.start(browser, page)
            begin = time.monotonic()
            hidden = wire(page, traffic, SECONDS)
            show("hidden", tracing.stop(browser, time.monotonic() - begin))
            print(f"  {'hidden':<12}", hidden)
        finally:
            browser.close()
            server.close()
            end_all(server.folder / "state")


if __name__ == "__main__":
    main()
