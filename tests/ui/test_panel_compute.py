"""The Compute section: everything that is done with targets by a click, a key or a magic, and how it looks."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.azure.conftest import Azure, sandbox
from tests.fakes import nvml
from tests.ui.azure import CLUSTER, TRAIN, connect, connect_by_form, made, place, press
from tests.ui.azure import new as azure_form
from tests.ui.lab import MS, LabServer, NotebookPage, eventually, open_notebook
from tests.ui.panel import PanelPage

pytestmark = pytest.mark.thorough

TARGETS: dict[str, dict[str, Any]] = {
    "box": {"kind": "fake", "size": "gpu-v100", "provisioning": 1.0, "running": 3600.0},
    "cluster": {"kind": "fake", "size": "gpu-8xa100", "max_nodes": 3, "quota": 192, "running": 3600.0},
    "slow": {"kind": "fake", "size": "cpu-4", "provisioning": 60.0},
    "sick": {"kind": "fake", "size": "gpu-v100", "fails": "test"},
    "far": {"kind": "fake", "unreachable": True},
}

thorough = pytest.mark.thorough


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    lab.put_targets(TARGETS)
    return open_notebook(page, lab, lab.write("compute.ipynb", []))


@pytest.fixture(scope="module")
def opened(notebook: NotebookPage) -> PanelPage:
    panel = PanelPage(notebook.page).open().connect()
    expect(panel.target("box")).to_be_visible(timeout=MS)
    return panel


@pytest.fixture
def panel(opened: PanelPage) -> Iterator[PanelPage]:
    """The panel with the target in use that it began with, and nothing open."""
    yield opened
    for _ in range(3):
        opened.page.keyboard.press("Escape")
    if opened.new_target.count():
        opened.new_target.get_by_role("button", name="Cancel").click()
    for row in opened.node.locator(".jp-AmlTarget[aria-expanded='true']").all():
        row.press("ArrowLeft")
    opened.use("local")
    expect(opened.target("local")).to_contain_text("in use", timeout=MS)


#: Kind of the targets that these tests create.
DEMONSTRATION = "Demonstration (runs nothing)"


def new(panel: PanelPage, name: str, **values: str) -> Locator:
    """Fill the form for a new target."""
    if not panel.new_target.count():
        panel.node.get_by_role("button", name="New target…").click()
    form = panel.new_target
    form.locator("#jp-AmlNew-kind").select_option(label=DEMONSTRATION)
    expect(panel.field(form, "name")).to_be_visible(timeout=MS)
    more = form.get_by_role("button", name="More options")
    if more.get_attribute("aria-expanded") == "false":
        more.click()
    panel.fill(form, name=name, **values)
    return form


def create(form: Locator) -> None:
    form.get_by_role("button", name="Create", exact=True).click()


def line(panel: PanelPage) -> Locator:
    """The line that does the same as the last act."""
    return panel.outcome.locator("code")


def listed(notebook: NotebookPage) -> str:
    """What ``%aml_compute`` prints now."""
    notebook.cell("%aml_compute")
    return str(
        notebook.page.evaluate(
            """() => [...jupyterapp.shell.currentWidget.content.model.cells].at(-1).outputs.toJSON()
                .map(o => o.text ?? o.data?.['text/plain'] ?? '').flat().join('')"""
        )
    )


def test_target_create_by_form_and_delete(notebook: NotebookPage, panel: PanelPage, shots: Path) -> None:
    form = new(panel, "a b", max_nodes="99", quota="x", size="gpu-v100")
    create(form)
    expect(panel.error(form, "name")).to_contain_text("letters", timeout=MS)
    expect(panel.error(form, "max_nodes")).to_contain_text("20")
    expect(panel.error(form, "quota")).to_contain_text("x")
    expect(panel.field(form, "name").locator("input")).to_be_focused()  # the first that is wrong
    panel.settle()
    panel.page.screenshot(path=shots / "compute-new-wrong.png")
    panel.fill(form, name="made", max_nodes="2", min_nodes="3", quota="", provisioning="1.5")
    expect(panel.error(form, "min_nodes")).to_contain_text("more than the maximum", timeout=MS)
    expect(panel.error(form, "name")).to_be_hidden(timeout=MS)
    panel.fill(form, min_nodes="1")
    same = "%aml_compute create made --kind fake --size gpu-v100 --max-nodes 2 --min-nodes 1 --provisioning 1.5"
    expect(form.locator(".jp-AmlNew-preview")).to_have_text(re.compile(f"^{same}( --yes)?$"), timeout=MS)
    create(form)
    dialog = panel.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("Costs up to 2 x 3.06 = 6.12 USD per hour", timeout=MS)
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    panel.page.screenshot(path=shots / "compute-cost.png")
    panel.confirm("Create")
    expect(panel.new_target).to_have_count(0, timeout=MS)
    row = panel.target("made")
    expect(row.locator(".jp-AmlTarget-work")).to_contain_text("Creating a cluster of 2 machines at most", timeout=MS)
    expect(row).to_be_in_viewport()
    expect(row).to_have_attribute("aria-expanded", "true")
    panel.page.screenshot(path=shots / "compute-making.png")
    expect(line(panel)).to_have_text(f"{same} --yes")
    expect(row).to_have_attribute("data-state", "ready", timeout=MS)
    expect(row).to_contain_text("1 of 2 nodes", timeout=MS)
    assert "made" in listed(notebook)

    panel.expand("made")
    panel.act("made", "delete").click()
    expect(dialog).to_contain_text("the logs of its runs are lost", timeout=MS)
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    assert "jp-mod-warn" in (dialog.get_by_role("button", name="Delete").get_attribute("class") or "")
    panel.page.screenshot(path=shots / "compute-delete.png")
    panel.page.keyboard.press("Enter")  # alone it loses nothing
    expect(dialog).to_have_count(0, timeout=MS)
    expect(row).to_have_attribute("data-state", "ready")
    panel.act("made", "delete").click()
    panel.confirm("Delete")
    expect(row).to_have_count(0, timeout=MS)
    assert "made" not in listed(notebook)


def test_target_use_in_every_way(notebook: NotebookPage, panel: PanelPage) -> None:
    def in_use(name: str) -> None:
        expect(panel.target(name)).to_contain_text("in use", timeout=MS)
        expect(panel.node.locator(".jp-AmlTarget.jp-mod-current")).to_have_count(1)

    panel.expand("box")
    panel.act("box", "use").click()
    in_use("box")
    expect(line(panel)).to_have_text("%aml_compute use box")
    panel.target("cluster").locator(".jp-AmlTarget-name").dblclick()
    in_use("cluster")
    panel.target("local").focus()
    panel.page.keyboard.press("Enter")
    in_use("local")
    panel.use("box")
    in_use("box")
    assert re.search(r"^\* +box", listed(notebook), re.M)
    notebook.cell("%aml_compute use cluster")
    in_use("cluster")
    prompt = notebook.sleeping_cell()
    panel.target("box").locator(".jp-AmlTarget-name").dblclick()
    in_use("box")
    assert prompt.inner_text() == "[*]:"
    notebook.interrupt()


@pytest.mark.thorough
def test_target_start_and_stop_one_at_a_time(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    row = panel.expand("box")
    expect(row).to_have_attribute("data-state", "ready", timeout=MS)
    expect(panel.act("box", "start")).to_have_attribute("aria-disabled", "true")
    expect(panel.act("box", "start")).to_have_attribute("title", "The machine is already running.")
    panel.act("box", "stop").click()
    expect(row).to_have_attribute("data-state", "stopping", timeout=MS)
    # What cannot be done meanwhile says so, whoever asks.
    expect(panel.act("box", "delete")).to_have_attribute("aria-disabled", "true")
    notebook.cell("%aml_compute scale box --nodes 0")
    refused = "'box' is being stopped" in notebook.outputs_text()
    assert refused or row.get_attribute("data-state") == "stopped"  # a slow machine asks too late
    expect(row).to_have_attribute("data-state", "stopped", timeout=MS)
    expect(row).to_contain_text("$0.00/h")
    panel.act("box", "start").click()
    assert "3.06 USD per hour" in panel.confirm("Start")
    expect(row).to_have_attribute("data-state", "ready", timeout=MS)
    expect(row).to_contain_text("$3.06/h")
    expect(line(panel)).to_have_text("%aml_compute start box --yes")


@pytest.mark.thorough
def test_target_scale_by_dialog(panel: PanelPage, shots: Path) -> None:
    row = panel.expand("cluster")
    panel.act("cluster", "scale").click()
    dialog = panel.page.locator(".jp-Dialog")
    nodes = panel.field(dialog, "min_nodes")
    expect(nodes.locator("input")).to_be_focused(timeout=MS)
    nodes.locator("input").fill("7")
    expect(panel.error(dialog, "min_nodes")).to_contain_text("3", timeout=MS)
    nodes.locator("input").fill("many")
    expect(panel.error(dialog, "min_nodes")).to_contain_text("many", timeout=MS)
    panel.settle()
    panel.page.screenshot(path=shots / "compute-scale-wrong.png")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog).to_contain_text("many", timeout=MS)  # it asks again, and says what is wrong
    panel.fill(dialog, min_nodes="2")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog).to_contain_text("Costs 2 x 27.20 = 54.40 USD per hour", timeout=MS)
    panel.page.screenshot(path=shots / "compute-scale-cost.png")
    panel.confirm("Change")
    expect(row).to_contain_text("2 of 3 nodes", timeout=MS)
    expect(row).to_contain_text("$54.40/h")
    expect(row).to_contain_text("192 of 192 cores")
    expect(line(panel)).to_have_text("%aml_compute scale cluster --min-nodes 2 --yes")
    panel.act("cluster", "scale").click()
    panel.fill(dialog, max_nodes="4", idle_minutes="30")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog).to_contain_text("Costs up to 4 x 27.20", timeout=MS)
    dialog.get_by_role("button", name="Cancel").click()
    panel.act("cluster", "scale").click()
    panel.fill(dialog, min_nodes="3")
    dialog.get_by_role("button", name="Change").click()
    panel.confirm("Change")
    expect(row.locator(".jp-AmlTarget-work")).to_contain_text("288 cores, the quota is 192", timeout=MS)
    panel.settle()
    panel.page.screenshot(path=shots / "compute-scale-failed.png")
    row.get_by_role("button", name="Dismiss").click()
    expect(row.locator(".jp-AmlTarget-work")).to_be_hidden(timeout=MS)


@thorough
def test_target_test_reports_working_and_failing(panel: PanelPage, shots: Path) -> None:
    panel.expand("box")
    panel.act("box", "test").click()
    eventually("the result is shown", lambda: any("box: ready, 6 CPUs" in text for text in panel.notifications()))
    row = panel.expand("sick")
    panel.act("sick", "test").click()
    expect(row.locator(".jp-AmlTarget-work")).to_contain_text("there is no free gpu-v100 machine", timeout=MS)
    far = panel.expand("far")
    expect(far).to_have_attribute("data-state", "unreachable", timeout=MS)
    expect(far.locator(".jp-AmlTarget-sentence")).to_contain_text("Cannot reach 'far'", timeout=MS)
    panel.settle()
    panel.page.screenshot(path=shots / "compute-unreachable.png")
    panel.target("sick").get_by_role("button", name="Dismiss").click()
    expect(panel.target("sick").locator(".jp-AmlTarget-work")).to_be_hidden(timeout=MS)


@thorough
def test_target_refused_create_shows_error(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    form = new(panel, "poor", size="gpu-v100", fails="create")
    create(form)
    panel.confirm("Create")
    row = panel.target("poor")
    expect(row).to_have_attribute("data-state", "failed", timeout=MS)
    expect(row).to_contain_text("the quota for gpu-v100 is used up")
    panel.settle()
    panel.page.screenshot(path=shots / "compute-create-failed.png")
    row.get_by_role("button", name="Dismiss").click()
    expect(row).to_have_count(0, timeout=MS)
    assert "poor" not in listed(notebook)


@thorough
def test_target_of_magic_appears(panel: PanelPage, notebook: NotebookPage) -> None:
    notebook.cell("%aml_compute create typed --kind fake --size cpu-4 --yes --wait")
    expect(panel.target("typed")).to_have_attribute("data-state", "ready", timeout=MS)
    expect(panel.target("typed")).to_contain_text("$0.23/h")
    prompt = notebook.sleeping_cell()
    create(new(panel, "clicked"))
    expect(panel.target("clicked")).to_have_attribute("data-state", "ready", timeout=MS)
    assert prompt.inner_text() == "[*]:"
    notebook.interrupt()
    text = listed(notebook)
    assert "typed" in text and "clicked" in text
    for name in ("typed", "clicked"):
        notebook.cell(f"%aml_compute delete {name} --yes --wait")
        expect(panel.target(name)).to_have_count(0, timeout=MS)


@thorough
def test_target_create_with_taken_name_is_refused(panel: PanelPage) -> None:
    form = new(panel, "box")
    create(form)
    expect(panel.error(form, "name")).to_contain_text("already exists with other settings", timeout=MS)


@thorough
def test_target_delete_removes_its_runs(panel: PanelPage, notebook: NotebookPage) -> None:
    notebook.cell("%aml_compute create brief --kind fake --running 3600")
    expect(panel.target("brief")).to_have_attribute("data-state", "ready", timeout=MS)
    notebook.cell("%%aml_submit --target brief --name goes\npass")
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "running")
    panel.expand("brief")
    panel.act("brief", "delete").click()
    assert "its 1 running run is stopped" in panel.confirm("Delete")
    expect(panel.target("brief")).to_have_count(0, timeout=MS)
    expect(panel.row(handle)).to_be_hidden(timeout=MS)


@thorough
def test_target_details_are_copied(panel: PanelPage, page: Page) -> None:
    row = panel.expand("cluster")
    for text in ("Demonstration", "gpu-8xa100", "96 cores, 900 GiB, 8 × Fake A100 40GB", "of 192 cores", "$27.20/h"):
        expect(row).to_contain_text(text, timeout=MS)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.use("box")
    expect(line(panel)).to_have_text("%aml_compute use box", timeout=MS)
    panel.outcome.get_by_role("button", name="Copy the line").click()
    eventually(
        "the line is copied",
        lambda: page.evaluate("() => navigator.clipboard.readText()") == "%aml_compute use box",
    )
    panel.outcome.get_by_role("button", name="Dismiss").click()
    expect(panel.outcome).to_be_hidden()


@thorough
def test_target_list_keyboard_and_context_menu(panel: PanelPage, page: Page, shots: Path) -> None:
    panel.target("local").focus()
    page.keyboard.press("ArrowDown")
    expect(panel.target("box")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(panel.target("box")).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Tab")
    expect(panel.act("box", "use")).to_be_focused()
    page.keyboard.press("Enter")
    expect(panel.target("box")).to_contain_text("in use", timeout=MS)
    panel.target("box").focus()
    page.keyboard.press("ArrowLeft")
    expect(panel.target("box")).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("End")
    expect(panel.targets.last).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Delete")
    expect(page.locator(".jp-Dialog")).to_contain_text("Deletes 'box'", timeout=MS)
    page.keyboard.press("Escape")
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    # Its form: from the toolbar by keys, to Escape.
    panel.node.get_by_role("button", name="New target…").focus()
    page.keyboard.press("Enter")
    expect(panel.field(panel.new_target, "name").locator("input")).to_be_focused(timeout=MS)
    # The kind stands above the name.
    page.keyboard.press("Shift+Tab")
    expect(panel.new_target.locator("#jp-AmlNew-kind")).to_be_focused()
    page.keyboard.type("Demo")
    page.keyboard.press("Tab")
    page.keyboard.type("keyed")
    page.keyboard.press("Enter")
    expect(panel.target("keyed")).to_have_attribute("data-state", "ready", timeout=MS)
    panel.target("keyed").click(button="right")
    menu = page.locator(".lm-Menu")
    expect(menu.locator(".lm-Menu-itemLabel")).to_contain_text(["Use", "Test", "Delete…"])
    page.screenshot(path=shots / "compute-menu.png")
    menu.locator(".lm-Menu-item", has_text="Delete…").click()
    panel.confirm("Delete")
    expect(panel.target("keyed")).to_have_count(0, timeout=MS)


@thorough
def test_compute_section_room_and_screenshots(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    """Details fit in a narrow panel; the form of a new target is a dialog beside it."""
    section = panel.node.locator(".jp-AmlCompute")

    def height() -> float:
        box = section.bounding_box()
        assert box is not None
        return box["height"]

    def lower(pixels: float) -> bool:
        return height() < pixels

    if panel.outcome.is_visible():
        panel.outcome.get_by_role("button", name="Dismiss").click()
    for theme in ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"):
        notebook.theme(theme)
        for width in (250, 450):
            panel.width(width)
            panel.settle()
            before = height()
            panel.expand("box")
            panel.settle()
            panel.page.screenshot(path=shots / f"compute-{theme[11:]}-{width}.png")
            panel.node.get_by_role("button", name="New target…").click()
            expect(panel.new_target).to_be_visible(timeout=MS)
            assert section.evaluate("node => node.scrollWidth <= node.clientWidth")
            panel.new_target.get_by_role("button", name="Attach", exact=True).click()
            expect(panel.error(panel.new_target, "name")).to_be_visible(timeout=MS)
            panel.settle()
            panel.page.screenshot(path=shots / f"compute-new-{theme[11:]}-{width}.png")
            panel.new_target.get_by_role("button", name="Cancel").click()
            panel.target("box").press("ArrowLeft")
            eventually("the room is given back", functools.partial(lower, before + 3))
    notebook.theme("JupyterLab Light")


@pytest.fixture
def azure(notebook: NotebookPage) -> Iterator[Azure]:
    """An Azure that this notebook's kernel finds; its runs end with it, and have GPUs."""
    nvml.needed()
    with sandbox() as found:
        notebook.cell(f"import os; before = dict(os.environ); os.environ.update({found.environ!r})")
        yield found
        notebook.cell("%aml_compute use local\n%aml_compute disconnect lab --yes")
        notebook.cell("os.environ.clear(); os.environ.update(before)")


