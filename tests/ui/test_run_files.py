"""Files of a run in its output: the list, a download, and a model that is registered by clicks."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, code_cell, open_notebook

pytestmark = pytest.mark.thorough

CELL = """%%aml_submit --name files --wait
import json, os, pathlib
folder = pathlib.Path(os.environ["AML_OUTPUT_DIR"])
(folder / "model.joblib").write_bytes(os.urandom(3 << 20))
(folder / "notes" ).mkdir()
(folder / "notes" / "<b>read me.txt").write_text("hello")
"""


def test_files_are_listed_downloaded_and_registered(page: Page, lab: LabServer, shots: Path, tmp_path: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("files.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain")
        notebook.cell(CELL)
        run = notebook.runs.first
        run.get_by_role("button", name="Files", exact=True).click()
        table = run.get_by_role("table", name="Files")
        expect(table).to_contain_text("outputs/notes/<b>read me.txt", timeout=MS)
        expect(table).not_to_contain_text("agent.txt")
        with page.expect_download() as download:
            table.get_by_role("button", name="Download outputs/model.joblib").click()
        download.value.save_as(tmp_path / "model")
        (kept,) = (lab.folder / "state" / "runs").glob("files-*/outputs/model.joblib")
        assert (tmp_path / "model").read_bytes() == kept.read_bytes()
        page.screenshot(path=shots / "files.png")
        assert axe(page, ".jp-AmlRun", not_ours=("<jp-button",)) == []
        run.get_by_role("button", name="Register model…", exact=True).click()
        dialog = page.locator(".jp-Dialog")
        dialog.locator("input").fill("digits")
        page.screenshot(path=shots / "files-register.png")
        dialog.get_by_role("button", name="Register").click()
        expect(page.locator(".Toastify")).to_contain_text("Registered digits:1", timeout=MS)
        run.get_by_role("button", name="Files", exact=True).click()
        expect(table).to_be_hidden()
    finally:
        notebook.close()
        lab.end_runs()
