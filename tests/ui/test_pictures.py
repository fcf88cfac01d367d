"""Figures of a cell: live in its output, in the panel's details, whole in a dialog, and saved in the notebook."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, open_notebook, run_output
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

SUBMIT = """%%aml_submit --name plots
import os, sys, time
import matplotlib.pyplot as plt
import mlflow

plt.plot([1, 0.5, 0.3, 0.2]); plt.title("Loss per epoch"); plt.xlabel("epoch")
print("ready", flush=True)
while not os.path.exists({gate!r}): time.sleep(0.02)
print("shown", flush=True)
plt.show()
while not os.path.exists({gate!r} + "2"): time.sleep(0.02)
fig, ax = plt.subplots()
ax.imshow([[9, 1, 0], [0, 8, 2], [1, 0, 9]])
mlflow.log_figure(fig, "plots/confusion.png")
mlflow.log_figure(fig, "plots/confusion.svg")
plt.close(fig)
"""


@pytest.fixture
def notebook(page: Page, lab: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    found = open_notebook(page, lab, lab.write(f"{request.node.name}.ipynb", [code_cell("# a notebook")]))
    try:
        yield found
    finally:
        found.close()
        lab.end_runs()


def images(row: Locator) -> Locator:
    return row.locator("img.jp-AmlPictures-thumbnail")


def is_drawn(image: Locator) -> bool:
    return bool(image.evaluate("node => node.complete && node.naturalWidth > 100"))


def test_figures_are_live_whole_and_saved(notebook: NotebookPage, lab: LabServer, shots: Path, tmp_path: Path) -> None:
    page = notebook.page
    gate = tmp_path / "gate"
    notebook.cell("%load_ext jupyter_amltrain")
    notebook.cell(SUBMIT.format(gate=str(gate)))
    run = notebook.runs.first
    expect(run.locator(".jp-AmlRun-log pre")).to_contain_text("ready", timeout=MS)
    row = run.locator(".jp-AmlPictures")
    expect(row).to_be_hidden()
    gate.touch()
    expect(run.locator(".jp-AmlRun-log pre")).to_contain_text("shown", timeout=MS)
    begin = time.monotonic()
    figure = run.locator(".jp-AmlRun-log .jp-AmlRun-display img")
    expect(figure).to_have_count(1, timeout=MS)
    print(f"figure {time.monotonic() - begin:.2f} s after the line of the log")
    eventually("the figure is drawn", lambda: is_drawn(figure))
    expect(figure).to_have_attribute("alt", "Loss per epoch")
    expect(row).to_be_hidden()
    figure.scroll_into_view_if_needed()
    page.screenshot(path=shots / "figure-live.png")
    (tmp_path / "gate2").touch()
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    expect(row.locator("li")).to_have_count(2, timeout=MS)
    expect(images(row)).to_have_count(1)
    expect(figure).to_have_count(1)
    row.scroll_into_view_if_needed()
    page.screenshot(path=shots / "figures-ended.png")

    # By keyboard: the whole picture, its neighbor, and back to the thumbnail.
    opener = row.get_by_role("button", name="Open confusion.png")
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.locator(".jp-AmlPictureDialog")
    whole = dialog.locator("img.jp-AmlPictures-full")
    eventually("the whole picture", lambda: whole.evaluate("node => node.complete && node.naturalWidth > 500"))
    page.screenshot(path=shots / "figure-dialog.png")
    page.keyboard.press("ArrowRight")
    expect(dialog.locator(".jp-AmlPictures-title")).to_have_text("confusion.svg")
    eventually("the SVG", lambda: "svg+xml" in str(whole.get_attribute("src")))
    expect(dialog.get_by_role("link", name="Download")).to_be_visible(timeout=MS)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()

    # In the panel's details.
    panel = PanelPage(page)
    panel.open()
    panel.rows.first.click()
    detail = panel.node.locator(".jp-AmlRuns-detail")
    expect(images(detail)).to_have_count(1, timeout=MS)
    expect(detail.get_by_alt_text("Loss per epoch")).to_have_count(1)
    page.screenshot(path=shots / "figures-panel.png")
    notebook.theme("JupyterLab Dark")
    expect(page.locator("#jupyterlab-splash")).to_have_count(0, timeout=MS)
    page.screenshot(path=shots / "figures-dark.png")
    notebook.theme("JupyterLab Light")

    # Saved: without a kernel the thumbnails are there, and the dialog says what is missing.
    eventually("the record is complete", lambda: len(notebook.records()[-1]["pictures"]) == 2)
    notebook.save()
    name = str(page.evaluate("() => jupyterapp.shell.currentWidget.context.path"))
    copy = open_notebook(page, lab, lab.copy_without_kernel(name, "copy.ipynb"), kernel=False)
    try:
        row = copy.runs.first.locator(".jp-AmlPictures")
        expect(images(row)).to_have_count(1, timeout=MS)
        eventually("the thumbnail is drawn", lambda: is_drawn(images(row).first))
        expect(copy.runs.first.get_by_alt_text("Loss per epoch")).to_have_count(1)
        row.get_by_role("button", name="Open confusion.png").click()
        expect(page.locator(".jp-AmlPictureDialog [role='alert']")).to_contain_text("kernel", timeout=MS)
        page.screenshot(path=shots / "figures-saved.png")
        page.keyboard.press("Escape")
    finally:
        page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")


def test_hostile_thumbnail_is_not_drawn(notebook: NotebookPage, lab: LabServer) -> None:
    script = "PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+"
    urls = (
        "javascript:window.hit=1",
        "http://127.0.0.1:1/x.png",
        "data:text/html;base64," + script,
        "data:image/png,x",
    )
    pictures = [
        {"path": f"{i}", "name": "<img src=x onerror='window.hit=1'>", "thumbnail": url} for i, url in enumerate(urls)
    ]
    pictures.append({"path": "s", "name": "s.svg", "thumbnail": "data:image/svg+xml;base64," + script})
    record = {"handle": "local/x-1", "state": "completed", "done": True, "pictures": [*pictures, 7, None, {"path": 3}]}
    name = lab.write("hostile.ipynb", [code_cell("# a run", [run_output(record)])], kernel=None)
    opened = open_notebook(notebook.page, lab, name, kernel=False)
    try:
        row = opened.runs.first.locator(".jp-AmlPictures")
        expect(row.locator("li")).to_have_count(8, timeout=MS)
        expect(images(row)).to_have_count(1)
        assert opened.page.evaluate("() => window.hit") is None
    finally:
        opened.page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")
