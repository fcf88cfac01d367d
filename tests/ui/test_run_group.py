"""Several submits in one cell: one table, live, after a reload, and in the saved notebook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, load_page, open_notebook

pytestmark = pytest.mark.thorough

GROUP_MIME = "application/vnd.amltrain.runs+json"

TRAIN = """\
import argparse, os, time
import mlflow
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs")
lr = parser.parse_args().lr
if lr > 5:
    raise ValueError("lr is too large")
for step in range(30):
    mlflow.log_metric("loss", (1 - min(lr, 1) / 2) ** (step / 4), step=step)
mlflow.log_metric("val_accuracy", 0.5 + lr / 4)
print("trained with", lr, flush=True)
while lr == 1 and not os.path.exists("go"):
    time.sleep(0.05)
"""

LOOP = """\
for lr in (0.01, 0.1, 1, 10):
    %aml_submit train.py --param lr=$lr --param epochs=3
"""


@pytest.fixture
def notebook(page: Page, lab: LabServer) -> Iterator[NotebookPage]:
    lab.end_runs()
    (lab.notebooks / "go").unlink(missing_ok=True)
    # `--param` sets lr in a script that does not assign it.
    (lab.notebooks / "train.py").write_text(TRAIN.replace("lr = 0.1\n", ""))
    found = open_notebook(page, lab, lab.write("group.ipynb", [code_cell("# a notebook")]))
    try:
        found.cell("%load_ext jupyter_amltrain")
        yield found
    finally:
        found.close()
        lab.end_runs()


def groups(notebook: NotebookPage) -> list[dict[str, Any]]:
    """Data of the outputs with a group, as a save would write them."""
    found: list[dict[str, Any]] = notebook.page.evaluate(
        """mime => [...jupyterapp.shell.currentWidget.content.model.cells]
            .flatMap(cell => cell.outputs ? cell.outputs.toJSON() : [])
            .map(output => output.data).filter(data => data?.[mime])""",
        GROUP_MIME,
    )
    return found


def test_submits_of_one_cell_are_one_live_table(notebook: NotebookPage, lab: LabServer, shots: Path) -> None:
    page = notebook.page
    notebook.cell(LOOP)
    output = notebook.runs
    expect(output).to_have_count(1, timeout=MS)
    rows = output.locator("tbody tr[data-handle]")
    expect(rows).to_have_count(4, timeout=MS)
    state = "td.jp-AmlGroup-state"
    for i, word in enumerate(["completed", "completed", "running"]):
        expect(rows.nth(i).locator(state)).to_have_text(word, timeout=MS)
    page.screenshot(path=shots / "group-live.png")
    # One run in full, on request.
    rows.nth(2).locator(".jp-AmlGroup-open").click()
    inner = output.locator(".jp-AmlGroup-slot .jp-AmlRun-log pre")
    expect(inner).to_contain_text("trained with 1", timeout=MS)
    page.screenshot(path=shots / "group-open.png")
    rows.nth(2).locator(".jp-AmlGroup-open").click()
    expect(inner).to_have_count(0)
    # After a reload the kernel's updates do not arrive in the page.
    notebook.save()
    again = load_page(page, lab, "group.ipynb")
    expect(rows.nth(2).locator(state)).to_have_text("running", timeout=MS)
    (lab.notebooks / "go").touch()
    expect(rows.nth(2).locator(state)).to_have_text("completed", timeout=MS)
    expect(rows.nth(3).locator(state)).to_have_text("failed", timeout=MS)
    expect(output.locator(".jp-AmlGroup-why")).to_contain_text("lr is too large", timeout=MS)
    expect(rows.nth(2).locator(".jp-mod-best")).to_have_count(2, timeout=MS)  # least loss, greatest accuracy
    expect(output.locator(".jp-AmlGroup-spark polyline")).to_have_count(3)
    page.screenshot(path=shots / "group-done.png")
    eventually("the notebook holds the end", lambda: groups(again)[0][GROUP_MIME]["done"])
    (data,) = groups(again)
    assert "<svg" in data["text/html"] and "val_accuracy" in data["text/html"]
    assert "(best)" in data["text/plain"] and "lr is too large" in data["text/plain"]
    assert axe(page, ".jp-AmlGroup", not_ours=("<jp-button",)) == []
    again.theme("JupyterLab Dark")
    expect(page.locator("#jupyterlab-splash, .jp-Splash")).to_have_count(0, timeout=MS)
    page.wait_for_timeout(800)  # the splash fades out; for the picture only
    page.screenshot(path=shots / "group-dark.png")
    again.theme("JupyterLab Light")
    # Reloaded once more: nothing moves any more, and the views still open.
    again.save()
    load_page(page, lab, "group.ipynb")
    expect(rows.nth(2).get_by_role("button", name="Dashboard")).to_be_visible(timeout=MS)
    rows.nth(2).locator(".jp-AmlGroup-open").click()
    expect(inner).to_contain_text("trained with 1", timeout=MS)
    assert GROUP_MIME in json.dumps(lab.read("group.ipynb"))


def test_single_submit_keeps_its_whole_output(notebook: NotebookPage) -> None:
    notebook.cell("%aml_submit train.py --wait --param lr=0.1")
    expect(notebook.runs.locator(".jp-AmlRun-log pre")).to_contain_text("trained with 0.1", timeout=MS)
    assert groups(notebook) == []
