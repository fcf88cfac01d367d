"""The first notebook in a page: live, completed, and its file reopened with no kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, eventually, load_page, open_notebook

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_local_digits.ipynb"


def begun(page: Page, lab: LabServer, name: str, epochs: int) -> NotebookPage:
    """The first notebook opened, its training cell submitted without ``--wait``."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    at = next(k for k, text in enumerate(code) if text.startswith("%%aml_submit"))
    submit, before = code[at], "\n".join(text for text in code[:at] if not text.startswith("%"))
    # The first cell only: JupyterLab draws no output that is far off the screen.
    lab.write(name, cells[:1])
    notebook = open_notebook(page, lab, name)
    notebook.cell("%load_ext jupyter_amltrain")
    notebook.cell(before)
    notebook.cell(submit.replace(" --wait", "").replace("epochs=30", f"epochs={epochs}"))
    return notebook


@pytest.mark.thorough
def test_first_notebook_cancel_while_other_cell_sleeps(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = begun(page, lab, "01_canceled.ipynb", epochs=100_000)
    run = notebook.runs.first
    expect(run.locator("pre.jp-AmlTerminal")).to_contain_text("epoch", timeout=MS)
    prompt = notebook.sleeping_cell()
    notebook.cancel(run, "digits")
    expect(run.locator(".jp-AmlRun-state")).to_have_text("canceled", timeout=MS)
    expect(prompt).to_have_text("[*]:")
    eventually("the page sees the kernel busy again", lambda: notebook.kernel_status() == "busy")
    run.scroll_into_view_if_needed()
    page.screenshot(path=shots / "01-canceled-while-busy.png")
    notebook.interrupt()
    notebook.close()


@pytest.mark.thorough
def test_first_notebook_live_and_reopened_without_kernel(page: Page, lab: LabServer, shots: Path) -> None:
    name = "01_local_digits.ipynb"
    notebook = begun(page, lab, name, epochs=30)
    run = notebook.runs.first
    expect(run.locator(".jp-AmlRun-chartTitle").first).to_have_text("loss", timeout=MS)
    expect(run.locator("pre.jp-AmlTerminal")).to_contain_text("epoch", timeout=MS)
    run.scroll_into_view_if_needed()
    page.screenshot(path=shots / "01-live.png")
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=2 * MS)  # it trains
    eventually("the value was returned", lambda: notebook.records()[-1]["outputs"].get("accuracy", 0) > 0.9)
    notebook.cell("print('accuracy is', accuracy > 0.9)")
    eventually("the next cell has it", lambda: "accuracy is True" in notebook.outputs_text())
    run.scroll_into_view_if_needed()
    page.screenshot(path=shots / "01-completed.png")
    notebook.save()
    eventually("the file has the end", lambda: '"done": true' in (lab.notebooks / name).read_text())
    notebook.close()
    saved = lab.read(name)
    saved["metadata"] = {}  # else JupyterLab finds a kernel by the language
    (lab.notebooks / "reopened.ipynb").write_text(json.dumps(saved))
    again = load_page(page, lab, "reopened.ipynb", kernel=False)
    run = again.runs.first
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    expect(run.locator(".jp-AmlRun-outputs")).to_contain_text("accuracy")
    assert not again.has_kernel()
    run.scroll_into_view_if_needed()
    page.screenshot(path=shots / "01-reopened-without-kernel.png")
    lab.end_runs()
