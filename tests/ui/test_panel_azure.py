"""Azure ML in the side panel, on the sandbox of ``tests/azure``: targets, forms, questions, runs, what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.azure.conftest import Azure
from tests.ui.axe import axe
from tests.ui.azure import (
    CLUSTER,
    INSTANCE,
    MACHINE,
    TRAIN,
    connect,
    connect_by_form,
    made,
    new,
    press,
    sandboxed,
)
from tests.ui.lab import MS, LabServer, NotebookPage, eventually, open_notebook
from tests.ui.panel import PanelPage

#: What everybody has to see of it is shown in test_panel_compute.py, which has a page already.
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Azure, LabServer]]:
    with sandboxed(tmp_path_factory.mktemp("azure") / "lab") as found:
        yield found


@pytest.fixture(scope="module")
def azure(place: tuple[Azure, LabServer]) -> Azure:
    return place[0]


@pytest.fixture(scope="module")
def lab(place: tuple[Azure, LabServer]) -> LabServer:
    return place[1]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    found = browser.new_page(viewport={"width": 1300, "height": 950})
    found.set_default_timeout(MS)
    yield found
    found.close()


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> NotebookPage:
    return open_notebook(page, lab, lab.write("azure.ipynb", []))


@pytest.fixture(scope="module")
def opened(notebook: NotebookPage) -> PanelPage:
    return PanelPage(notebook.page).open().connect()


@pytest.fixture
def panel(opened: PanelPage, notebook: NotebookPage, azure: Azure) -> Iterator[PanelPage]:
    """The panel with the workspace connected, and all that a test has made forgotten."""
    azure.control("/reset")
    notebook.cell(connect(azure))
    yield opened
    for _ in range(3):
        opened.page.keyboard.press("Escape")
    if opened.new_target.count():
        opened.new_target.get_by_role("button", name="Cancel").click()
    notebook.cell("%aml_compute use local\n%aml_compute disconnect lab --yes")


def cancel(panel: PanelPage, notebook: NotebookPage, handle: str) -> None:
    notebook.cell(f"%aml_runs cancel {handle}\n%aml_runs wait {handle}")
    panel.wait_run(handle, "canceled")


def test_size_is_chosen_from_table_by_keyboard(panel: PanelPage, shots: Path) -> None:
    page = panel.page
    form = new(panel, CLUSTER, name="sized")
    panel.field(form, "size").get_by_role("button", name="Choose…").click()
    dialog = page.get_by_role("dialog", name="Choose a machine size")
    rows = dialog.locator("tbody tr")
    expect(rows.first).to_be_visible(timeout=MS)
    dialog.locator("input[type=search]").fill("V100")
    expect(rows.first).to_contain_text("NVIDIA V100")
    v100 = dialog.locator("tr[data-size='Standard_NC6s_v3']")
    expect(v100).to_contain_text("3.06")
    expect(v100).to_contain_text("retired")
    dialog.get_by_role("button", name="Price").click()
    expect(dialog.locator("th[aria-sort='ascending']")).to_contain_text("Price")
    rows.first.focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    expect(rows.first).to_be_focused()
    v100.click()
    expect(dialog.locator(".jp-AmlSizes-warning")).to_contain_text("Standard_NC6s_v3")
    page.screenshot(path=shots / "sizes.png")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0, timeout=MS)
    expect(panel.field(form, "size").locator("input")).to_have_value("Standard_NC6s_v3")
    page.screenshot(path=shots / "sizes-form.png")
    press(form, "Cancel")
    expect(panel.new_target).to_have_count(0, timeout=MS)


def test_workspace_disconnect_and_reconnect(
    panel: PanelPage, notebook: NotebookPage, azure: Azure, lab: LabServer, shots: Path
) -> None:
    notebook.cell("%aml_compute create gpus --kind amlcompute --size Standard_NC6s_v3 --yes --wait")
    workspace = panel.workspace("lab")
    workspace.get_by_role("button", name="Disconnect lab…").click()
    assert "its target gpus" in panel.confirm("Disconnect")
    expect(workspace).to_have_count(0, timeout=MS)
    expect(panel.target("gpus")).to_have_count(0, timeout=MS)
    expect(panel.outcome).to_contain_text("%aml_compute disconnect lab --yes")
    # Nothing is written for an invalid value, and its error is shown at its field.
    panel.command("workspace-connect")
    form = panel.connect_workspace
    panel.fill(form, subscription=azure.subscription)
    press(form, "Connect")
    expect(panel.error(form, "resource-group")).to_contain_text("are missing", timeout=MS)
    panel.fill(form, subscription="")
    # Whoever connects finds what is there, the file that the portal gives out and a sign-in that is shown to him.
    where = {"subscription_id": azure.subscription, "resource_group": azure.resource_group}
    config = lab.notebooks / "config.json"
    config.write_text(json.dumps({**where, "workspace_name": azure.workspace}))
    try:
        panel.fill(form, name="lab", **{"sign-in": "device"})
        expect(form).to_contain_text(f"config.json names {azure.workspace} in", timeout=MS)
        panel.settle()
        panel.page.screenshot(path=shots / "azure-connect-form.png")
        assert axe(panel.page, ".jp-AmlDialog", not_ours=("<jp-button",)) == []
        workspace = connect_by_form(panel)
        code = eventually("a code waits for a person", lambda: azure.control("/device-codes"))[0]
        shown = panel.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").last
        expect(shown).to_contain_text("%aml_compute connect --sign-in device --name lab", timeout=MS)
        expect(shown).to_contain_text(code, timeout=MS)
        expect(shown.get_by_role("link")).to_be_in_viewport(timeout=MS)
        panel.settle()
        panel.page.screenshot(path=shots / "azure-sign-in.png")
        azure.control("/approve")
    finally:
        config.unlink()
    expect(workspace).to_contain_text("1 target", timeout=MS)
    expect(workspace).to_contain_text("ada", ignore_case=True)
    expect(panel.target("gpus")).to_contain_text("0 of 1 node", timeout=MS)
    workspace.scroll_into_view_if_needed()
    panel.settle()
    panel.page.screenshot(path=shots / "azure-workspaces.png")
    # Once more, without a form.
    before = len(notebook.sources())
    workspace.get_by_role("button", name="Connect lab again").click()
    eventually("its line is in a cell", lambda: notebook.sources()[before:] == ["%aml_compute connect --name lab"])


def test_gpus_of_azure_run_and_cluster_are_shown(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    notebook.cell("%aml_compute create gpus --kind amlcompute --size Standard_NC12s_v3 --yes --wait\n")
    notebook.cell(TRAIN.format(target="gpus", name="watched"))
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "running")
    panel.section("Submit", open=False)
    panel.gpus.locator("select").first.select_option(handle)
    expect(panel.gpus).to_contain_text("GPU 1", timeout=MS)
    expect(panel.gpus).to_contain_text("Fake GPU of Standard_NC12s_v3", timeout=MS)
    panel.settle()
    panel.page.screenshot(path=shots / "azure-gpus.png")
    # Its cost is shown while it runs, without a request.
    row = panel.target("gpus")
    expect(row).to_contain_text("1 of 1 node", timeout=MS)
    expect(row).to_contain_text("$6.12/h")
    cancel(panel, notebook, handle)


def test_cluster_scale_and_delete_with_live_run_ask(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    row = made(
        panel, CLUSTER, "gpus", "Costs up to 3.06 USD per hour", size="Standard_NC6s_v3", max_nodes="1", min_nodes="0"
    )
    notebook.cell(TRAIN.format(target="gpus", name="doomed"))
    handle = notebook.records()[-1]["handle"]
    panel.wait_run(handle, "running")
    panel.expand("gpus")
    panel.act("gpus", "scale").click()
    dialog = panel.page.locator(".jp-Dialog")
    panel.fill(dialog, min_nodes="2")
    expect(panel.error(dialog, "min_nodes")).to_contain_text("1", timeout=MS)
    panel.fill(dialog, min_nodes="1")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog).to_contain_text(
        "costs 3.06 USD per hour until you lower the minimum, also when nothing runs", timeout=MS
    )
    panel.confirm("Change")
    expect(row).to_contain_text("1 of 1 node", timeout=MS)
    panel.act("gpus", "delete").click()
    expect(dialog).to_contain_text("Its 1 running run is stopped.", timeout=MS)
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    panel.page.screenshot(path=shots / "azure-delete.png")
    panel.confirm("Delete")
    expect(row).to_have_count(0, timeout=MS)


def test_instance_is_stopped_and_started(panel: PanelPage) -> None:
    cost = "Costs 3.06 USD per hour from now until it is stopped or has been idle for 60 min."
    row = made(panel, INSTANCE, "desk", cost, size="Standard_NC6s_v3")
    panel.expand("desk")
    panel.act("desk", "stop").click()
    expect(row).to_have_attribute("data-state", "stopped", timeout=MS)
    expect(row).to_contain_text("$0.00/h")
    panel.act("desk", "start").click()
    expect(panel.page.locator(".jp-Dialog")).to_contain_text(cost, timeout=MS)
    panel.confirm("Start")
    expect(row).to_have_attribute("data-state", "ready", timeout=MS)
    panel.act("desk", "delete").click()
    assert "on its disk" in panel.confirm("Delete")
    expect(row).to_have_count(0, timeout=MS)


def test_machine_is_attached_by_form(panel: PanelPage, notebook: NotebookPage, azure: Azure) -> None:
    form = new(panel, MACHINE, name="box")
    press(form, "Attach")
    expect(panel.error(form, "resource_id")).to_contain_text("field is required", timeout=MS)
    machine = f"/subscriptions/{azure.subscription}/resourceGroups/ml/providers/Microsoft.Compute/virtualMachines/dev1"
    panel.fill(form, resource_id=machine, ssh_user="azureuser", password_from="BOX_PASSWORD")
    press(form, "Attach")  # costs nothing, so nothing is asked
    row = panel.target("box")
    expect(panel.error(form, "password_from")).to_contain_text("BOX_PASSWORD", timeout=MS)
    expect(row).to_have_count(0)
    notebook.cell("import os; os.environ['BOX_PASSWORD'] = 'not shown anywhere'")
    press(form, "Attach")
    expect(row).to_have_attribute("data-state", "ready", timeout=MS)
    panel.expand("box")
    expect(row).to_contain_text("Azure ML v2 runs no jobs there")
    assert "not shown" not in panel.node.inner_text()


def test_azure_form_error_is_at_field(panel: PanelPage, shots: Path) -> None:
    form = new(panel, CLUSTER, name="oops", size="Standard_NC6_v3")
    press(form)
    expect(panel.error(form, "size")).to_contain_text("Did you mean Standard_NC6s_v3", timeout=MS)
    panel.page.screenshot(path=shots / "azure-wrong-size.png")
    panel.fill(form, size="Standard_ND96asr_v4", max_nodes="9")
    press(form)
    expect(panel.error(form, "max_nodes")).to_contain_text("have 864 cores, the quota is 100", timeout=MS)
    expect(panel.error(form, "max_nodes")).to_contain_text("1 machine of this size")
    expect(panel.target("oops")).to_have_count(0)


def _is_create(request: dict[str, Any], name: str) -> bool:
    return request["method"] == "PUT" and str(request["path"]).endswith(f"/computes/{name}")


def test_kernel_death_during_create_keeps_target(
    panel: PanelPage, notebook: NotebookPage, azure: Azure, page: Page
) -> None:
    azure.control("/switch", create_seconds=6.0)
    press(new(panel, CLUSTER, name="slow", size="Standard_NC6s_v3"))
    expect(page.locator(".jp-Dialog")).to_be_visible(timeout=MS)
    panel.confirm("Create")
    expect(panel.target("slow").locator(".jp-AmlTarget-work")).to_contain_text("Creating", timeout=MS)
    eventually(
        "the service has the request", lambda: any(_is_create(request, "slow") for request in azure.control("/wire"))
    )
    with panel.reconnects():  # it was connected before
        notebook.restart_kernel()
    # What the service was asked for goes on there, and is a target that can be used or deleted.
    expect(panel.target("slow")).to_have_attribute("data-state", "ready", timeout=MS)
    notebook.cell("%load_ext jupyter_amltrain")


def test_azure_panel_screenshots(panel: PanelPage, notebook: NotebookPage, shots: Path) -> None:
    notebook.cell(
        "%aml_compute create gpu-cluster --kind amlcompute --size Standard_NC6s_v3 --max-nodes 4 --yes --wait"
    )
    notebook.cell("%aml_compute create spot --kind serverless --size Standard_NC24ads_A100_v4 --tier Spot --yes --wait")
    panel.section("GPUs", open=False)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        notebook.theme(theme)
        for width in (250, 450):
            panel.width(width)
            panel.expand("gpu-cluster")
            panel.settle()
            section = panel.node.locator(".jp-AmlCompute")
            assert section.evaluate("node => node.scrollWidth <= node.clientWidth")
            panel.page.screenshot(path=shots / f"azure-{theme[11:]}-{width}.png")
            form = new(panel, INSTANCE, name="desk", size="Standard_NC6s_v3")
            panel.settle()
            assert section.evaluate("node => node.scrollWidth <= node.clientWidth")
            panel.page.screenshot(path=shots / f"azure-new-{theme[11:]}-{width}.png")
            form.get_by_role("button", name="Cancel").click()
            panel.command("workspace-connect")
            expect(panel.connect_workspace).to_contain_text("already connected", timeout=MS)
            panel.settle()
            assert section.evaluate("node => node.scrollWidth <= node.clientWidth")
            panel.page.screenshot(path=shots / f"azure-connect-{theme[11:]}-{width}.png")
            press(panel.connect_workspace, "Cancel")
            panel.workspace("lab").scroll_into_view_if_needed()
            panel.page.screenshot(path=shots / f"azure-workspaces-{theme[11:]}-{width}.png")
    notebook.theme("JupyterLab Light")


def test_panel_without_azure_recovers(browser: Browser, tmp_path: Path, shots: Path) -> None:
    """The network ends under a connected panel: one sentence, nothing hangs, the rest goes on."""
    quick = {"AMLTRAIN_AZURE_UNREACHABLE": "2", "AMLTRAIN_AZURE_BACKOFF": "0.1"}
    with sandboxed(tmp_path / "lab", **quick) as (gone, server):
        page = browser.new_page(viewport={"width": 1300, "height": 950})
        page.set_default_timeout(MS)
        try:
            notebook = open_notebook(page, server, server.write("gone.ipynb", []))
            panel = PanelPage(page).open().connect()
            notebook.cell(connect(gone))
            notebook.cell("%aml_compute create gpus --kind amlcompute --size Standard_NC6s_v3 --yes --wait")
            expect(panel.target("gpus")).to_have_attribute("data-state", "ready", timeout=MS)
            gone.control("/network", up=False)
            row = panel.expand("gpus")
            panel.act("gpus", "test").click()
            expect(row.locator(".jp-AmlTarget-work")).to_contain_text("Cannot reach Azure", timeout=MS)
            expect(row).to_have_attribute("data-state", "unreachable", timeout=MS)
            expect(panel.target("local")).to_have_attribute("data-state", "ready")
            panel.settle()
            page.screenshot(path=shots / "azure-gone.png")
            gone.control("/network", up=True)
            expect(row).to_have_attribute("data-state", "ready", timeout=MS)
        finally:
            page.close()
