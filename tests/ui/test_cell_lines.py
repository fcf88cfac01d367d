"""Bars beside the lines of a cell: from a saved record without a kernel, and live."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, load_page, open_notebook, run_output
from tests.ui.panel import PanelPage

DATA = Path(__file__).parent / "data"

LOOP = """%%aml_submit --name digits
import torch
from data import loader, net, optimizer

def step(x, y):
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()

for epoch in range(30):
    for x, y in loader:
        step(x.cuda(), y.cuda())
"""
#: Line, own share, share with calls, part that computes.
SHARES = [
    (6, 0.06, 0.08, 0.9),
    (7, 0.14, 0.14, 0.95),
    (9, 0.03, 0.03, 0.4),
    (12, 0.61, 0.61, 0.04),
    (13, 0.02, 0.25, 0.9),
]


def record_of(cell: str, shares: list[tuple[int, float, float, float]]) -> dict[str, Any]:
    """Return a saved record of a run of a cell."""
    record: dict[str, Any] = json.loads((DATA / "completed.json").read_text())
    code = cell.splitlines()
    rows = [
        [
            str(line),
            f"{share:.0%}",
            f"{total:.0%}",
            f"{work:.0%}",
            "" if work > 0.5 else "DataLoader",
            code[line - 1].strip(),
        ]
        for line, share, total, work in shares
    ]
    marks = [
        {"line": line, "share": share, "total": total, "work": work, "row": row}
        for row, (line, share, total, work) in enumerate(shares)
    ]
    columns = [
        {"title": title, "number": at < 4}
        for at, title in enumerate(["line", "time", "with calls", "GPU", "waits for", "code"])
    ]
    sentence = "61 % of the time in line 12, `for x, y in loader`: the GPU is 4 % busy there."
    table = {"key": "lines", "columns": columns, "rows": rows, "more": 0}
    return {
        **record,
        "lines": {"sentence": sentence, "span": "From 0.0 s to 4 min 12 s.", "table": table, "marks": marks},
    }


def long_cell(lines: int) -> tuple[str, list[tuple[int, float, float, float]]]:
    """Return a cell of many lines, and shares of some of them."""
    code = ["%%aml_submit", "import torch"]
    code += [f"layer{at} = torch.nn.Linear({at}, {at + 1})  # layer {at}" for at in range(3, lines - 3)]
    code += ["for x, y in loader:", "    loss = model(x)", "    loss.backward()"]
    shares = [
        (at, 0.01 + (at % 7) / 100, 0.03 + (at % 7) / 50, (at % 5) / 4) for at in range(9, lines - 8, lines // 12)
    ]
    return "\n".join(code), [*shares, (len(code) - 2, 0.61, 0.61, 0.04), (len(code), 0.22, 0.24, 0.93)]


def bars(cell: Locator) -> Locator:
    return cell.locator(".jp-AmlLines-bar")


def marked_lines(cell: Locator) -> list[int]:
    """Return the numbers of the lines of an editor that have a bar, by their height on the page."""
    tops = cell.locator(".cm-line").evaluate_all("lines => lines.map(line => line.getBoundingClientRect().top)")
    middles = bars(cell).evaluate_all(
        "bars => bars.map(bar => { const at = bar.getBoundingClientRect(); return (at.top + at.bottom) / 2 })"
    )
    return [sum(top <= middle for top in tops) for middle in middles]


@pytest.fixture(scope="module")
def saved(page: Page, lab: LabServer) -> Iterator[NotebookPage]:
    cells = [code_cell(LOOP, [run_output(record_of(LOOP, SHARES))])]
    for lines in (40, 400):
        cell, shares = long_cell(lines)
        cells.append(code_cell(cell, [run_output(record_of(cell, shares))]))
    cells.append(code_cell("%aml_runs attach last", [run_output(record_of(LOOP, SHARES))]))
    found = open_notebook(page, lab, lab.write("lines.ipynb", cells, kernel=None), kernel=False)
    expect(found.runs.first).to_be_visible(timeout=MS)
    yield found
    found.close()


def code_cells(page: Page) -> Locator:
    return page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell")


def test_saved_run_without_kernel_has_bars_that_follow_edits_and_hide(page: Page, saved: NotebookPage) -> None:
    cell, output = code_cells(page).first, saved.runs.first
    expect(bars(cell)).to_have_count(5, timeout=MS)
    eventually("the bars are beside their lines", lambda: marked_lines(cell) == [6, 7, 9, 12, 13])
    expect(bars(cell).nth(3)).to_have_attribute("title", re.compile("time: 61%.*GPU: 4%.*DataLoader", re.DOTALL))
    widths = bars(cell).evaluate_all("bars => bars.map(bar => parseFloat(getComputedStyle(bar, '::after').width))")
    assert widths[3] == max(widths) and widths[3] > 3 * widths[1] > 0
    expect(output.locator(".jp-AmlRun-linesTitle")).to_contain_text("line 12")
    edit = "source => jupyterapp.shell.currentWidget.content.model.cells.get(0).sharedModel.setSource(source)"
    page.evaluate(edit, LOOP.replace("import torch\n", "import torch\n# one more\n").replace("loss.backward()", "pass"))
    eventually("the bars follow their lines", lambda: marked_lines(cell) == [7, 10, 13, 14])
    page.evaluate(edit, LOOP)
    expect(bars(cell)).to_have_count(5)
    output.get_by_role("button", name="Hide bars").click()
    expect(page.locator(".jp-AmlLines")).to_have_count(0)
    output.get_by_role("button", name="Show bars").click()
    expect(bars(cell)).to_have_count(5)
    output.locator(".jp-AmlRun-linesTitle").click()
    expect(output.locator(".jp-AmlRun-linesTable tbody tr")).to_have_count(5)
    chart = output.locator(".jp-AmlRun-chart", has_text="CPU").locator("svg")
    chart.scroll_into_view_if_needed()
    area = chart.bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + 0.4 * area["width"], area["y"] + area["height"] / 2)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.7 * area["width"], area["y"] + area["height"] / 2, steps=5)
    page.mouse.up()
    expect(output.locator(".jp-AmlRun-linesFailure")).to_contain_text("Trust")  # nobody has run it here
    expect(bars(cell)).to_have_count(5)
    assert axe(page, ".jp-AmlRun-lines") == []


@pytest.mark.thorough
def test_bars_look_right_in_both_themes(page: Page, saved: NotebookPage, shots: Path) -> None:
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        saved.theme(theme)
        for at, name in enumerate(("short", "40", "400")):
            cell = code_cells(page).nth(at)
            cell.scroll_into_view_if_needed()
            expect(bars(cell).first).to_be_visible(timeout=MS)
            page.screenshot(path=shots / f"lines-{name}-{theme.split()[1].lower()}.png")
    attached = code_cells(page).nth(3)
    attached.scroll_into_view_if_needed()
    expect(attached.locator(".jp-AmlRun-linesTitle")).to_contain_text("line 12")
    expect(bars(attached)).to_have_count(0)


SLOW = """%%aml_submit --name slow
import time

