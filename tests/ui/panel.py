"""The side panel of a page, as a person uses it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.ui.lab import DEADLINE, MS, eventually

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


#: Cells that flashed since then, by the text of their editor.
WATCH_FLASHES = """
() => {
  window.amlFlashes = [];
  window.amlFlashing?.disconnect();
  window.amlFlashing = new MutationObserver(all => all.forEach(({target}) => {
    if (target.classList.contains('jp-AmlFlash')) {
      window.amlFlashes.push(target);  // its editor may be attached later
    }
  }));
  window.amlFlashing.observe(document.body, {subtree: true, attributes: true, attributeFilter: ['class']});
}
"""


#: Texts of all notifications that were ever shown: also those that closed themselves.
RECORD_TOASTS = """
() => {
  if (window.amlToasts) { return; }
  window.amlToasts = [];
  const record = () => document.querySelectorAll('.jp-toastContainer .Toastify__toast').forEach(toast => {
    if (toast.amlText !== toast.textContent) {
      toast.amlText = toast.textContent;
      window.amlToasts.push(toast.amlText);
    }
  });
  new MutationObserver(record).observe(document, {subtree: true, childList: true, characterData: true});
  record();
}
"""


#: What JupyterLab says of the kernel of the notebook in front.
KERNEL_STATE = """
() => {
  const context = jupyterapp.shell.currentWidget?.sessionContext;
  const kernel = context?.session?.kernel;
  return [context?.kernelDisplayStatus, kernel?.status, kernel?.connectionStatus, kernel?.isDisposed];
}
"""


class PanelPage:
    """See the module's docstring."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.add_init_script(f"({RECORD_TOASTS})()")
        page.evaluate(RECORD_TOASTS)
        self.node = page.locator("#jupyter-amltrain-panel")
        self.state_view = self.node.locator(".jp-AmlState")
        self.rows = self.node.locator(".jp-AmlRuns-row")
        self.targets = self.node.locator(".jp-AmlTarget")
        self.submit = self.node.locator(".jp-AmlSubmit")
        self.gpus = self.node.locator(".jp-AmlGpus")
        self.status_item = page.locator(".jp-AmlStatus-text")

    def command(self, name: str, **args: Any) -> None:
        """Execute one of the extension's commands without waiting for its dialogs."""
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

    def wait_state(self, state: str, deadline: float = DEADLINE) -> None:
        """Wait for a connection state."""
        try:
            eventually(f"the panel is {state}, not {self.state}", lambda: self.state == state, deadline)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.state}, JupyterLab: {self.page.evaluate(KERNEL_STATE)}") from None

    @contextlib.contextmanager
    def reconnects(self) -> Iterator[None]:
        """Wait at the end until the panel has lost its connection, however shortly, and is ready again."""
        self.page.evaluate(
            """() => {
                const panel = document.getElementById('jupyter-amltrain-panel');
                window.amlStates = [];
                window.amlObserver?.disconnect();
                window.amlObserver = new MutationObserver(() => {
                    if (panel.dataset.state !== 'ready') { window.amlStates.push(panel.dataset.state); }
                });
                window.amlObserver.observe(panel, { attributeFilter: ['data-state'] });
            }"""
        )
        yield
        eventually("the panel sees the change", lambda: self.page.evaluate("() => window.amlStates.length"))
        self.wait_state("ready")

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
        """A button for the selected run, in the toolbar of the section or below the list."""
        return self.node.locator(f"[data-command='jupyter-amltrain:{command}']")

    def confirm(self, label: str | re.Pattern[str]) -> str:
        """Agree to the open dialog by the button `label`; returns what it asked."""
        dialog = self.page.locator(".jp-Dialog")
        text = dialog.inner_text()
        dialog.get_by_role("button", name=label).click()
        expect(dialog).to_have_count(0, timeout=MS)
        return text

    def filter(self, words: str = "", state: str = "all") -> str:
        """List only some runs; what the count says of them."""
        self.node.locator(".jp-AmlRuns-words").fill(words)
        self.node.locator(".jp-AmlRuns-states").select_option(state)
        return self.node.locator(".jp-AmlRuns-count").inner_text()

    def selected(self) -> list[str]:
        """Handles of the selected rows in view, from above."""
        chosen: list[str] = self.node.locator(".jp-AmlRuns-row[aria-selected='true']").evaluate_all(
            "rows => rows.map(row => row.dataset.handle)"
        )
        return [handle for handle in self.handles() if handle in chosen]

    def press(self, *keys: str) -> None:
        """Press keys with the focus on the list of runs."""
        rows = self.node.locator(".jp-AmlRuns-rows")
        rows.focus()
        for key in keys:
            rows.press(key)

    def menu(self, handle: str) -> Locator:
        """Open the context menu of a row."""
        self.row(handle).click(button="right")
        menu = self.page.locator(".lm-Menu")
        expect(menu).to_be_visible(timeout=MS)
        return menu

    def choose(self, handle: str, label: str) -> None:
        """Choose an item of a row's context menu."""
        self.menu(handle).get_by_text(label, exact=True).click()

    def dialog(self) -> Locator:
        """The open question."""
        found = self.page.locator(".jp-Dialog")
        expect(found).to_be_visible(timeout=MS)
        return found

    def toast(self, text: str) -> Locator:
        """The notification that has this text, once it was shown; it may have closed itself since."""
        eventually(f"a notification says {text!r}", lambda: any(text in shown for shown in self.notifications()))
        return self.page.locator(".jp-toastContainer .Toastify__toast", has_text=text)

    def quiet(self) -> None:
        """Dismiss every notification, and forget those before."""
        self.page.locator(".jp-toastContainer .jp-Notification-Toast-Close").evaluate_all(
            "buttons => buttons.forEach(button => button.click())"
        )
        expect(self.page.locator(".jp-toastContainer .Toastify__toast")).to_have_count(0, timeout=MS)
        self.page.evaluate("() => { window.amlToasts = []; }")

    def drag_to_width(self, width: int) -> None:
        """Drag the edge of the left area until the panel is so many CSS pixels wide."""
        box = self.node.bounding_box()
        assert box is not None
        edge = box["x"] + box["width"]
        self.page.mouse.move(edge + 1, box["y"] + box["height"] / 2)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + width + 1, box["y"] + box["height"] / 2, steps=4)
        self.page.mouse.up()

    def time_to_cancel(self, handle: str) -> float:
        """Milliseconds from the confirmed click to the row that says canceled."""
        self.select(handle)
        self.action("run-cancel").click()
        self.page.locator(".jp-Dialog").get_by_role("button", name="Cancel run").wait_for()
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

    def record_flashes(self) -> Callable[[], list[str]]:
        """Watch for cells that flash: their sources."""
        self.page.evaluate(WATCH_FLASHES)
        sources = "() => window.amlFlashes.map(cell => cell.querySelector('.cm-content')?.innerText ?? '')"
        return lambda: [str(source) for source in self.page.evaluate(sources)]

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

    @property
    def outcome(self) -> Locator:
        """What came of the last act on a target."""
        return self.node.locator(".jp-AmlOutcome")

    @property
    def new_target(self) -> Locator:
        """The form for a new target."""
        return self.page.locator(".jp-AmlDialog .jp-AmlNew")

    @property
    def connect_workspace(self) -> Locator:
        """The form that connects a workspace."""
        return self.page.locator(".jp-AmlDialog .jp-AmlConnect")

    def workspace(self, name: str) -> Locator:
        """The row of one connected workspace."""
        return self.node.locator(f".jp-AmlWorkspace[data-workspace='{name}']")

    def act(self, name: str, verb: str) -> Locator:
        """A button in the open details of a target."""
        return self.target(name).locator(f".jp-AmlTarget-acts [data-verb='{verb}']")

    @staticmethod
    def field(form: Locator, name: str) -> Locator:
        """A field of a form with its label, help and error."""
        return form.locator(f".jp-AmlForm-field[data-field='{name}']")

    def fill(self, form: Locator, **values: str) -> None:
        """Type or choose values of a form."""
        for name, value in values.items():
            given = self.field(form, name).locator("input, select").last
            if given.evaluate("node => node.tagName") == "SELECT":
                given.select_option(value)
            else:
                given.fill(value)

    def error(self, form: Locator, name: str) -> Locator:
        """The error below a field."""
        return self.field(form, name).locator(".jp-AmlForm-error")

    # ---- its look

    def section(self, title: str, open: bool = True) -> Locator:
        """Expand (or collapse) a section by its title; returns the title."""
        names = "(GPUs|Resources)" if title == "GPUs" else title
        found = self.node.locator(".jp-AccordionPanel-title", has_text=re.compile(f"^{names}"))
        if (found.get_attribute("aria-expanded") == "true") != open:
            found.click(position={"x": 30, "y": 12})  # at its middle there may be a button
        expect(found).to_have_attribute("aria-expanded", str(open).lower(), timeout=MS)
        return found

    def width(self, pixels: int) -> None:
        """Drag the edge of the sidebar until the panel is so wide."""

        def reached() -> bool:
            box = self.node.bounding_box()
            handle = self.page.locator("#jp-main-split-panel > .lm-SplitPanel-handle:not(.lm-mod-hidden)").first
            at = handle.bounding_box()
            if box is None or at is None:  # while a theme is being loaded
                return False
            if abs(box["width"] - pixels) < 2:
                return True
            x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2
            self.page.mouse.move(x, y)
            self.page.mouse.down()
            self.page.mouse.move(x + pixels - box["width"], y, steps=4)
            self.page.mouse.up()
            return False

        # A theme that comes just now moves the edge away from under the mouse.
        eventually(f"the panel is {pixels} px wide", reached)

    def notifications(self) -> list[str]:
        """Texts of all notifications that JupyterLab has shown, newest last; those that have closed themselves, too."""
        return [str(text).strip() for text in self.page.evaluate("() => window.amlToasts ?? []")]

    def settle(self, seconds: float = 0.6) -> None:
        """Let what was begun in the page be drawn, for a screenshot."""
        self.page.wait_for_timeout(1000 * seconds)


def now() -> float:
    """Seconds, for measuring in tests."""
    return time.monotonic()
