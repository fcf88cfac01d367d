"""A machine over SSH, attached by clicks: an unknown key is shown and accepted, and a cell runs there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import SETTINGS, end_all
from tests.ui.lab import MS, LabServer, code_cell, open_notebook
from tests.ui.panel import PanelPage
from tools import openssh
from tools.openssh import Sshd

pytestmark = pytest.mark.thorough

CELL = """%%aml_submit --name digits --wait
import time
import mlflow
for step in range(40):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
    print("step", step, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    if openssh.find() is None:
        pytest.skip("no OpenSSH server on this machine")
    remote = tmp_path / "remote"
    made = Sshd(
        tmp_path / "sshd", {**SETTINGS, "AMLTRAIN_HOME": str(remote), "AMLTRAIN_QUEUE": str(tmp_path / "queue")}
    )
    yield made
    made.stop()
    end_all(remote)


SWEEP = """%%aml_sweep --param x=choice(1,2,4) --sampler grid --goal "minimize loss" --name grid --gpus 0 --wait
import mlflow
for step in range(5):
    mlflow.log_metric("loss", (x - 2) ** 2 + 1 / (step + 1), step=step)
"""


def test_machine_is_attached_by_form_and_runs_cell(page: Page, lab: LabServer, server: Sshd, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("ssh.ipynb", [code_cell("# a notebook")]))
    panel = PanelPage(page).open().connect()
    try:
        panel.command("target-new")
        form = panel.new_target
        form.locator("#jp-AmlNew-kind").select_option(label="Machine over SSH")
        panel.fill(form, name="gpubox", host="127.0.0.1")
        form.get_by_role("button", name="More options").click()
        panel.fill(form, port=str(server.port), identity_file=str(server.key))
        panel.fill(form, python=sys.executable)
        page.screenshot(path=shots / "ssh-form.png")
        form.get_by_role("button", name=re.compile("Attach|Create")).click()
        row = panel.target("gpubox")
        expect(panel.node).to_contain_text(server.fingerprint, timeout=MS)  # not known: nothing was sent
        page.screenshot(path=shots / "ssh-unknown-key.png")
        row.click()
        row.get_by_role("button", name="Accept key").click()
        dialog = page.locator(".jp-Dialog")
        expect(dialog).to_contain_text(server.fingerprint)
        page.screenshot(path=shots / "ssh-accept.png")
        dialog.locator(".jp-mod-accept").click()
        expect(row).to_have_attribute("data-state", "ready", timeout=MS)
        notebook.cell("%aml_compute use gpubox")
        notebook.cell(CELL, wait=False)
        run = notebook.runs.first
        expect(run.locator(".jp-AmlRun-log pre")).to_contain_text("step 5", timeout=MS)
        expect(run.locator(".jp-AmlRun-figure .jp-AmlRun-chartTitle", has_text="loss")).to_be_visible(timeout=MS)
        page.screenshot(path=shots / "ssh-live.png")
        expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
        page.screenshot(path=shots / "ssh-completed.png")
        assert notebook.records()[-1]["handle"].startswith("gpubox/digits-")
        notebook.cell(SWEEP)
        run = notebook.runs.last
        expect(run.locator(".jp-AmlRun-state")).to_have_text("completed", timeout=MS)
        expect(run.locator("tbody tr[data-trial]")).to_have_count(3, timeout=MS)
        handles = notebook.records()[-1]["sweep"]["handle"]
        assert all(handle.startswith("gpubox/grid-") for handle in handles)
        run.scroll_into_view_if_needed()
        page.screenshot(path=shots / "ssh-sweep.png")
    finally:
        notebook.close()
        lab.end_runs()
