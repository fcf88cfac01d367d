"""The page and a kernel: pushes, Cancel in a busy kernel, a reload, a kernel that does not know us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.lab import MS, RECORD_MIME, LabServer, NotebookPage, code_cell, eventually, load_page, open_notebook

SIMULATED_RUN = Path(__file__).parent / "simulated_run.py"


@pytest.fixture
def notebook(page: Page, lab: LabServer, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    name = lab.write(f"{request.node.name}.ipynb", [code_cell("# a notebook")])
    (lab.notebooks / "simulated_run.py").write_text(SIMULATED_RUN.read_text())
    found = open_notebook(page, lab, name)
    yield found
    found.close()


def name_of(notebook: NotebookPage) -> str:
    return str(notebook.page.evaluate("() => jupyterapp.shell.currentWidget.context.path"))


@pytest.mark.thorough
def test_live_output_updates_in_place(notebook: NotebookPage) -> None:
    notebook.cell("import simulated_run; simulated_run.install(); simulated_run.play()")
    run = notebook.runs.first
    expect(run.locator(".jp-AmlRun-state")).to_have_text("running", timeout=MS)
    run.evaluate("node => { node.dataset.mark = 'same'; node.querySelector('pre').dataset.mark = 'same'; }")
    expect(run.locator("pre.jp-AmlTerminal")).to_contain_text("step 5", timeout=MS)
    notebook.cell("simulated_run.finish()")
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    expect(run.locator(".jp-AmlRun-cancel")).to_be_hidden()
    assert notebook.page.locator("[data-mark='same']").count() == 2, "the output was drawn again"
    assert notebook.records()[-1]["done"] is True


@pytest.mark.thorough
def test_live_output_cancel_while_cell_runs(notebook: NotebookPage, shots: Path) -> None:
    notebook.cell("import simulated_run; simulated_run.install(); simulated_run.play()")
    run = notebook.runs.first
    cancel = run.get_by_role("button", name="Cancel: played")
    expect(cancel).to_be_visible(timeout=MS)
    prompt = notebook.sleeping_cell()
    notebook.cancel(run)
    expect(run.locator(".jp-AmlRun-state")).to_have_text("canceled", timeout=MS)
    expect(prompt).to_have_text("[*]:")
    notebook.page.screenshot(path=shots / "canceled-while-busy.png")
    notebook.interrupt()


@pytest.mark.thorough
def test_live_output_cancel_declined_sends_nothing(notebook: NotebookPage, shots: Path) -> None:
    notebook.cell("import simulated_run; simulated_run.install(); simulated_run.play()")
    run = notebook.runs.first
    expect(run.locator(".jp-AmlRun-state")).to_have_text("running", timeout=MS)
    run.locator("button.jp-AmlRun-cancel").click()
    dialog = notebook.page.locator(".jp-Dialog")
    expect(dialog.get_by_role("button", name="Keep running")).to_be_focused(timeout=MS)
    notebook.page.screenshot(path=shots / "cancel-asks.png")
    notebook.page.keyboard.press("Enter")
    expect(dialog).to_have_count(0, timeout=MS)
    steps = len(notebook.records()[-1]["metrics"]["loss"]["value"])
    eventually("it goes on", lambda: len(notebook.records()[-1]["metrics"]["loss"]["value"]) > steps + 2)
    notebook.cell("print('asked for:', simulated_run.operations)")
    assert "'cancel'" not in notebook.outputs_text()
    expect(run.locator("button.jp-AmlRun-cancel")).to_have_text("Cancel")
    notebook.cell("simulated_run.finish()")


@pytest.mark.thorough
def test_live_output_after_reload_saves_end(notebook: NotebookPage, lab: LabServer) -> None:
    name = name_of(notebook)
    notebook.cell("import simulated_run; simulated_run.install(); simulated_run.play(push=False)")
    expect(notebook.runs.first.locator(".jp-AmlRun-state")).to_have_text("running", timeout=MS)
    notebook.save()
    again = load_page(notebook.page, lab, name)
    run = again.runs.first
    expect(run).to_have_attribute("data-source", "live", timeout=MS)
    expect(run.locator(".jp-AmlRun-notice")).to_be_hidden()
    again.cell("simulated_run.finish()")
    expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
    eventually("the model holds the end", lambda: again.records()[-1]["done"])
    again.save()
    outputs = [o for cell in lab.read(name)["cells"] for o in cell["outputs"] if RECORD_MIME in o.get("data", {})]
    assert [o["data"][RECORD_MIME]["state"] for o in outputs] == ["completed"]
    assert "completed" in "".join(outputs[0]["data"]["text/plain"])


@pytest.mark.thorough
def test_live_output_without_extension_shows_reconnect(notebook: NotebookPage) -> None:
    notebook.cell("import simulated_run; simulated_run.play(push=False)")
    run = notebook.runs.first
    notice = run.locator(".jp-AmlRun-notice")
    expect(notice).to_contain_text("To reconnect, run: %load_ext jupyter_amltrain", timeout=MS)
    notebook.cell("simulated_run.install()")
    expect(notice).to_be_hidden(timeout=MS)
    expect(run).to_have_attribute("data-source", "live")


@pytest.mark.thorough
def test_live_output_of_unknown_run_shows_hint(notebook: NotebookPage) -> None:
    notebook.cell("import simulated_run as run; run.install(); run.play(push=False); run.runs.clear()")
    expect(notebook.runs.first.locator(".jp-AmlRun-failure")).to_contain_text("%aml_runs list", timeout=MS)
