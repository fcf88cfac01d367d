"""Colors of a terminal in the log of an output."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.lab import MS, LabServer, code_cell, open_notebook

pytestmark = pytest.mark.thorough

CELL = r"""%%aml_submit --name colors --wait
print("plain <b>first</b>")
print("\x1b[31mloss is high\x1b[0m and \x1b[1mbold\x1b[0m")
"""


def test_log_shows_terminal_colors_and_no_html(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("colors.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain")
        notebook.cell(CELL)
        log = notebook.runs.first.locator(".jp-AmlRun-log pre")
        expect(log).to_contain_text("loss is high and bold", timeout=MS)
        expect(log.locator(".ansi-red-fg")).to_have_text("loss is high")
        expect(log.locator(".ansi-bold")).to_have_text("bold")
        expect(log).to_contain_text("plain <b>first</b>")
        page.screenshot(path=shots / "log-colors.png")
    finally:
        notebook.close()
        lab.end_runs()
