"""Ways to a run: by clicks alone, and by the keyboard alone; and the dialog with all options."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, load_page
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

#: What the user has clicked, as the page sees it; programs' clicks do not count.
RECORD_CLICKS = """
() => {
  window.amlClicks = [];
  document.addEventListener('click', event => {
    if (event.isTrusted && event.detail > 0) {
      const node = event.target.closest('button, [role=tab], .jp-AccordionPanel-title, li') ?? event.target;
      window.amlClicks.push(node.getAttribute('aria-label') || node.textContent.trim() || node.title || node.tagName);
    }
  }, true);
}
"""


def notebook_of(page: Page, lab: LabServer, name: str) -> NotebookPage:
    """A notebook with one code cell, whose kernel has not loaded the extension."""
    return load_page(page, lab, lab.write(name, [code_cell("print('trained')")]))


def test_run_by_clicks_alone_needs_two(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = notebook_of(page, lab, "clicks.ipynb")
    panel = PanelPage(page)
    page.evaluate(RECORD_CLICKS)
    page.locator(".jp-cell-toolbar [data-command='jupyter-amltrain:submit-cell']").click()
    submit = panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name="Submit", exact=True)
    expect(panel.submit.locator(".jp-AmlSubmit-line")).to_have_text("%%aml_submit", timeout=MS)
    submit.click()
    expect(panel.rows).to_have_count(1, timeout=MS)
    expect(panel.rows.first).to_have_attribute("data-state", "completed", timeout=MS)
    clicks = page.evaluate("() => window.amlClicks")
    assert len(clicks) <= 2, clicks  # the button of the cell, and Submit, which also connects the kernel
    page.screenshot(path=shots / "ways-clicks.png")
    notebook.close()


def test_run_by_keyboard_alone(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = notebook_of(page, lab, "keys.ipynb")
    panel = PanelPage(page)

    def command(words: str) -> None:
        page.keyboard.press("Control+Shift+c")
        palette = page.locator("#command-palette input, .jp-ModalCommandPalette input").first
        expect(palette).to_be_focused(timeout=MS)
        page.keyboard.type(words)
        # The list follows the text a frame later.
        expect(page.locator(".lm-CommandPalette-item.lm-mod-active")).to_contain_text(words, timeout=MS)
        page.keyboard.press("Enter")
        expect(palette).not_to_be_visible(timeout=MS)

    command("Connect kernel to training runs")
    panel.open().wait_state("ready")
    command("Submit cell as training run")
    submit = panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name="Submit", exact=True)
    expect(submit).to_be_focused(timeout=MS)
    expect(panel.submit.locator(".jp-AmlSubmit-line")).to_have_text("%%aml_submit", timeout=MS)
    page.keyboard.press("Enter")
    row = panel.rows.filter(has_text="keys")
    expect(row).to_have_count(1, timeout=MS)
    expect(row).to_have_attribute("data-state", "completed", timeout=MS)
    page.screenshot(path=shots / "ways-keys.png")
    notebook.close()


@pytest.fixture(scope="module")
def panel(page: Page, lab: LabServer) -> PanelPage:
    notebook = load_page(page, lab, lab.write("options.ipynb", [code_cell("print('one')"), code_cell("print('two')")]))
    notebook.page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    panel = PanelPage(page).open().connect()
    panel.command("submit-cell")
    expect(panel.submit.locator(".jp-AmlSubmit-line")).to_have_text("%%aml_submit", timeout=MS)
    return panel


def test_all_options_are_grouped_for_the_target_with_help(panel: PanelPage, shots: Path) -> None:
    page = panel.page
    form = panel.submit.locator("form.jp-AmlForm")
    expect(panel.field(form, "gpus")).to_have_count(0, timeout=MS)  # this machine has none, once that is known
    names = form.locator(".jp-AmlForm-field").evaluate_all("fields => fields.map(field => field.dataset.field)")
    assert names == ["target", "param", "name", "wait"]
    panel.submit.get_by_role("button", name="All options…").click()
    dialog = page.get_by_role("dialog", name="Options of the submit")
    expect(dialog).to_be_visible(timeout=MS)
    legends = dialog.locator("legend").all_inner_texts()
    assert [legend.lower() for legend in legends] == ["what", "parameters", "where", "data and outputs", "sweep"] + (
        ["advanced"] if len(legends) > 5 else []
    )
    for name in ("gpus", "docker-args", "shm-size", "priority"):
        expect(panel.field(dialog, name)).to_have_count(0)
    expect(panel.field(dialog, "env-var").locator("label")).to_have_text("Environment variables")
    expect(panel.field(dialog, "timeout").locator(".jp-AmlForm-help")).to_be_visible()
    expect(dialog.locator(".jp-AmlForm-error:visible")).to_have_count(0)
    panel.settle()
    page.screenshot(path=shots / "options.png")
    panel.fill(dialog, timeout="soon")
    expect(panel.error(dialog, "timeout")).to_contain_text("soon", timeout=MS)
    dialog.get_by_role("button", name="Apply").click()
    expect(panel.field(dialog, "timeout").locator("input")).to_be_focused(timeout=MS)
    panel.fill(dialog, timeout="2h")
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog).to_have_count(0, timeout=MS)
    line = panel.submit.locator(".jp-AmlSubmit-line")
    expect(line).to_have_text("%%aml_submit --timeout 2h", timeout=MS)
    expect(panel.submit.get_by_role("button", name="All options (1 more set)…")).to_be_visible()
    # Another cell begins with an empty form, and what was typed here is kept here.
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    expect(line).to_have_text("%%aml_submit", timeout=MS)
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    expect(line).to_have_text("%%aml_submit --timeout 2h", timeout=MS)


def test_escape_closes_options_and_returns_focus(panel: PanelPage) -> None:
    more = panel.submit.get_by_role("button", name="All options")
    more.focus()
    panel.page.keyboard.press("Enter")
    dialog = panel.page.get_by_role("dialog", name="Options of the submit")
    expect(dialog).to_be_visible(timeout=MS)
    panel.page.keyboard.press("Shift+Tab")
    assert dialog.evaluate("node => node.contains(document.activeElement)")  # Tab stays inside
    panel.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0, timeout=MS)
    expect(more).to_be_focused()


def test_file_is_chosen_in_dialog(panel: PanelPage, lab: LabServer, shots: Path) -> None:
    page = panel.page
    (lab.notebooks / "train.py").write_text("print('a script')\n")
    panel.submit.get_by_role("radio", name="File").click()
    panel.submit.get_by_role("button", name="Browse…").click()
    dialog = page.locator(".jp-Dialog")
    dialog.locator(".jp-DirListing-item", has_text="train.py").click()
    page.screenshot(path=shots / "browse.png")
    dialog.locator(".jp-mod-accept").click()
    expect(panel.submit.locator(".jp-AmlSubmit-line")).to_have_text("%aml_submit train.py", timeout=MS)
    panel.submit.get_by_role("radio", name="Active cell").click()


def test_panel_dialogs_and_tabs_have_no_serious_violations(panel: PanelPage, shots: Path) -> None:
    """Rules of axe-core; JupyterLab's own buttons do not count."""
    page = panel.page
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name="Submit", exact=True).click()
    row = panel.rows.filter(has_text="options").first
    expect(row).to_have_attribute("data-state", "completed", timeout=MS)
    row.click()
    expect(panel.action("run-delete").first).to_be_visible(timeout=MS)
    own = ("<jp-button", "<jp-toolbar")
    assert axe(page, "#jupyter-amltrain-panel", not_ours=own) == []
    panel.submit.get_by_role("button", name="All options").click()
    expect(page.get_by_role("dialog", name="Options of the submit")).to_be_visible(timeout=MS)
    assert axe(page, ".jp-AmlDialog", not_ours=own) == []
    page.keyboard.press("Escape")
    panel.command("target-new")
    expect(panel.new_target).to_be_visible(timeout=MS)
    assert axe(page, ".jp-AmlDialog", not_ours=own) == []
    page.keyboard.press("Escape")
    panel.action("run-logs").first.click()
    expect(page.locator(".jp-AmlLog:visible")).to_contain_text("one", timeout=MS)
    assert axe(page, ".jp-AmlLog", not_ours=own) == []
    page.evaluate("() => jupyterapp.shell.currentWidget.close()")
