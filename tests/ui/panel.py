"""The side panel of a page, as a person uses it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.ui.lab import MS, eventually

#: Milliseconds since 1970 at which the mark of the target in use moved, and to which.
WATCH_CURRENT = """
() => {
  const list = document.querySelector('.jp-AmlCompute-list');
  const current = () => list.querySelector('.jp-AmlTarget.jp-mod-current')?.dataset.target;
  window.amlCurrent = [[0, current()]];
  new MutationObserver(() => {
    const now = current();
    if (now && now !== window.amlCurrent.at(-1)[1]) { window.amlCurrent.push([Date.now(), now]); }
  }).observe(list, {subtree: true, childList: true, attributes: true});
}
"""


class PanelPage:
    """See the module's docstring."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.node = page.locator("#jupyter-amltrain-panel")
        self.state_view = self.node.locator(".jp-AmlState")
        self.rows = self.node.locator(".jp-AmlRuns-row")
        self.targets = self.node.locator(".jp-AmlTarget")
        self.submit = self.node.locator(".jp-AmlSubmit")
        self.gpus = self.node.locator(".jp-AmlGpus")
        self.status_item = page.locator(".jp-AmlStatus-text")

    def command(self, name: str, **args: Any) -> None:
        """Execute a command of ours without waiting for its dialogs."""
        self.page.evaluate(
            "([id, args]) => void jupyterapp.commands.execute('jupyter-amltrain:' + id, args)", [name, args]
        )

    def enabled(self, name: str, **args: Any) -> bool:
        """Whether a command can be executed now."""
        return bool(
            self.page.evaluate(
                "([id, args]) => jupyterapp.commands.isEnabled('jupyter-amltrain:' + id, args)", [name, args]
            )
        )

    def open(self) -> PanelPage:
        """Show the panel."""
        self.command("open")
        expect(self.node).to_be_visible(timeout=MS)
        return self

    def hide(self) -> None:
        """Show the file browser in its place."""
        self.page.evaluate("() => jupyterapp.shell.activateById('filebrowser')")
        expect(self.node).to_be_hidden(timeout=MS)

    @property
    def state(self) -> str:
        """How it stands with the kernel."""
        return self.node.get_attribute("data-state") or ""

    def wait_state(self, state: str, deadline: float = 90.0) -> None:
        """Wait for a connection state."""
        eventually(f"the panel is {state}, not {self.state}", lambda: self.state == state, deadline)

    def connect(self) -> PanelPage:
        """Press Connect where it is offered, and wait until all is well."""
        self.wait_state("not-loaded")
        self.state_view.get_by_role("button", name="Connect").click()
        self.wait_state("ready")
        return self

    # ---- runs

    def row(self, handle: str) -> Locator:
        """The row of one run; rows out of view are not in the page."""
        return self.node.locator(f".jp-AmlRuns-row[data-handle='{handle}']")

    def handles(self) -> list[str]:
        """Handles of the rows in view, from above."""
        found: list[tuple[float, str]] = self.rows.evaluate_all(
            "rows => rows.filter(r => !r.hidden).map(r => [r.getBoundingClientRect().top, r.dataset.handle])"
        )
        return [handle for _, handle in sorted(found)]

    def wait_run(self, handle: str, state: str) -> None:
        """Wait until a run's row says `state`."""
        expect(self.row(handle)).to_have_attribute("data-state", state, timeout=MS)

    def select(self, handle: str, *more: str) -> None:
        """Click a row, and add others to the selection."""
        self.row(handle).click()
        for other in more:
            self.row(other).click(modifiers=["Control"])

    def action(self, command: str) -> Locator:
        """A button below the list, for the selected run."""
        return self.node.locator(f".jp-AmlRuns-action[data-command='jupyter-amltrain:{command}']")

    def confirm(self, label: str | re.Pattern[str]) -> str:
        """Agree to the open dialog by the button `label`; returns what it asked."""
        dialog = self.page.locator(".jp-Dialog")
        text = dialog.inner_text()
        dialog.get_by_role("button", name=label).click()
        expect(dialog).to_have_count(0, timeout=MS)
        return text

    def time_to_cancel(self, handle: str) -> float:
        """Milliseconds from the confirmed click to the row that says canceled."""
        self.select(handle)
        self.action("run-cancel").click()
        self.page.locator(".jp-Dialog").get_by_role("button", name="Cancel Run").wait_for()
        took: float = self.page.evaluate(
            """async handle => {
                const row = document.querySelector(`.jp-AmlRuns-row[data-handle="${handle}"]`);
                const seen = new Promise(resolve => {
                    const look = new MutationObserver(() => row.dataset.state === 'canceled' && resolve());
                    look.observe(row, {attributes: true});
                });
                const begin = performance.now();
                document.querySelector('.jp-Dialog .jp-mod-warn').click();
                await seen;
                return performance.now() - begin;
            }""",
            handle,
        )
        return took

    # ---- targets

    def target(self, name: str) -> Locator:
        """The row of one target."""
        return self.node.locator(f".jp-AmlTarget[data-target='{name}']")

    def use(self, name: str) -> None:
        """Make a target the one in use by its command."""
        self.command("target-use", target=name)

    def record_current(self) -> Callable[[], list[tuple[float, str]]]:
        """Watch the mark of the target in use: seconds since 1970 and its name, for each move."""
        self.page.evaluate(WATCH_CURRENT)
        return lambda: [(at / 1000, name) for at, name in self.page.evaluate("() => window.amlCurrent")]

    def expand(self, name: str) -> Locator:
        """Show the details of a target."""
        row = self.target(name)
        if row.locator(".jp-AmlTarget-detail").is_hidden():
            row.locator(".jp-AmlTarget-summary").click()
        return row

    def notifications(self) -> list[str]:
        """Messages of JupyterLab's notifications, newest last."""
        return [text.strip() for text in self.page.locator(".jp-toastContainer .jp-toast-message").all_inner_texts()]

    def settle(self, seconds: float = 0.6) -> None:
        """Let what was begun in the page be drawn, for a screenshot."""
        self.page.wait_for_timeout(1000 * seconds)


def now() -> float:
    """Seconds, for measuring in tests."""
    return time.monotonic()
