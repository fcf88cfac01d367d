"""A cell takes the notebook's data by itself, says so in a folded line, and its result is in the next cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.lab import MS, LabServer, code_cell, eventually, open_notebook

pytestmark = pytest.mark.thorough


def test_cell_takes_what_it_needs_and_its_frame_comes_back(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("values.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain\nimport pandas as pd\ndf = pd.DataFrame({'x': [1, 2, 3]})")
        notebook.cell("def twice(frame):\n    return frame * 2")
        notebook.cell("%%aml_submit --isolated\nreport = twice(df)")
        eventually("the flags are named", lambda: "--in df --with twice" in notebook.outputs_text())
        notebook.cell("%%aml_submit --name values --out report --wait\n%time report = twice(df)\nreport")
        run = notebook.runs.first
        expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
        expect(run.locator(".jp-AmlRun-outputs")).to_contain_text("DataFrame 3 x 1", timeout=MS)
        line, items = run.locator(".jp-AmlRun-takenLine"), run.locator(".jp-AmlRun-takenItems")
        expect(line).to_contain_text("twice, df", timeout=MS)
        expect(items).to_be_hidden()
        run.scroll_into_view_if_needed()
        page.screenshot(path=shots / "values-folded.png")
        line.click()
        expect(items).to_contain_text("df: DataFrame 3 x 1", timeout=MS)
        page.screenshot(path=shots / "values-open.png")
        notebook.cell("print('sum', report.x.sum())")
        eventually("the frame is here", lambda: "sum 12" in notebook.outputs_text())
        notebook.cell("%%aml_submit --name kept --wait\nlargest = int(twice(df).x.max())\nmodel = {'best': largest}")
        eventually("the run says what it keeps", lambda: "_.result('model')" in notebook.outputs_text())
        notebook.cell("print('kept', _.result('model'))")
        eventually("the value is here", lambda: "kept {'best': 6}" in notebook.outputs_text())
        page.screenshot(path=shots / "values-kept.png")
    finally:
        notebook.close()
        lab.end_runs()
