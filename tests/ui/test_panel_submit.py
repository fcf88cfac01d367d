"""The Submit section: a small form that writes the line of a submit into the notebook, and submits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, eventually, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

TARGETS = {
    "quick": {"kind": "fake", "queued": 0.1, "running": 0.5, "gpus": 8},
    "long": {"kind": "fake", "queued": 0.1, "running": 3600.0},
}

thorough = pytest.mark.thorough


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    lab.put_targets(TARGETS, current="quick")
    (lab.notebooks / "train.py").write_text("print('a script')\n")
    return open_notebook(page, lab, lab.write("submit.ipynb", []))


@pytest.fixture(scope="module")
def opened(notebook: NotebookPage) -> PanelPage:
    return PanelPage(notebook.page).open().connect()


@pytest.fixture
def panel(opened: PanelPage, notebook: NotebookPage) -> Iterator[PanelPage]:
    """The section open and its form empty; the cells of the last test are gone."""
    notebook.page.evaluate(
        """() => {
            const shared = jupyterapp.shell.currentWidget.content.model.sharedModel;
            shared.transact(() => {
                shared.deleteCellRange(0, shared.cells.length);
                shared.insertCell(0, {cell_type: 'code', source: '', metadata: {}});
            });
        }"""
    )
    opened.command("submit-cell")
    expect(opened.submit).to_be_visible(timeout=MS)
    opened.node.get_by_role("button", name="Clear the form").click()
    yield opened


def put(notebook: NotebookPage, *sources: str, active: int = 0, kind: str = "code") -> None:
    """These cells and no others; one is the active one."""
    notebook.page.evaluate(
        """([sources, active, kind]) => {
            const { content } = jupyterapp.shell.currentWidget;
            const shared = content.model.sharedModel;
            shared.transact(() => {
                shared.deleteCellRange(0, shared.cells.length);
                shared.insertCells(0, sources.map(source => ({cell_type: kind, source, metadata: {}})));
            });
            content.deselectAll();
            content.activeCellIndex = active;
        }""",
        [list(sources), active, kind],
    )


def sources(notebook: NotebookPage) -> list[str]:
    """The cells as they are."""
    found: list[str] = notebook.page.evaluate(
        "() => jupyterapp.shell.currentWidget.content.model.sharedModel.cells.map(cell => cell.getSource())"
    )
    return found


def form(panel: PanelPage) -> Locator:
    return panel.submit.locator("form.jp-AmlForm")


def line(panel: PanelPage) -> Locator:
    return panel.submit.locator(".jp-AmlSubmit-line")


def press(panel: PanelPage, label: str, wrong: bool = False) -> None:
    """Press a button of the form; with `wrong` values it looks disabled, and says what is wrong."""
    panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name=label, exact=True).click(force=wrong)


def add_params(panel: PanelPage, *texts: str) -> None:
    """Type parameters, each ended by Enter."""
    given = panel.field(form(panel), "param").locator(".jp-AmlForm-chips > input")
    for text in texts:
        given.fill(text)
        given.press("Enter")


def newest(notebook: NotebookPage) -> str:
    """Handle of the run that the last cell with one shows."""
    eventually("a run was submitted", lambda: notebook.records())
    return str(notebook.records()[-1]["handle"])


def test_submit_form_writes_line_undoes_and_submits(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    put(notebook, "print('one')\n", "print('two')")
    expect(panel.submit.locator(".jp-AmlSubmit-code")).to_have_text("print('one')", timeout=MS)
    expect(line(panel)).to_have_text("%%aml_submit", timeout=MS)
    fields = form(panel).locator(".jp-AmlForm-fields > .jp-AmlForm-field")
    names = fields.evaluate_all("nodes => nodes.map(n => n.dataset.field)")
    assert names == ["target", "param", "gpus", "name", "wait"]  # the rest is in a dialog
    add_params(panel, "lr=0.1")
    panel.fill(form(panel), gpus="2")
    expect(line(panel)).to_have_text("%%aml_submit --param lr=0.1 --gpus 2", timeout=MS)
    panel.settle()
    panel.page.screenshot(path=shots / "submit.png")
    press(panel, "Write line")
    eventually("the line is there", lambda: sources(notebook)[0].startswith("%%aml_submit --param lr=0.1 --gpus 2\n"))
    assert sources(notebook)[1] == "print('two')"
    notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell .cm-content").first.click()
    notebook.page.keyboard.press("Control+z")
    eventually("one undo takes it away", lambda: sources(notebook)[0] == "print('one')\n")
    expect(line(panel)).to_have_text("%%aml_submit --param lr=0.1 --gpus 2", timeout=MS)
    press(panel, "Submit")
    panel.wait_run(newest(notebook), "completed")
    assert sources(notebook)[0] == "%%aml_submit --param lr=0.1 --gpus 2\nprint('one')\n"


@pytest.mark.thorough
def test_submit_form_takes_names_of_the_notebook(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    notebook.cell("numbers = [1, 2]\ndef total(items): return sum(items)")
    put(notebook, "print('sum', total(numbers))")
    expect(panel.submit.locator(".jp-AmlSubmit-wrong")).to_be_hidden(timeout=MS)
    press(panel, "Submit")
    newest(notebook)
    expect(notebook.runs.first.locator(".jp-AmlRun-takenLine")).to_contain_text("total, numbers", timeout=MS)
    panel.page.screenshot(path=shots / "submit-taken.png")


@pytest.mark.thorough
def test_submit_form_reads_existing_line_and_keeps_flags(panel: PanelPage, notebook: NotebookPage) -> None:
    old = "%%aml_submit --name 'my run' --param \"a=it's 1\" --env X=$HOME --gpus 1"
    put(notebook, f"{old}\npass", "pass")
    expect(panel.field(form(panel), "name").locator("input")).to_have_value("my run", timeout=MS)
    expect(panel.field(form(panel), "gpus").locator("input")).to_have_value("1")
    expect(panel.field(form(panel), "param").locator(".jp-AmlForm-chipText")).to_have_text("a=it's 1")
    expect(line(panel)).to_have_text(old)
    panel.fill(form(panel), gpus="4")
    expect(line(panel)).to_have_text(old.replace("--gpus 1", "--gpus 4"), timeout=MS)
    press(panel, "Write line")
    eventually("the line is changed", lambda: sources(notebook)[0] == f"{old.replace('--gpus 1', '--gpus 4')}\npass")
    # Another cell has no line: back to what was typed there, which is nothing.
    notebook.page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    expect(line(panel)).to_have_text("%%aml_submit", timeout=MS)
    expect(panel.field(form(panel), "gpus").locator("input")).to_have_value("")


def test_submit_form_params_are_typed(panel: PanelPage, notebook: NotebookPage) -> None:
    texts = ["path=/data/my set", "say='it is \"so\"'", "empty=", "math=a=b", "back=C:\\x", "uni=é€😀", "list=[1, 2]"]
    put(notebook, "import jupyter_amltrain\npass")
    expect(line(panel)).to_have_text("%%aml_submit", timeout=MS)
    add_params(panel, *texts)
    expect(line(panel)).to_contain_text("uni=", timeout=MS)
    expect(panel.submit.locator(".jp-AmlForm-error:visible")).to_have_count(0)
    press(panel, "Write line")
    eventually("the line is there", lambda: sources(notebook)[0].startswith("%%aml_submit"))
    panel.node.get_by_role("button", name="Clear the form").click()
    put(notebook, sources(notebook)[0])
    chips = panel.field(form(panel), "param").locator(".jp-AmlForm-chipText")
    expect(chips).to_have_text(texts, timeout=MS)


def test_submit_form_with_invalid_values_sends_nothing(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    put(notebook, "print('fine')")
    expect(line(panel)).to_have_text("%%aml_submit", timeout=MS)
    panel.fill(form(panel), gpus="many")
    add_params(panel, "novalue")
    expect(panel.error(form(panel), "gpus")).to_contain_text("many", timeout=MS)
    press(panel, "Submit", wrong=True)
    expect(panel.error(form(panel), "gpus")).to_contain_text("many", timeout=MS)
    expect(panel.error(form(panel), "param")).to_contain_text("novalue", timeout=MS)
    panel.settle()
    panel.page.screenshot(path=shots / "submit-wrong.png")
    assert sources(notebook) == ["print('fine')"]
    panel.node.get_by_role("button", name="Clear the form").click()
    expect(panel.error(form(panel), "gpus")).to_be_hidden(timeout=MS)
    put(notebook, "x = 1\ny = (\n")
    wrong = panel.submit.locator(".jp-AmlSubmit-wrong")
    expect(wrong).to_contain_text("Cell line 2, 'y = ('", timeout=MS)  # as a person counts now, without our line
    press(panel, "Submit", wrong=True)
    panel.settle()
    panel.page.screenshot(path=shots / "submit-syntax.png")
    assert sources(notebook) == ["x = 1\ny = (\n"]
    put(notebook, "%%aml_submit\nx = 1\ny = (\n")
    expect(wrong).to_contain_text("Cell line 3, 'y = ('", timeout=MS)
    put(notebook, "%debug\n")
    expect(wrong).to_contain_text("Cell line 1, '%debug': %debug does not work", timeout=MS)
    assert not notebook.records()


REMARK = """
import dataclasses
from jupyter_amltrain.frontend import target_handlers as _module
_compose = _module.compose_submit_line

