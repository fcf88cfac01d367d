"""Tables, images and charts that a cell displays: live between the lines of its log, safe, and saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, open_notebook, run_output
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

SUBMIT = """%%aml_submit --name shown
import os, time
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, JSON, Latex, Markdown, SVG
from PIL import Image

print("first line", flush=True)
display(pd.DataFrame({{"animal": ["cat", "<b>dog</b>"], "legs": [4, 4]}}))
print("second line", flush=True)
handle = display(Markdown("**step 1**"), display_id=True)
while not os.path.exists({gate!r}): time.sleep(0.02)
handle.update(Markdown("**step 2**"))
display(Image.new("RGB", (120, 60), "steelblue"), Latex("$e^{{i\\\\pi}} = -1$"), JSON({{"answer": 42}}))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' width='80' height='40'><circle cx='20' cy='20' r='15'/></svg>"))
fig, ax = plt.subplots(figsize=(4, 2)); ax.plot([1, 3, 2]); ax.set_title("Loss")
print("third line")
fig
"""

HOSTILE = """%%aml_submit --name hostile
from IPython.display import HTML, Markdown, SVG
cover = "position: fixed; inset: 0; z-index: 99999; background: red"
display(HTML("<p>shown one</p><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"))
display(HTML(f"<div class='jp-Dialog' id='main' style='{{cover}}'>shown two</div><img src='http://127.0.0.1:{port}/beacon.png'>"))
display(Markdown("shown three ![x](http://127.0.0.1:{port}/beacon.png) <img src='http://127.0.0.1:{port}/beacon.png'>"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' width='40' height='40' onload='window.pwned = 3'><image href='http://127.0.0.1:{port}/beacon.png'/></svg>"))
print("the end")
"""


@pytest.fixture
def notebook(page: Page, lab: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    found = open_notebook(page, lab, lab.write(f"{request.node.name}.ipynb", [code_cell("# a notebook")]))
    try:
        yield found
    finally:
        found.close()
        lab.end_runs()


def order(log: Locator) -> list[str]:
    """What the log shows from above: the MIME type of a display, or the text of a line."""
    script = "node => Array.from(node.children, child => child.dataset.mime || child.textContent.trim())"
    return list(log.evaluate(script))


def is_drawn(image: Locator) -> bool:
    return bool(image.evaluate("node => node.complete && node.naturalWidth > 50"))


BEGIN = ["first line", "text/html", "second line", "text/markdown"]
ALL = [*BEGIN, "image/png", "text/latex", "application/json", "image/svg+xml", "third line", "image/png"]


def test_displays_are_live_between_lines_and_saved(
    notebook: NotebookPage, page: Page, lab: LabServer, shots: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    notebook.cell("%load_ext jupyter_amltrain")
    notebook.cell(SUBMIT.format(gate=str(gate)))
    run = notebook.runs.first
    log = run.locator(".jp-AmlRun-log > pre")
    eventually("the table is between the lines", lambda: order(log) == BEGIN)
    table = log.locator("table.dataframe")
    expect(table.locator("td").first).to_have_text("cat")
    expect(log).to_contain_text("step 1")
    page.screenshot(path=shots / "displays-live.png")
    gate.touch()
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    eventually("all displays in their order", lambda: order(log) == ALL)
    expect(log).to_contain_text("step 2")
    expect(log).not_to_contain_text("step 1")
    eventually("the figure is drawn", lambda: is_drawn(log.locator("img").last))
    for theme, name in (("JupyterLab Dark", "displays-dark"), ("JupyterLab Light", "displays-light")):
        notebook.theme(theme)
        expect(page.locator("#jupyterlab-splash")).to_have_count(0, timeout=MS)
        log.evaluate("node => node.scrollTop = 0")
        log.scroll_into_view_if_needed()
        page.screenshot(path=shots / f"{name}.png")
        log.evaluate("node => node.scrollTop = node.scrollHeight")
        page.screenshot(path=shots / f"{name}-end.png")

    # In the panel's details.
    panel = PanelPage(page)
    panel.open()
    panel.rows.first.click()
    details = panel.node.locator(".jp-AmlRun-displays")
    expect(details.locator("table.dataframe")).to_have_count(1, timeout=MS)
    page.screenshot(path=shots / "displays-panel.png")

    # Saved: without a kernel it is the same.
    eventually("the record is complete", lambda: len(notebook.records()[-1]["displays"]) == 7)
    notebook.save()
    name = lab.copy_without_kernel(f"{test_displays_are_live_between_lines_and_saved.__name__}.ipynb", "saved.ipynb")
    saved = open_notebook(page, lab, name, kernel=False)
    log = saved.runs.first.locator(".jp-AmlRun-log > pre")
    eventually("the saved displays", lambda: [*map(kind, order(log))] == [*map(kind, ALL)])
    page.screenshot(path=shots / "displays-saved.png")
    saved.close()


def kind(item: str) -> str:
    """A small copy of an image may have another type."""
    return "image" if item.startswith("image/") else item


STYLED = """%%aml_submit --name styled
import os, time
import pandas as pd
from IPython.display import HTML, Image
import PIL.Image
handle = display(HTML("<p>version 1</p>"), display_id=True)
picture = display(PIL.Image.new("RGB", (200, 100), "red"), display_id=True)
while not os.path.exists({gate!r}): time.sleep(0.02)
handle.update(HTML("<p>version 2</p>"))
picture.update(PIL.Image.new("RGB", (200, 100), "blue"))
display(pd.DataFrame({{"a": [1, 2]}}).style.bar(color="red").set_caption("Legs").set_table_styles(
    [{{"selector": "caption", "props": "color: rgb(1, 2, 3); position: fixed"}}]))
display(HTML("<style>p.note {{text-decoration: underline; white-space: pre}}</style><p class='note'>one  two</p>"))
display(HTML("<iframe src='http://127.0.0.1:{port}/beacon'></iframe>"), Image(url="http://127.0.0.1:{port}/beacon.png"))
PIL.Image.new("RGB", (9, 9)).save("box.png")
Image("box.png", alt="a black box")
"""


def test_styles_of_displays_are_kept_and_updates_redraw_in_place(
    notebook: NotebookPage, page: Page, lab: LabServer, shots: Path, tmp_path: Path
) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    gate = tmp_path / "gate"
    notebook.cell("%load_ext jupyter_amltrain")
    notebook.cell(STYLED.format(gate=str(gate), port=lab.port))
    run = notebook.runs.first
    log = run.locator(".jp-AmlRun-log > pre")
    expect(log).to_contain_text("version 1", timeout=MS)
    eventually("the picture is drawn", lambda: is_drawn(log.locator("img")))
    log.evaluate("node => node.querySelectorAll('.jp-RenderedHTML, img').forEach(part => (part.probe = 1))")
    gate.touch()
    expect(log).to_contain_text("version 2", timeout=MS)
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    expect(log.locator("caption")).to_have_text("Legs", timeout=MS)
    stayed = "node => [...node.querySelectorAll('.jp-RenderedHTML, img')].filter(part => part.probe).length"
    assert log.evaluate(stayed) == 2
    style = "(node, name) => getComputedStyle(node)[name]"
    caption, note = log.locator("caption"), log.locator("p", has_text="one")
    assert caption.evaluate(style, "color") == "rgb(1, 2, 3)" and caption.evaluate(style, "position") == "static"
    assert "linear-gradient" in log.locator("tbody td").last.evaluate(style, "backgroundImage")
    assert "underline" in note.evaluate(style, "textDecorationLine") and note.evaluate(style, "whiteSpace") == "pre"
    expect(log.locator("a[href*='beacon']")).to_have_count(2)
    expect(log.get_by_alt_text("a black box")).to_have_count(1)
    page.screenshot(path=shots / "displays-styled.png")
    assert not [url for url in requests if "beacon" in url]


def test_hostile_displays_run_and_load_nothing(notebook: NotebookPage, page: Page, lab: LabServer, shots: Path) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    notebook.cell("%load_ext jupyter_amltrain")
    notebook.cell(HOSTILE.format(port=lab.port))
    run = notebook.runs.first
    log = run.locator(".jp-AmlRun-log > pre")
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    for text in ("shown one", "shown two", "shown three", "the end"):
        expect(log).to_contain_text(text, timeout=MS)
    page.screenshot(path=shots / "displays-hostile.png")
    assert page.evaluate("window.pwned") is None
    assert not [url for url in requests if "beacon" in url]
    assert log.locator(".jp-Dialog, #main, script, iframe").count() == 0
    box, whole = log.locator(".jp-AmlRun-display").nth(1).bounding_box(), log.bounding_box()
    assert box and whole and box["height"] < 100 and box["width"] <= whole["width"]


def test_hostile_saved_displays_run_and_load_nothing(
    notebook: NotebookPage, page: Page, lab: LabServer, shots: Path
) -> None:
    """A notebook of somebody else: its records were never made safe."""
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    beacon = f"http://127.0.0.1:{lab.port}/beacon.png"
    cover = "position:fixed;inset:0;z-index:99999;background:red"
    hostile = (
        f"<p>text</p><script>window.pwned=1</script><img src=x onerror='window.pwned=1'><img src='{beacon}'>"
        f"<div class='jp-Dialog' id='main' style=\"{cover};background-image:url('{beacon}')\">cover</div>"
        f"<form action='{beacon}'><button>Press</button></form><a href='javascript:window.pwned=1'>link</a>"
        f"<button data-commandlinker-command='apputils:reset'>reset</button><video src='{beacon}' autoplay></video>"
    )
    forms = [
        {"text/html": hostile}, {"text/markdown": f"{hostile}\n\n![x]({beacon}) <iframe srcdoc='x'></iframe>"},
        {"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=1'/>"},
        {"image/png": "x' onerror='window.pwned=1"}, {"application/javascript": "window.pwned=1"},
        {"text/latex": "\\href{javascript:window.pwned=1}{x}"}, {"text/html": 7}, {"application/json": {"a": hostile}},
    ]  # fmt: skip
    displays = [{"number": i, "line": 0, "data": data} for i, data in enumerate(forms)]
    log = {"tail": "the end\n", "bytes": 8}
    record = {"handle": "local/x-1", "state": "completed", "done": True, "displays": [*displays, 7, None], "log": log}
    name = lab.write("hostile.ipynb", [code_cell("# a run", [run_output(record)])], kernel=None)
    opened = open_notebook(page, lab, name, kernel=False)
    try:
        shown = opened.runs.first.locator(".jp-AmlRun-log > pre")
        expect(shown).to_contain_text("the end", timeout=MS)
        expect(shown.locator("p").first).to_have_text("text", timeout=MS)
        expect(shown.locator("[data-mime='text/markdown'] p").first).to_be_attached(timeout=MS)
        page.screenshot(path=shots / "displays-hostile-saved.png")
        assert page.evaluate("window.pwned") is None and not [url for url in requests if "beacon" in url]
        inside = shown.locator("[data-mime='text/html'], [data-mime='text/markdown']")
        assert (
            inside.locator("script, iframe, form, button, video, #main, .jp-Dialog, [href^='javascript']").count() == 0
        )
    finally:
        page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")
