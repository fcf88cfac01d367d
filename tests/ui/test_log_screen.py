"""A log shows what a terminal shows, in the log tab and in an output: the same lines, in colors that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.ui.lab import MS, LabServer, NotebookPage, eventually, open_notebook
from tests.ui.panel import PanelPage
from tests.ui.scripted_run import ScriptedRun

pytestmark = pytest.mark.thorough

THEMES = ("JupyterLab Light", "JupyterLab Dark")
COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
STYLES = "\x1b[1mbold\x1b[22m \x1b[2mdim\x1b[22m \x1b[3mitalic\x1b[23m \x1b[4munderlined\x1b[24m "
RAINBOW = "".join(
    [
        "plain <b>first</b>\n",
        *(f"\x1b[{30 + k}m{name}\x1b[0m \x1b[{90 + k}mintense\x1b[0m " for k, name in enumerate(COLORS)),
        "\n",
        *(f"\x1b[{40 + k}m on {name} \x1b[37m white \x1b[0m " for k, name in enumerate(COLORS)),
        *(f"\x1b[{100 + k}m on {name} \x1b[31m red \x1b[0m " for k, name in enumerate(COLORS)),
        f"\n{STYLES}\x1b[7minverse\x1b[27m \x1b[31;7minverse red\x1b[0m ",
        "\x1b[38;5;208morange\x1b[0m \x1b[1;37;41mERROR\x1b[0m\n",
    ]
)
#: Moves the tab in front to the right of the notebook, so that both are seen.
BESIDE = "() => jupyterapp.shell.add(jupyterapp.shell.currentWidget, 'main', { mode: 'split-right' })"
CLOSE = "() => jupyterapp.shell.currentWidget.close()"


class Logs:
    """The log of a run in a tab and in the output of its cell."""

    def __init__(self, notebook: NotebookPage, panel: PanelPage, handle: str) -> None:
        self.output = notebook.page.locator(f".jp-AmlRun:has-text('{handle}') .jp-AmlRun-log pre").first
        panel.command("run-logs", handle=handle)
        notebook.page.evaluate(BESIDE)
        self.tab = notebook.page.locator(".jp-AmlLog:visible .jp-AmlLog-text")
        expect(self.tab).to_be_visible(timeout=MS)

    def lines(self) -> tuple[list[str], list[str]]:
        """Lines in the tab and in the output."""
        tab = self.tab.evaluate("node => [...node.children].map(line => line.textContent)")
        return tab, str(self.output.evaluate("node => node.textContent")).removesuffix("\n").split("\n")

    def wait(self, *lines: str) -> None:
        """Wait until both show exactly these lines."""
        try:
            eventually(f"both logs are {lines}", lambda: self.lines() == (list(lines), list(lines)))
        except BaseException:
            print("shown:", *self.lines(), sep="\n")
            raise


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1700, "height": 900})
    context.set_default_timeout(MS)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> Iterator[NotebookPage]:
    notebook = open_notebook(page, lab, lab.write("log_screen.ipynb", []))
    yield notebook
    notebook.theme(THEMES[0])
    lab.end_runs()


@pytest.fixture(scope="module")
def panel(notebook: NotebookPage) -> PanelPage:
    return PanelPage(notebook.page).open().connect()


def started(notebook: NotebookPage, panel: PanelPage, lab: LabServer, name: str) -> tuple[ScriptedRun, Logs]:
    run = ScriptedRun(notebook, lab, name)
    panel.wait_run(run.handle, "running")
    return run, Logs(notebook, panel, run.handle)


def test_nested_bars_are_the_lines_of_a_terminal(
    notebook: NotebookPage, panel: PanelPage, lab: LabServer, shots: Path
) -> None:
    run, logs = started(notebook, panel, lab, "bars")
    run.say("begin\nouter 0/2\ninner 1/9")
    logs.wait("begin", "outer 0/2", "inner 1/9")
    keep = "(node, name) => { window[name] = node.firstElementChild; }"
    logs.tab.evaluate(keep, "lineOfTab")
    logs.output.evaluate(keep, "lineOfOutput")
    for step in range(2, 10):
        run.say(f"\rinner {step}/9")
    logs.wait("begin", "outer 0/2", "inner 9/9")
    run.say("\x1b[A\router 1/2\n\r\x1b[32minner\x1b[0m 1/9")
    logs.wait("begin", "outer 1/2", "inner 1/9")
    expect(logs.tab.locator(".ansi-green-fg")).to_have_text("inner")
    notebook.page.screenshot(path=shots / "log-bars.png")
    run.say("\r\x1b[K\x1b[A\router 2/2\n\rprinted after\n\n" + "".join(f"\r{k} %" for k in range(101)) + "\n")
    logs.wait("begin", "outer 2/2", "printed after", "", "100 %")
    run.end()
    expect(notebook.page.locator(".jp-AmlLog:visible .jp-AmlLog-state")).to_contain_text("completed", timeout=MS)
    logs.wait("begin", "outer 2/2", "printed after", "", "100 %")
    # A line that has not changed is the same node: the selection of a reader stays.
    assert notebook.page.evaluate("() => lineOfTab.isConnected && lineOfOutput.isConnected")
    panel.page.evaluate(CLOSE)


def color(place: Locator, property_name: str = "color") -> str:
    return str(place.evaluate("(node, name) => getComputedStyle(node).getPropertyValue(name)", property_name))


def test_colors_are_seen_on_both_themes_and_html_is_text(
    notebook: NotebookPage, panel: PanelPage, lab: LabServer, shots: Path
) -> None:
    run, logs = started(notebook, panel, lab, "colors")
    run.say(RAINBOW)
    for log in (logs.tab, logs.output):
        expect(log).to_contain_text("plain <b>first</b>", timeout=MS)
        expect(log.locator(".ansi-red-fg").first).to_have_text("red", timeout=MS)
    logs.output.scroll_into_view_if_needed()
    for theme in THEMES:
        notebook.theme(theme)
        for log in (logs.tab, logs.output):
            red = log.locator(".ansi-red-fg").first
            eventually("the colors of the theme", lambda red=red, log=log: color(red) != color(log))
            found = {color(log.locator(f".ansi-{name}-fg").first) for name in COLORS}
            assert len(found | {color(log)}) == 1 + len(COLORS), (theme, found)
            shades = {color(log.locator(f".ansi-{name}-bg").first, "background-color") for name in COLORS}
            assert len(shades | {"rgba(0, 0, 0, 0)"}) == 1 + len(COLORS), (theme, shades)
            assert color(log.locator(".ansi-bold").first, "font-weight") == "700"
            assert color(log.locator(".ansi-italic"), "font-style") == "italic"
            assert "underline" in color(log.locator(".ansi-underline"), "text-decoration")
            inverse = log.locator(".ansi-default-inverse-bg").first
            assert color(inverse, "background-color") not in (color(inverse), "rgba(0, 0, 0, 0)")
        notebook.page.screenshot(path=shots / f"log-colors-{theme[11:]}.png")
    run.end()
    panel.page.evaluate(CLOSE)
