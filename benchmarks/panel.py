"""The panel while a cell runs: a question's answer, a cancel, a change by a magic and back.

In a real page: Chromium, jupyter-server, ipykernel 7 and 6; the cell sleeps, or computes without
a pause. Goals: 95 of 100 answers within 250 ms, a cancel seen within 2 s, a change seen within 1 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import ipykernel6
from benchmarks.browsers import ROOT
from tests.conftest import end_all
from tests.ui.conftest import FLAGS
from tests.ui.lab import MS, LabServer, NotebookPage, load_page
from tests.ui.panel import PanelPage
from tools import chromium

ASKS, CANCELS, CHANGES = 100, 5, 5

#: Asks `count` times one after the other as the panel does; milliseconds each.
ASK = """
async ([op, payload, version, count]) => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const took = [];
  for (let i = 0; i < count; i++) {
    const header = {
      msg_id: crypto.randomUUID(), msg_type: 'amltrain_request', session: kernel.clientId,
      username: '', date: new Date().toISOString(), version: '5.3'
    };
    const content = {version, op, ...payload};
    const message = {header, parent_header: {}, metadata: {}, content, channel: 'control', buffers: []};
    const begin = performance.now();
    const future = kernel.sendControlMessage(message, true, true);
    future.done.catch(() => 0);
    const reply = await new Promise(resolve => (future.onReply = m => resolve(m.content)));
    took.push(performance.now() - begin);
    future.dispose();
    if (!reply.ok) { throw new Error(reply.error); }
    await new Promise(resolve => setTimeout(resolve, 20));
  }
  return took;
}
"""

#: What the cell does for ever, and between two looks.
BUSY = {"sleep": "time.sleep(60)", "loop": "while True: x += 1"}
#: Changes the target by the magic, and sees changes that the panel made; then is busy for ever.
CELL = """
import time
from jupyter_amltrain import api
x, seen = 0, api.current_target()
def wait(seconds):
    global x, seen
    end = time.time() + seconds
    while time.time() < end:
        if {sleeps}: time.sleep(0.02)
        else:
            for _ in range(20000): x += 1
        now = api.current_target()
        if now != seen:
            seen = now
            print("seen", now, time.time(), flush=True)
ip = get_ipython()
for i in range({changes}):
    seen = ("local", "other")[i % 2 == 0]
    print("magic", seen, time.time(), flush=True)
    ip.run_line_magic("aml_compute", "use " + seen)
    wait(2)
print("back", flush=True)
wait({back})
print("busy", flush=True)
{busy}
"""


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


@contextlib.contextmanager
def opened(paths: str) -> Iterator[tuple[LabServer, NotebookPage]]:
    from playwright.sync_api import sync_playwright

    path = chromium.find()
    if path is None:
        raise SystemExit("no Chromium on this machine")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        server = LabServer(Path(folder) / "lab", PYTHONPATH=paths)
        state = server.folder / "state"
        state.mkdir()
        (state / "schema.json").write_text('{"schema":1}')
        other = {"kind": "fake", "name": "other", "queued": 0.1, "running": 3600.0}
        (state / "targets.json").write_text(json.dumps({"schema": 1, "current": "local", "targets": {"other": other}}))
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(MS)
        try:
            yield server, load_page(page, server, server.write("bench.ipynb", []))
        finally:
            browser.close()
            server.close()
            end_all(state)


def texts(notebook: NotebookPage, word: str) -> list[list[str]]:
    return [line.split() for line in notebook.outputs_text().splitlines() if line.startswith(word)]


def until(condition: object, seconds: float = 90.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("it did not happen")
        time.sleep(0.01)


def measure(name: str, paths: str, busy: str) -> None:
    from jupyter_amltrain.frontend import protocol

    with opened(paths) as (_, notebook):
        page = notebook.page
        notebook.cell("%load_ext jupyter_amltrain\nimport ipykernel; print('kernel', ipykernel.__version__)")
        version = texts(notebook, "kernel")[0][1]
        for _ in range(CANCELS):
            notebook.cell("%%aml_submit --target other --name bench\npass")
        panel = PanelPage(page).open()
        until(lambda: panel.rows.count() == CANCELS)
        changes = panel.record_current()
        cell = CELL.format(sleeps=busy == "sleep", changes=CHANGES, back=CHANGES * 2 + 4, busy=BUSY[busy])
        notebook.cell(cell, wait=False)
        until(lambda: "back" in notebook.outputs_text())
        sent_at = [float(line[2]) for line in texts(notebook, "magic")]
        shown = [at for at, _ in changes() if at > sent_at[0]]
        magic_to_panel = [1000 * (next((at for at in shown if at > begin), float("inf")) - begin) for begin in sent_at]
        back = []
        for i in range(CHANGES):
            count = len(texts(notebook, "seen"))
            begin = time.time()
            panel.use(("local", "other")[i % 2])
            until(lambda count=count: len(texts(notebook, "seen")) > count)
            back.append(1000 * (float(texts(notebook, "seen")[-1][2]) - begin))
            time.sleep(0.5)
        until(lambda: "busy" in notebook.outputs_text())
        handle = panel.handles()[0]
        requests = {}
        for op, payload in (("hello", {}), ("run", {"handle": handle}), ("log", {"handle": handle}), ("kinds", {})):
            page.evaluate(ASK, [op, payload, protocol.VERSION, 2])
            requests[op] = page.evaluate(ASK, [op, payload, protocol.VERSION, ASKS])
        canceled = []
        for handle in panel.handles()[:CANCELS]:
            canceled.append(panel.time_to_cancel(handle))
            time.sleep(0.2)
        status = notebook.kernel_status()
        print(f"ipykernel {version}, {name}; the page says the kernel is {status}")
        for op, took in requests.items():
            print(f"  {op:6} p50 {statistics.median(took):6.1f}  p95 {p95(took):6.1f}  max {max(took):6.1f} ms")
        for what, took in (("cancel to state", canceled), ("magic to panel", magic_to_panel), ("panel to magic", back)):
            print(f"  {what:16} median {statistics.median(took):6.0f}  max {max(took):6.0f} ms")


def main() -> None:
    print(__doc__)
    for kernel in ("", str(ipykernel6.folder())):
        paths = os.pathsep.join(filter(None, (kernel, str(ROOT))))
        for busy in BUSY:
            measure(busy, paths, busy)


if __name__ == "__main__":
    main()
