"""A notebook that is not trusted gets nothing of this machine's runs, and ends none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui import untrusted_notebook
from tests.ui.lab import MS, RECORD_MIME, LabServer, NotebookPage, code_cell, eventually, open_notebook

pytestmark = pytest.mark.thorough

SECRET = "only-mine-4711"

SUBMIT = f"""%%aml_submit --name mine
import time

for i in range(100000):
    print("{SECRET}", i, flush=True)
    time.sleep(0.1)
"""


class Victim:
    """A run of another notebook on the same machine."""

    def __init__(self, lab: LabServer, handle: str, folder: Path) -> None:
        self.lab, self.handle, self.folder = lab, handle, folder

    def lines(self) -> int:
        return (self.folder / "log" / "rank-0.txt").read_bytes().count(b"\n")

    def lives_on(self) -> None:
        """Wait while the run writes some more: seconds in which a page could have asked."""
        before = self.lines()
        eventually("the run goes on", lambda: self.lines() > before + 50)
        assert json.loads((self.folder / "state.json").read_text())["state"] == "running"
        assert not (self.folder / "cancel").exists()


@pytest.fixture(scope="module")
def victim(page: Page, lab: LabServer) -> Iterator[Victim]:
    mine = open_notebook(page, lab, lab.write("mine.ipynb", [code_cell("# mine")]))
    mine.cell("%load_ext jupyter_amltrain")
    mine.cell(SUBMIT)
    expect(mine.runs.first.locator(".jp-AmlRun-log pre")).to_contain_text(SECRET, timeout=MS)
    record = mine.records()[0]
    yield Victim(lab, record["handle"], lab.folder / "state" / "runs" / record["run_id"])
    lab.end_runs()


@pytest.fixture
def theirs(page: Page, lab: LabServer, victim: Victim, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    """The hostile notebook, in a kernel that has the extension."""
    name = lab.write(f"{request.node.name}.ipynb", untrusted_notebook.cells(victim.handle))
    found = open_notebook(page, lab, name)
    page.evaluate(untrusted_notebook.ASKED)
    found.cell("%load_ext jupyter_amltrain")
    yield found
    found.close()


def saved(lab: LabServer, notebook: NotebookPage) -> str:
    """The notebook's file, after a save."""
    name = str(notebook.page.evaluate("() => jupyterapp.shell.currentWidget.context.path"))
    notebook.save()
    return (lab.notebooks / name).read_text()


def test_untrusted_output_sends_and_stores_nothing(
    theirs: NotebookPage, victim: Victim, lab: LabServer, shots: Path
) -> None:
    untrusted_notebook.show_all(theirs, victim.handle)
    victim.lives_on()
    first = untrusted_notebook.show(theirs, 0)
    theirs.page.screenshot(path=shots / "untrusted.png")
    expect(first.locator(".jp-AmlRun-notice")).to_contain_text("not trusted")
    for button in theirs.runs.locator("button.jp-AmlRun-cancel").all():
        assert button.is_hidden()
        button.evaluate("node => node.click()")
    victim.lives_on()
    assert theirs.page.evaluate("amlAsked") == []
    assert not theirs.page.evaluate("() => !!window.amlPwned")
    assert SECRET not in saved(lab, theirs)
    assert theirs.runs.locator("a[href^='javascript']").count() == 0


def test_untrusted_output_loads_on_click_without_save(
    theirs: NotebookPage, victim: Victim, lab: LabServer, shots: Path
) -> None:
    run = untrusted_notebook.show(theirs, 0)
    run.get_by_role("button", name="Load live data").click()
    expect(run).to_have_attribute("data-source", "live", timeout=MS)
    expect(run.locator(".jp-AmlRun-log pre")).to_contain_text(SECRET, timeout=MS)
    expect(run.get_by_role("button", name="Load live data")).to_be_hidden()
    expect(run.locator(".jp-AmlRun-cancel")).to_be_hidden()
    theirs.page.screenshot(path=shots / "untrusted-loaded.png")
    victim.lives_on()
    # The click was for this output alone, and for this one's run.
    assert {each.split()[1] for each in theirs.page.evaluate("amlAsked") if "undefined" not in each} == {victim.handle}
    for cell in range(1, 5):
        other = untrusted_notebook.show(theirs, cell)
        expect(other).to_have_attribute("data-source", "saved")
        expect(other.locator(".jp-AmlRun-log")).not_to_contain_text(SECRET)
    assert SECRET not in saved(lab, theirs)


def test_trust_change_while_open_is_applied(theirs: NotebookPage, victim: Victim, lab: LabServer) -> None:
    trust = """trusted => {
        for (const cell of jupyterapp.shell.currentWidget.content.model.cells) {
            cell.trusted = trusted;
        }
    }"""
    run = untrusted_notebook.show(theirs, 0)
    theirs.page.evaluate(trust, True)
    expect(run).to_have_attribute("data-source", "live", timeout=MS)
    expect(run.locator(".jp-AmlRun-log pre")).to_contain_text(SECRET, timeout=MS)
    untrusted_notebook.show_all(theirs, victim.handle)
    victim.lives_on()
    # The beginning of a handle has the form of one: the page may ask about it, and the kernel knows no such run.
    beginning = untrusted_notebook.show(theirs, 3)
    expect(beginning).to_have_attribute("data-source", "unknown-run", timeout=MS)
    expect(beginning.locator(".jp-AmlRun-log")).not_to_contain_text(SECRET)
    requests = {each.split()[1] for each in theirs.page.evaluate("amlAsked")} - {"undefined"}
    assert requests == {victim.handle, victim.handle[:-1]}, "neither `last` nor a run without its target"
    run = untrusted_notebook.show(theirs, 0)
    theirs.page.evaluate(trust, False)
    expect(run).to_have_attribute("data-source", "saved", timeout=MS)
    expect(run.locator(".jp-AmlRun-cancel")).to_be_hidden()
    before = len(theirs.page.evaluate("amlAsked"))
    victim.lives_on()
    later = theirs.page.evaluate("amlAsked")[before:]
    assert not [each for each in later if not each.startswith("follow")], "an answer on its way may still be given back"


def test_own_output_in_untrusted_notebook_is_live(theirs: NotebookPage, victim: Victim, lab: LabServer) -> None:
    theirs.cell(f"%aml_runs attach {victim.handle}")
    own = untrusted_notebook.show(theirs, len(untrusted_notebook.cells(victim.handle)) + 1)
    expect(own.locator(".jp-AmlRun-log pre")).to_contain_text(SECRET, timeout=MS)
    expect(own.locator(".jp-AmlRun-cancel")).to_be_visible(timeout=MS)
    victim.lives_on()
    notebook = json.loads(saved(lab, theirs))
    holding = [i for i, cell in enumerate(notebook["cells"]) if SECRET in json.dumps(cell["outputs"])]
    assert holding == [len(notebook["cells"]) - 1]
    assert RECORD_MIME in notebook["cells"][0]["outputs"][0]["data"]
