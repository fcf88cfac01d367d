"""The panel in little room: 250 px wide, low, zoomed, with a large font; and in columns where it is wide."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, eventually, load_page
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

SWEEP = """
import jupyter_amltrain as aml
%load_ext jupyter_amltrain
code = '''
import mlflow
for step in range(20):
    mlflow.log_metric("validation_loss_of_the_model", lr * 9.54e-7 / (step + 1), step=step)
    mlflow.log_metric("accuracy", step / 20, step=step)
'''
from pathlib import Path
Path("sweep.py").write_text("import argparse\\np = argparse.ArgumentParser()\\np.add_argument('--lr', type=float)\\n"
    "p.add_argument('--epochs')\\nlr = p.parse_args().lr\\n" + code)
"""


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    notebook = load_page(page, lab, lab.write("narrow.ipynb", []))
    notebook.cell(SWEEP)
    for lr in ("0.1", "0.01"):
        notebook.cell(f"%aml_submit sweep.py --wait --name a-rather-long-name --param lr={lr} --param epochs=3")
    return notebook


@pytest.fixture(scope="module")
def panel(notebook: NotebookPage) -> PanelPage:
    panel = PanelPage(notebook.page).open()
    panel.wait_state("ready")
    expect(panel.rows).to_have_count(2, timeout=MS)
    expect(panel.rows.first.locator(".jp-AmlRuns-spark polyline")).not_to_have_count(0, timeout=MS)
    return panel


def cut(panel: PanelPage, selector: str) -> list[str]:
    """Texts of the elements that are not whole in the page."""
    found: list[str] = panel.node.locator(selector).evaluate_all(
        """nodes => nodes.filter(node => node.offsetParent && node.textContent)
            .filter(node => {
                const row = node.closest('.jp-AmlRuns-row, .jp-AmlRuns-detail').getBoundingClientRect();
                const box = node.getBoundingClientRect();
                return node.scrollWidth > node.clientWidth + 1 || box.right > row.right || box.left < row.left;
            }).map(node => node.textContent)"""
    )
    return found


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_run_rows_in_narrow_panel_keep_number_and_parameters(
    notebook: NotebookPage, panel: PanelPage, shots: Path, theme: str
) -> None:
    notebook.theme(theme)
    panel.width(250)
    panel.settle()
    panel.page.screenshot(path=shots / f"narrow-250-{theme[11:]}.png")
    assert cut(panel, ".jp-AmlRuns-row .jp-AmlRuns-number") == []
    shown = panel.node.locator(".jp-AmlRuns-row .jp-AmlRuns-params").all_inner_texts()
    assert sorted(shown) == ["lr=0.01", "lr=0.1"]  # epochs is the same in both
    assert cut(panel, ".jp-AmlRuns-params") == []
    panel.width(550)
    panel.settle()
    panel.page.screenshot(path=shots / f"narrow-550-{theme[11:]}.png")
    heights = panel.rows.evaluate_all("rows => rows.map(row => row.offsetHeight)")
    assert max(heights) < 40  # one line
    expect(panel.node.locator(".jp-AmlRuns-columns")).to_contain_text("Metric")
    assert cut(panel, ".jp-AmlRuns-row .jp-AmlRuns-number") == []
    panel.width(250)
    notebook.theme("JupyterLab Light")


def test_run_details_have_all_metrics_and_words(panel: PanelPage, shots: Path) -> None:
    panel.width(250)
    panel.rows.first.click()
    detail = panel.node.locator(".jp-AmlRuns-detail")
    expect(detail).to_contain_text("validation_loss_of_the_model", timeout=MS)
    expect(detail).to_contain_text("accuracy")
    for word in ("Log", "Dashboard", "Go to cell", "Run again", "Delete…"):
        expect(detail.get_by_role("button", name=word, exact=True)).to_be_visible()
    box = detail.bounding_box()
    assert box is not None and box["height"] >= 110
    panel.settle()
    panel.page.screenshot(path=shots / "narrow-detail.png")


def test_sections_in_low_panel_are_open_one_at_a_time(panel: PanelPage, shots: Path) -> None:
    page = panel.page
    panel.width(250)
    page.set_viewport_size({"width": 800, "height": 600})  # 1200 x 900 at 150 %
    panel.command("submit-cell")
    expect(panel.submit).to_be_visible(timeout=MS)
    foot = panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name="Submit", exact=True)
    expect(foot).to_be_in_viewport(ratio=1, timeout=MS)
    panel.settle()
    page.screenshot(path=shots / "narrow-150-submit.png")
    expect(panel.node.locator(".jp-AmlRuns-list")).to_be_hidden()
    panel.section("Runs")
    expect(panel.submit).to_be_hidden(timeout=MS)
    panel.settle()
    page.screenshot(path=shots / "narrow-150-runs.png")
    page.set_viewport_size({"width": 1200, "height": 950})
    # There is room again: what the user has opened is open.
    expect(panel.submit).to_be_visible(timeout=MS)
    expect(panel.node.locator(".jp-AmlRuns-list")).to_be_visible()
    panel.section("Submit", open=False)


def test_panel_with_large_font_cuts_no_number(panel: PanelPage, shots: Path) -> None:
    page = panel.page
    before = panel.rows.first.evaluate("row => row.offsetHeight")
    style = "body { --jp-ui-font-size1: 20px !important; --jp-ui-font-size0: 17px !important; }"
    tag = page.add_style_tag(content=style)
    page.set_viewport_size({"width": 1200, "height": 900})
    eventually("the rows are higher", lambda: panel.rows.first.evaluate("row => row.offsetHeight") > before)
    panel.settle()
    page.screenshot(path=shots / "narrow-font.png")
    assert cut(panel, ".jp-AmlRuns-row .jp-AmlRuns-number") == []
    tag.evaluate("tag => tag.remove()")
    page.set_viewport_size({"width": 1200, "height": 950})
