"""Heights of the panel's sections, and that they are the same after a reload."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, eventually, load_page
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

#: Milliseconds after which the page has written what it remembers, and some.
WRITTEN = 1500


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    lab.put_targets({"long": {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": 8, "period": 0.5}})
    return load_page(page, lab, lab.write("layout.ipynb", []))


@pytest.fixture(scope="module")
def panel(notebook: NotebookPage) -> PanelPage:
    return PanelPage(notebook.page).open().connect()


def title(panel: PanelPage, name: str) -> Locator:
    words = re.compile("^(GPUs|Resources)$") if name == "GPUs" else re.compile(f"^{name}$")
    return panel.node.locator(".jp-AccordionPanel-title", has=panel.page.get_by_text(words))


def heights(panel: PanelPage) -> dict[str, int]:
    """Pixels of each section; 0: closed."""
    return {
        name: panel.node.locator(f".jp-SidePanel-content > .jp-Aml{name}").evaluate(
            "node => node.classList.contains('lm-mod-hidden') ? 0 : node.offsetHeight"
        )
        for name in ("Compute", "Runs", "Gpus", "Submit")
    }


def settled(panel: PanelPage) -> dict[str, int]:
    """The heights once they stay the same."""
    seen = [heights(panel)]

    def same() -> bool:
        panel.settle(0.3)
        seen.append(heights(panel))
        return seen[-1] == seen[-2]

    eventually("the heights stay the same", same)
    return seen[-1]


def overflows(panel: PanelPage) -> bool:
    """Whether the panel itself has a scrollbar."""
    return bool(
        panel.node.locator(".jp-SidePanel-content").evaluate("node => node.scrollHeight > node.clientHeight + 1")
    )


def reload(panel: PanelPage) -> None:
    """Reload the page with its workspace."""
    panel.page.wait_for_timeout(WRITTEN)
    # The first address would reset the workspace again.
    panel.page.goto(panel.page.url.split("?")[0])
    panel.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.isReady")
    panel.open().wait_state("ready")


def test_runs_section_has_most_room(panel: PanelPage, shots: Path) -> None:
    now = settled(panel)
    assert now["Runs"] > now["Gpus"] > now["Compute"] > 0 == now["Submit"]
    assert 200 <= now["Gpus"] <= 260
    # As high as its rows: no row is cut, and nothing is empty below.
    bottom = panel.targets.last.evaluate("node => node.getBoundingClientRect().bottom")
    box = panel.node.locator(".jp-AmlCompute").bounding_box()
    assert box is not None and abs(box["y"] + box["height"] - bottom) < 3
    assert not overflows(panel)
    panel.page.screenshot(path=shots / "layout.png")


def test_submit_section_gets_room(panel: PanelPage, shots: Path) -> None:
    panel.command("submit-cell")
    expect(panel.submit).to_be_visible(timeout=MS)
    now = settled(panel)
    assert now["Submit"] > 150 and all(now.values()) and now["Runs"] >= 140
    assert not overflows(panel)
    panel.page.screenshot(path=shots / "layout-submit.png")
    title(panel, "Submit").click()
    expect(panel.submit).to_be_hidden(timeout=MS)


def test_low_screen_and_narrow_panel_do_not_overflow(panel: PanelPage, shots: Path) -> None:
    page = panel.page
    page.set_viewport_size({"width": 1200, "height": 600})
    settled(panel)
    assert not overflows(panel)
    page.screenshot(path=shots / "layout-low.png")
    cut = panel.node.locator(".lm-AccordionPanel-titleLabel").evaluate_all(
        "labels => labels.filter(l => l.scrollWidth > l.clientWidth + 1).map(l => l.textContent)"
    )
    assert cut == []
    page.set_viewport_size({"width": 1200, "height": 950})


@pytest.mark.thorough
def test_section_state_is_remembered(panel: PanelPage) -> None:
    closed = title(panel, "GPUs")
    # Its name depends on the machine; a title that changes is drawn again, and loses the focus.
    expect(closed).to_have_text("Resources", timeout=MS)
    closed.press("Enter")
    expect(panel.gpus).to_be_hidden(timeout=MS)
    expect(closed).to_have_attribute("aria-expanded", "false")
    before = settled(panel)
    handle = panel.node.locator(".lm-SplitPanel-handle:not(.lm-mod-hidden)").first
    box = handle.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    panel.page.mouse.move(x, y)
    panel.page.mouse.down()
    panel.page.mouse.move(x, y + 120, steps=4)
    panel.page.mouse.up()
    moved = settled(panel)
    assert abs(moved["Compute"] - before["Compute"] - 120) < 5
    reload(panel)
    after = settled(panel)
    assert abs(after["Compute"] - moved["Compute"]) < 5 and after["Gpus"] == after["Submit"] == 0
    title(panel, "GPUs").click()
    expect(panel.gpus).to_be_visible(timeout=MS)
    reload(panel)
    assert settled(panel)["Gpus"] > 100