def _remarked(old, values, **more):
    made = _compose(old, values, **more)
    reads = "epochs" in (more.get("cell") or "")
    return made if reads else dataclasses.replace(made, notes=("--param epochs: nothing in the cell reads epochs.",))

_module.compose_submit_line = _remarked
"""


def test_submit_form_notes_do_not_block(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    put(notebook, "print('a cell')")
    notebook.cell(REMARK)
    try:
        notebook.page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
        remarks = panel.submit.locator(".jp-AmlSubmit-remarks")
        expect(remarks).to_contain_text("nothing in the cell reads epochs", timeout=MS)
        expect(panel.submit.locator(".jp-AmlSubmit-wrong")).to_be_hidden()
        button = panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name="Submit", exact=True)
        expect(button).to_be_enabled()
        notebook.page.screenshot(path=shots / "submit-notes.png")
        put(notebook, "print(epochs)")
        expect(remarks).to_be_hidden(timeout=MS)
    finally:
        notebook.cell("_answers.compose = _compose")


@pytest.mark.thorough
def test_submit_form_disabled_shows_reason(panel: PanelPage, notebook: NotebookPage) -> None:
    note = panel.submit.locator(".jp-AmlSubmit-note").first
    submit = panel.submit.locator(".jp-AmlSubmit-foot").get_by_role("button", name="Submit", exact=True)
    for kind, source, why in (
        ("code", "%%bash\nls", "The cell begins with %%bash: only Python code can be submitted."),
        ("code", "", "The cell has no code to submit."),
        ("markdown", "# words", "The active cell is not code"),
    ):
        put(notebook, source, kind=kind)
        expect(note).to_contain_text(why, timeout=MS)
        expect(submit).to_have_attribute("aria-disabled", "true", timeout=MS)
        assert sources(notebook) == [source]


@pytest.mark.thorough
def test_submit_behind_busy_cell_runs_later(
    panel: PanelPage, notebook: NotebookPage, lab: LabServer, shots: Path
) -> None:
    put(notebook, "print('behind')")
    notebook.cell("import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)", wait=False)
    eventually("the cell runs", lambda: notebook.kernel_status() == "busy")
    notebook.page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    expect(panel.submit).to_contain_text("queued behind the running cell", timeout=MS)
    press(panel, "Submit")
    eventually("the line is there", lambda: sources(notebook)[0].startswith("%%aml_submit"))
    panel.settle()
    panel.page.screenshot(path=shots / "submit-busy.png")
    assert not notebook.records()
    (lab.notebooks / "go").touch()
    panel.wait_run(newest(notebook), "completed")


@pytest.mark.thorough
def test_submit_of_selected_cells_joins_them(panel: PanelPage, notebook: NotebookPage) -> None:
    put(notebook, "a = 1", "b = a + 1", "print(b)")
    notebook.page.evaluate(
        """() => {
            const { content } = jupyterapp.shell.currentWidget;
            content.activeCellIndex = 0;
            content.extendContiguousSelectionTo(1);
        }"""
    )
    panel.submit.get_by_role("radio", name="Selected (2)").click()
    expect(panel.submit.locator(".jp-AmlSubmit-title")).to_have_text("2 cells of code", timeout=MS)
    expect(line(panel)).to_have_text("%%aml_submit", timeout=MS)
    press(panel, "Submit")
    eventually("a new cell below", lambda: len(sources(notebook)) == 4)
    assert sources(notebook)[2] == "%%aml_submit\na = 1\n\nb = a + 1"
    panel.wait_run(newest(notebook), "completed")


@pytest.mark.thorough
def test_submit_of_file_browser_file(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    page = notebook.page
    put(notebook, "pass")
    page.evaluate("() => jupyterapp.shell.activateById('filebrowser')")
    submit = page.locator(".lm-Menu-item", has_text="Submit as training run…")

    def offered() -> bool:
        """A file browser that is being read again selects another file than the one under the mouse."""
        page.keyboard.press("Escape")
        page.locator(".jp-DirListing-item", has_text="train.py").click(button="right")
        page.locator(".lm-Menu").wait_for()
        return submit.count() == 1

    eventually("the menu of the file offers it", offered)
    submit.click()
    expect(panel.submit).to_be_visible(timeout=MS)
    expect(panel.submit.locator("#jp-AmlSubmit-file")).to_have_value("train.py", timeout=MS)
    expect(line(panel)).to_have_text("%aml_submit train.py", timeout=MS)
    panel.settle()
    page.screenshot(path=shots / "submit-file.png")
    press(panel, "Submit")
    eventually("a new cell", lambda: sources(notebook) == ["pass", "%aml_submit train.py"])
    panel.wait_run(newest(notebook), "completed")
    # The same again takes the place of that cell.
    panel.submit.get_by_role("radio", name="File").click()
    panel.fill(form(panel), gpus="1")
    expect(line(panel)).to_have_text("%aml_submit train.py --gpus 1", timeout=MS)
    press(panel, "Write line")
    eventually("the line is changed", lambda: sources(notebook) == ["pass", "%aml_submit train.py --gpus 1"])
    panel.submit.locator("#jp-AmlSubmit-file").fill("nothere.py")
    expect(panel.submit.locator(".jp-AmlSubmit-wrong")).to_contain_text("nothere.py", timeout=MS)


@thorough
def test_submit_section_screenshots(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    put(notebook, "import torch\nmodel = torch.nn.Linear(4, 4)\nfor epoch in range(10):\n    train(model)\n")
    add_params(panel, "lr=0.1", "epochs=10", "path=/data/a long name of a folder/with files")
    panel.fill(form(panel), gpus="many")
    for theme in ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"):
        notebook.theme(theme)
        for width in (250, 450):
            panel.width(width)
            panel.settle()
            panel.page.screenshot(path=shots / f"submit-{theme[11:]}-{width}.png")
            assert panel.submit.evaluate("node => node.scrollWidth <= node.clientWidth")
    notebook.theme("JupyterLab Light")
