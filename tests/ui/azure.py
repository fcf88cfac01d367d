"""Azure ML in the side panel, as a person uses it, on the sandbox of ``tests/azure``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.azure.conftest import Azure, sandbox
from tests.conftest import end_all
from tests.ui.lab import MS, LabServer
from tests.ui.panel import PanelPage

CLUSTER, INSTANCE, MACHINE = "Azure ML cluster", "Azure ML compute instance", "Virtual machine"

#: A run that is long enough to be looked at, and is canceled after that.
TRAIN = """%%aml_submit --target {target} --name {name}
import time, mlflow
for step in range(600):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
    print("step", step, flush=True)
    time.sleep(0.2)
"""


@contextlib.contextmanager
def sandboxed(folder: Path, **more: str) -> Iterator[tuple[Azure, LabServer]]:
    """An Azure, and a server whose kernels find it."""
    with sandbox() as azure:
        server = LabServer(folder, **azure.environ, **more)
        try:
            yield azure, server
        finally:
            server.close()
            end_all(server.folder / "state")


def connect(azure: Azure) -> str:
    """The line that a person types."""
    where = f"--subscription {azure.subscription} --resource-group {azure.resource_group}"
    return f"%aml_compute connect {where} --workspace {azure.workspace} --name lab"


def place(azure: Azure) -> dict[str, str]:
    """The same as fields of the form."""
    return {
        "subscription": azure.subscription,
        "resource-group": azure.resource_group,
        "workspace": azure.workspace,
        "name": "lab",
    }


def connect_by_form(panel: PanelPage, **values: str) -> Locator:
    """Fill the open form and press Connect; the row of the workspace."""
    panel.fill(panel.connect_workspace, **values)
    press(panel.connect_workspace, "Connect")
    expect(panel.connect_workspace).to_have_count(0, timeout=MS)
    return panel.workspace("lab")


def new(panel: PanelPage, kind: str, **values: str) -> Locator:
    """The form for a new target of this kind, filled in."""
    if not panel.new_target.count():
        panel.node.get_by_role("button", name="New target…").click()
    form = panel.new_target
    form.locator("#jp-AmlNew-kind").select_option(label=kind)
    panel.fill(form, **values)
    return form


def press(form: Locator, label: str = "Create") -> None:
    form.get_by_role("button", name=label, exact=True).click()


def made(panel: PanelPage, kind: str, name: str, question: str, **values: str) -> Locator:
    """A target made by the form; its row."""
    press(new(panel, kind, name=name, **values))
    expect(panel.page.locator(".jp-Dialog")).to_contain_text(question, timeout=MS)
    panel.confirm("Create")
    row = panel.target(name)
    expect(row).to_have_attribute("data-state", "ready", timeout=MS)
    return row
