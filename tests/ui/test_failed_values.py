"""The values at a failure, below the error of a run: live, folded, and in the saved notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, open_notebook

pytestmark = pytest.mark.thorough

SUBMIT = """%%aml_submit --name broken
import numpy as np
def step(x, w):
    scale = 2.0
    return x @ w * scale
def epoch(batches, w):
    for x in batches:
        step(x, w)
rng = np.random.default_rng(0)
batches = [rng.normal(size=(32, 784)) for _ in range(3)]
weights = rng.normal(size=(512, 10))
epoch(batches, weights)
"""


@pytest.fixture
def notebook(page: Page, lab: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    found = open_notebook(page, lab, lab.write(f"{request.node.name}.ipynb", [code_cell("# a notebook")]))
    try:
        yield found
    finally:
        found.close()
        lab.end_runs()


def test_failed_run_shows_its_values(page: Page, notebook: NotebookPage, shots: Path) -> None:
    notebook.cell("%load_ext jupyter_amltrain")
    notebook.cell(SUBMIT)
    frames = notebook.runs.first.locator(".jp-AmlRun-frames details")
    expect(frames).to_have_count(3, timeout=MS)
    expect(frames.nth(0)).to_contain_text("line 5 of the cell, in step")
    named = frames.nth(0).locator("tr.jp-mod-named")
    expect(named).to_have_count(3)
    expect(named.nth(1)).to_contain_text("ndarray 512×10 float64")
    expect(frames.nth(1).locator("table")).to_be_hidden()
    frames.nth(1).locator("summary").click()
    expect(frames.nth(1).locator("table")).to_be_visible()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.theme(theme)
        page.screenshot(path=shots / f"failed-values-{theme.split()[1].lower()}.png")
    notebook.save()
    (record,) = notebook.records()
    assert [one["named"] for one in record["frames"]] == [3, 2, 2]