def work(seconds):
    end = time.time() + seconds
    while time.time() < end:
        sum(range(50))

for step in range(100000):
    time.sleep(0.06)
    work(0.03)
"""


def check_selected_time(page: Page, notebook: NotebookPage, shots: Path) -> None:
    """A part of a live chart is selected with Shift: lines and stacks are those of that time."""
    output = notebook.runs.first
    title = output.locator(".jp-AmlRun-linesTitle")
    chart = output.locator(".jp-AmlRun-figure").first
    expect(chart).to_be_visible(timeout=MS)
    area = chart.locator(".plotarea_background").bounding_box()
    assert area is not None
    page.keyboard.down("Shift")
    page.mouse.move(area["x"] + 0.3 * area["width"], area["y"] + area["height"] / 2)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.6 * area["width"], area["y"] + area["height"] / 2, steps=5)
    expect(output.locator(".jp-AmlRun-brush")).to_be_visible()
    page.screenshot(path=shots / "lines-brush.png")
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(title).to_contain_text("From", timeout=MS)
    expect(output.locator(".jp-AmlRun-stack").first).to_be_visible()
    assert axe(page, ".jp-AmlRun-lines") == []
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.theme(theme)
        page.screenshot(path=shots / f"lines-selected-{theme.split()[1].lower()}.png")
    output.get_by_role("button", name="Show all of the run").click()
    expect(title).not_to_contain_text("From")


@pytest.mark.thorough
def test_running_cell_has_bars_that_stay_after_the_kernel(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("live-lines.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain")
        notebook.cell(SLOW)
        cell = code_cells(page).last
        eventually("the lines are marked", lambda: {10, 11} <= set(marked_lines(cell)))
        first = bars(cell).first.get_attribute("title")
        eventually("the bars are live", lambda: bars(cell).first.get_attribute("title") != first)
        page.screenshot(path=shots / "lines-live.png")
        # Edited while it runs: the bar of the edited line goes, the others stay.
        edit = "text => [...jupyterapp.shell.currentWidget.content.model.cells].at(-1).sharedModel.setSource(text)"
        page.evaluate(edit, SLOW.replace("sleep(0.06)", "sleep(0.02)"))
        eventually("the edited line has none", lambda: 10 not in marked_lines(cell) and 11 in marked_lines(cell))
        page.evaluate(edit, SLOW)
        eventually("it is back", lambda: 10 in marked_lines(cell))
        check_selected_time(page, notebook, shots)
        notebook.save()
        page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        expect(bars(cell).first).to_be_visible()
        name = lab.copy_without_kernel("live-lines.ipynb", "reopened.ipynb")
        load_page(page, lab, name, kernel=False)
        again = code_cells(page).last
        eventually("the saved lines are marked", lambda: {10, 11} <= set(marked_lines(again)))
    finally:
        lab.end_runs()


RERUN = """async () => {
    const panel = jupyterapp.shell.currentWidget;
    panel.content.activeCellIndex = 2;
    panel.content.deselectAll();
    await jupyterapp.commands.execute('notebook:run-cell');
}"""


@pytest.mark.thorough
def test_second_run_of_a_cell_has_the_bars_and_a_killed_kernel_keeps_them(
    page: Page, lab: LabServer, shots: Path
) -> None:
    notebook = open_notebook(page, lab, lab.write("twice.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain\nimport os\nprint('pid', os.getpid())")
        pid = int(notebook.outputs_text().split("pid")[1].split()[0])
        notebook.cell(SLOW)
        cell = code_cells(page).nth(2)
        eventually("the lines of the first run are marked", lambda: {10, 11} <= set(marked_lines(cell)))
        first = notebook.records()[-1]["handle"]
        panel = PanelPage(page).open()
        panel.select(first)
        panel.node.locator("[data-command='lines']").click()
        table = panel.node.locator(".jp-AmlRun-linesTable")
        expect(table.locator("tbody tr").first).to_contain_text("sleep", timeout=MS)
        page.screenshot(path=shots / "lines-panel.png")
        notebook.cancel(notebook.runs.first)
        eventually("the first run has ended", lambda: notebook.records()[-1]["done"])
        page.evaluate(RERUN)
        eventually("a second run", lambda: notebook.records()[-1]["handle"] != first)
        eventually("its lines are marked", lambda: {10, 11} <= set(marked_lines(cell)))
        expect(cell.locator(".jp-AmlLines")).to_have_count(1)
        os.kill(pid, signal.SIGKILL)
        page.locator(".jp-Dialog").get_by_role("button", name="Ok").click()  # JupyterLab restarts it
        expect(bars(cell).first).to_be_visible()
        notebook.wait_for_kernel()
        title = bars(cell).first.get_attribute("title")
        notebook.cell("%load_ext jupyter_amltrain")
        cell.scroll_into_view_if_needed()
        eventually("the bars go on", lambda: bars(cell).first.get_attribute("title") != title)
        page.screenshot(path=shots / "lines-killed.png")
    finally:
        notebook.close()
        lab.end_runs()


SWEEP = """%%aml_sweep --param kind=choice(a,b) --goal "minimize loss" --sampler grid --name swept --gpus 0
import time
import mlflow

def work(seconds):
    end = time.time() + seconds
    while time.time() < end:
        sum(range(50))

for step in range(40):
    time.sleep(0.06)
    work(0.03)
mlflow.log_metric("loss", kind == "b")
"""


@pytest.mark.thorough
def test_opened_trial_has_its_bars_in_the_cell_of_the_sweep(page: Page, lab: LabServer, shots: Path) -> None:
    notebook = open_notebook(page, lab, lab.write("swept.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell("%load_ext jupyter_amltrain")
        notebook.cell(SWEEP)
        cell, run = code_cells(page).last, notebook.runs.first
        expect(run.locator(".jp-AmlRun-state").first).to_have_text("completed", timeout=3 * MS)
        expect(bars(cell)).to_have_count(0)  # a sweep itself runs none of these lines
        row = run.locator("tbody tr[data-trial]").first
        trial = row.get_by_role("button", name="Trial")
        trial.click()
        eventually("the lines of the trial are marked", lambda: {11, 12} <= set(marked_lines(cell)))
        cell.scroll_into_view_if_needed()
        page.screenshot(path=shots / "lines-trial.png")
        trial.click()
        expect(bars(cell)).to_have_count(0)
    finally:
        notebook.close()
        lab.end_runs()