def test_azure_connect_create_submit_and_watch_by_panel(
    panel: PanelPage, notebook: NotebookPage, azure: Azure, shots: Path
) -> None:
    form = azure_form(panel, CLUSTER)
    expect(form).to_contain_text("Connect an Azure ML workspace", timeout=MS)
    press(form, "Connect Azure ML workspace…")
    expect(panel.connect_workspace).to_be_visible(timeout=MS)
    workspace = connect_by_form(panel, **place(azure))
    expect(workspace).to_contain_text("0 targets", timeout=MS)
    expect(workspace).to_contain_text("current")
    assert connect(azure) in notebook.sources()  # what the click did can be seen, repeated and shared
    panel.node.get_by_role("button", name="New target…").click()
    chosen = panel.new_target.locator("#jp-AmlNew-kind option:checked")
    expect(chosen).to_have_text(CLUSTER, timeout=MS)  # who has connected wants one of these
    cost = "Costs up to 2 x 3.06 = 6.12 USD per hour while machines are on"
    row = made(panel, CLUSTER, "gpus", cost, size="Standard_NC6s_v3", max_nodes="2")
    for words in ("Standard_NC6s_v3", "1 × NVIDIA V100 16 GB", "0 of 2 nodes", "$0.00/h", "0 of 24 cores"):
        expect(row).to_contain_text(words, timeout=MS)
    expect(workspace).to_contain_text("1 target", timeout=MS)
    notebook.cell(TRAIN.format(target="gpus", name="watched"))
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "running")
    run = panel.row(handle)
    expect(run).to_contain_text("loss", timeout=MS)
    expect(run.locator(".jp-AmlRuns-spark polyline")).not_to_have_count(0, timeout=MS)
    expect(row).to_contain_text("1 running", timeout=MS)
    panel.page.screenshot(path=shots / "azure-run.png")
