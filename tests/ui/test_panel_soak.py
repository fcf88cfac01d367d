"""Twenty disturbances in a row, of all kinds in any order: after each the panel says what the kernel knows."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.conftest import end_all
from tests.ui.lab import MS, LabServer, NotebookPage, eventually, load_page
from tests.ui.panel import PanelPage
from tests.ui.test_panel_states import Wire

#: Of the rows that are in the page their states by handle, and how many runs the section counts.
SHOWN = """
() => [
  Object.fromEntries([...document.querySelectorAll('.jp-AmlRuns-row')].map(r => [r.dataset.handle, r.dataset.state])),
  document.querySelector('.jp-AmlRuns-count').textContent
]
"""


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("soak") / "lab")
    server.put_targets({"long": {"kind": "fake", "queued": 0.1, "running": 3600.0, "gpus": 8, "period": 0.25}})
    yield server
    server.close()
    end_all(server.folder / "state")


class Disturbed:
    """One page whose kernel and wires are not left alone."""

    def __init__(self, page: Page, notebook: NotebookPage, wire: Wire, name: str) -> None:
        self.page, self.notebook, self.wire, self.name = page, notebook, wire, name
        self.panel = PanelPage(page)
        self.last: tuple[object, ...] = ()

    def reload(self) -> None:
        self.notebook.save()
        self.page.reload()
        self.page.wait_for_function(
            "name => window.jupyterapp?.shell?.currentWidget?.context?.path === name", arg=self.name
        )
        self.panel.open()

    def reload_while_busy(self) -> None:
        self.notebook.cell("import time; print('now busy', flush=True); time.sleep(12)", wait=False)
        eventually("the cell runs", lambda: "now busy" in self.notebook.outputs_text())
        self.reload()

    def hold(self) -> None:
        self.notebook.cell("import ctypes; ctypes.PyDLL(None).sleep(9)", wait=False)

    def restart(self) -> None:
        with self.panel.reconnects():  # the extension is loaded again without a click
            self.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.restartKernel()")

    def sever(self) -> None:
        self.wire.sever()
        self.panel.wait_state("reconnecting")
        self.wire.cut = False

    def hide(self) -> None:
        self.panel.hide()
        self.notebook.cell("1 + 1")
        self.panel.open()

    def unload(self) -> None:
        self.notebook.cell("%unload_ext jupyter_amltrain\n%load_ext jupyter_amltrain")

    def check(self) -> None:
        """A run that is submitted and canceled now is shown so, and so is every other."""
        self.panel.wait_state("ready")
        self.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.info")
        self.notebook.cell(
            "import jupyter_amltrain as aml\nrun = aml.submit('pass', target='long', name='probe')\nrun.cancel()"
        )
        note = (
            "import json\nfrom jupyter_amltrain import api\n"
            "print('TOLD', json.dumps({r.handle: r.state for r in api.runs()}))"
        )
        self.notebook.cell(note)

        def same() -> bool:
            line = [text for text in self.notebook.outputs_text().splitlines() if text.startswith("TOLD")][-1]
            known = json.loads(line[5:])
            shown, count = self.page.evaluate(SHOWN)
            newest = next(iter(known))  # rows out of view are not in the page
            if shown.get(newest) == known[newest] and shown.items() <= known.items() and count == str(len(known)):
                return True
            self.last = (shown, count, known)
            self.notebook.cell(note)
            self.page.wait_for_timeout(300)
            return False

        try:
            eventually("the panel says what the kernel knows", same)
        except AssertionError:
            print(*self.last, sep="\n", flush=True)
            raise


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_panel_after_twenty_disturbances_recovers(browser: Browser, lab: LabServer) -> None:
    seed = int(os.environ.get("AMLTRAIN_SOAK_SEED", "20261121"))
    chance = random.Random(seed)
    page = browser.new_page(viewport={"width": 1200, "height": 950})
    page.set_default_timeout(MS)
    name = lab.write("soak.ipynb", [])
    wire = Wire(page)
    it = Disturbed(page, load_page(page, lab, name), wire, name)
    it.panel.open().connect()
    kinds = [it.reload, it.reload_while_busy, it.hold, it.restart, it.sever, it.hide, it.unload]
    order = [*kinds, *(chance.choice(kinds) for _ in range(20 - len(kinds)))]
    chance.shuffle(order)
    for number, disturb in enumerate(order):
        print(f"{number}: {disturb.__name__}", flush=True)
        disturb()
        it.check()
    page.close()
