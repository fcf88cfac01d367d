"""The board of a sweep, drawn from a saved record, with no kernel."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from jupyter_amltrain.schema.record import RECORD_MIME, RunRecord
from tests.output.sweep_records import board, ended, sweep_record
from tests.ui.axe import axe
from tests.ui.lab import MS, LabServer, NotebookPage, code_cell, eventually, open_notebook, run_output

SIMULATED_RUN = Path(__file__).parent / "simulated_run.py"

#: Displays the sweep in `sweep.json` and knows two of its trials.
PLAY = """\
import json, time, simulated_run
from IPython.display import display
simulated_run.install()
sweep = {**json.load(open("sweep.json")), "seen_at": time.time()}
for handle in ("local/trial-5", "local/trial-40"):
    simulated_run.runs[handle] = {**simulated_run.record(), "handle": handle, "name": handle}
simulated_run.runs[sweep["handle"]] = sweep
display(simulated_run.bundle(sweep), raw=True)
"""

ROWS = "tbody tr[data-trial]"
NUMBERS = "rows => rows.map(row => Number(row.dataset.trial))"


def output(record: RunRecord) -> dict[str, Any]:
    return run_output(msgspec.to_builtins(record))


@pytest.fixture(scope="module")
def notebook(page: Page, lab: LabServer) -> Iterator[NotebookPage]:
    cells = [code_cell("# ended", [output(ended())]), code_cell("# live", [output(sweep_record())])]
    found = open_notebook(page, lab, lab.write("sweep.ipynb", cells, kernel=None), kernel=False)
    expect(found.runs).to_have_count(2, timeout=MS)
    yield found
    found.close()


@pytest.fixture
def run(notebook: NotebookPage) -> Iterator[Locator]:
    found = notebook.runs.first
    found.scroll_into_view_if_needed()
    yield found
    if found.locator(".jp-AmlSweep-clear").is_visible():
        found.locator(".jp-AmlSweep-clear").click()


def update(notebook: NotebookPage, cell: int, record: RunRecord) -> None:
    """Replace the record of an output in the notebook, as an update of the kernel does."""
    notebook.page.evaluate(
        """([cell, mime, record]) => {
            const outputs = jupyterapp.shell.currentWidget.content.model.cells.get(cell).outputs;
            const old = outputs.get(0).toJSON();
            outputs.set(0, { ...old, data: { ...old.data, [mime]: record } });
        }""",
        [cell, RECORD_MIME, msgspec.to_builtins(record)],
    )


def test_saved_board_replaces_charts_of_driver(run: Locator) -> None:
    expect(run.locator(".jp-AmlSweep-counts")).to_contain_text("40 of 40 trials")
    expect(run.locator(".jp-AmlSweep-best")).to_contain_text("trial")
    expect(run.locator("[data-series]")).to_have_count(0)
    expect(run.locator(ROWS)).to_have_count(40)
    values = run.locator(f"{ROWS} td[data-key=value]").evaluate_all(
        "cells => cells.map(c => parseFloat(c.lastChild.data))"
    )
    known = [value for value in values if value == value]
    assert known == sorted(known, reverse=True), "best first"
    expect(run.locator(f"{ROWS}.jp-mod-best")).to_have_count(1)
    expect(run.locator(".jp-AmlSweep-importanceList li").first).to_contain_text("61 %")


def test_sort_and_filters_change_rows(run: Locator) -> None:
    heading = run.locator("th[data-key=number]")
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    assert run.locator(ROWS).evaluate_all(NUMBERS) == list(range(1, 41))
    heading.get_by_role("button").click()
    assert run.locator(ROWS).evaluate_all(NUMBERS) == list(range(40, 0, -1))
    run.get_by_label("Filter trials by state").select_option("failed")
    failed = run.locator(ROWS)
    expect(failed.first.locator("td[data-key=reason]")).to_contain_text("out of memory")
    expect(run.locator(".jp-AmlSweep-count")).to_have_text(f"{failed.count()} of 40 trials")
    run.get_by_label("Filter trials by state").select_option("")
    run.get_by_label("Filter trials by text").fill("optimizer=sgd layers=3")
    assert 0 < run.locator(ROWS).count() < 20
    run.get_by_label("Filter trials by text").press("Escape")
    expect(run.locator(ROWS)).to_have_count(40)
    run.locator("th[data-key=value]").get_by_role("button").click()


def test_brushes_of_several_axes_combine(run: Locator, notebook: NotebookPage, shots: Path) -> None:
    page = notebook.page
    mouse = page.mouse

    def drag(axis: str, start: float, end: float) -> None:
        box = run.locator(f".jp-AmlSweep-axisHit[data-axis='{axis}']").bounding_box()
        assert box is not None
        x = box["x"] + box["width"] / 2
        mouse.move(x, box["y"] + start * box["height"])
        mouse.down()
        mouse.move(x, box["y"] + end * box["height"], steps=4)
        mouse.up()

    rows = run.locator(ROWS)
    drag("", 0.0, 0.3)
    first = rows.count()
    assert 0 < first < 40
    drag("layers", 0.26, 0.49)
    page.screenshot(path=shots / "sweep-brushed.png")
    assert 0 < rows.count() < first
    assert set(rows.locator("td[data-key='param layers']").all_inner_texts()) == {"3"}
    expect(run.locator(".jp-AmlSweep-curve.jp-mod-selected")).not_to_have_count(0)
    further = run.get_by_role("button", name="Copy line to continue")
    line = further.get_attribute("title") or ""
    assert line.startswith("%aml_sweep --continue local/") and "layers=choice(3)" in line and "loss" not in line
    page.keyboard.press("Escape")
    expect(further).not_to_have_attribute("title", re.compile("--param"))
    run.locator(".jp-AmlSweep-parallelPlot").dblclick(position={"x": 90, "y": 80})
    expect(rows).to_have_count(40)


def test_axis_is_selected_by_keyboard(run: Locator, notebook: NotebookPage) -> None:
    handle = run.get_by_role("slider", name="lr: lowest")
    handle.focus()
    for _ in range(3):
        notebook.page.keyboard.press("PageUp")
    expect(run.locator(ROWS)).not_to_have_count(40)
    assert float(handle.get_attribute("aria-valuenow") or 0) > float(handle.get_attribute("aria-valuemin") or 0)
    notebook.page.keyboard.press("ArrowRight")
    expect(run.get_by_role("slider", name="lr: highest")).to_be_focused()
    notebook.page.keyboard.press("Escape")
    expect(run.locator(ROWS)).to_have_count(40)


def test_update_keeps_rows_scroll_and_focus(notebook: NotebookPage) -> None:
    run = notebook.runs.nth(1)
    run.scroll_into_view_if_needed()
    run.evaluate(
        """run => {
            run.querySelectorAll('tr[data-trial], .jp-AmlSweep-scroll, figure, th').forEach(node => (node.kept = true));
            run.querySelector('.jp-AmlSweep-scroll').scrollTop = 200;
            run.querySelector('th button').focus();
        }"""
    )
    heights = "run => [...run.querySelectorAll('figure')].map(node => node.offsetHeight)"
    before = run.evaluate(heights)
    live = board()
    value = tuple(0.99 if number == 40 else old for number, old in zip(live.number, live.value, strict=True))
    state = tuple("completed" if number == 40 else old for number, old in zip(live.number, live.state, strict=True))
    update(notebook, 1, sweep_record(board(value=value, state=state, best=39)))
    expect(run.locator(ROWS).first).to_have_attribute("data-trial", "40")
    expect(run.locator(ROWS).first).to_have_attribute("data-state", "completed")
    kept = "tr[data-trial], .jp-AmlSweep-scroll, figure, th"
    lost = run.locator(kept).evaluate_all("nodes => nodes.filter(node => !node.kept).length")
    assert lost == 0, "the update has rebuilt nodes"
    assert run.locator(".jp-AmlSweep-scroll").evaluate("node => node.scrollTop") == 200
    assert run.evaluate("run => run.querySelector('th button') === document.activeElement")
    assert run.evaluate(heights) == before
    update(notebook, 1, sweep_record())


def test_hover_links_row_and_curve(run: Locator, shots: Path) -> None:
    run.locator(f"{ROWS}[data-state='completed']").nth(2).hover()
    expect(run.locator(".jp-AmlSweep-curve.jp-mod-over")).not_to_have_attribute("d", "")
    expect(run.locator(".jp-AmlSweep-overLine")).not_to_have_attribute("d", "")
    expect(run.locator(".jp-AmlSweep-hoverMark")).to_have_count(1)
    run.locator(".jp-AmlSweep-bestChart svg").hover(position={"x": 160, "y": 40})
    expect(run.locator(".jp-AmlSweep-bestChart .jp-AmlRun-hover")).to_contain_text("optimizer")
    run.page.screenshot(path=shots / "sweep-hover.png")


@pytest.mark.thorough
def test_board_has_no_serious_accessibility_violation(notebook: NotebookPage) -> None:
    assert axe(notebook.page, ".jp-AmlRun") == []


@pytest.mark.thorough
def test_board_of_thousand_trials_has_few_rows(notebook: NotebookPage, lab: LabServer, shots: Path) -> None:
    page = notebook.page
    cells = [code_cell("# many", [output(ended(1000))])]
    start = time.monotonic()
    many = open_notebook(page, lab, lab.write("many.ipynb", cells, kernel=None), kernel=False)
    run = many.runs.first
    expect(run.locator(ROWS).first).to_be_visible(timeout=MS)
    opened = time.monotonic() - start
    assert run.locator(ROWS).count() < 60
    # The same record once more, painted from its arrival.
    record = msgspec.to_builtins(ended(1000))
    paint = """([mime, record]) => new Promise(done => {
        const outputs = jupyterapp.shell.currentWidget.content.model.cells.get(0).outputs;
        const old = outputs.get(0).toJSON();
        outputs.clear();
        const start = performance.now();
        outputs.add({ ...old, data: { ...old.data, [mime]: record } });
        const look = () => document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-AmlSweep-lines path')
            ? requestAnimationFrame(() => done(performance.now() - start)) : requestAnimationFrame(look);
        look();
    })"""
    first = page.evaluate(paint, [RECORD_MIME, record])
    change = """([mime, record]) => new Promise(done => {
        const outputs = jupyterapp.shell.currentWidget.content.model.cells.get(0).outputs;
        const old = outputs.get(0).toJSON();
        record.sweep.value[3] = 0.123;
        const start = performance.now();
        outputs.set(0, { ...old, data: { ...old.data, [mime]: record } });
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
    })"""
    later = page.evaluate(change, [RECORD_MIME, record])
    print(f"1,000 trials: opened in {opened:.1f} s, first paint {first:.0f} ms, update {later:.0f} ms")
    run.locator(".jp-AmlSweep-scroll").evaluate("node => (node.scrollTop = node.scrollHeight)")
    expect(run.locator(ROWS).last).to_have_attribute("aria-rowindex", "1001")
    page.screenshot(path=shots / "sweep-many.png")
    many.close()


@pytest.mark.thorough
def test_board_screenshots(notebook: NotebookPage, run: Locator, shots: Path) -> None:
    page = notebook.page
    sizes = {"light": (1200, "Light"), "dark": (1200, "Dark"), "narrow": (550, "Light"), "narrow-dark": (550, "Dark")}
    page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area')")
    try:
        for name, (width, theme) in sizes.items():
            notebook.theme(f"JupyterLab {theme}")
            page.set_viewport_size({"width": width, "height": 1350 if width > 600 else 1900})
            expect(page.locator("#jupyterlab-splash, .jp-Splash")).to_have_count(0, timeout=MS)
            page.wait_for_timeout(800)  # the splash fades out; for the picture only
            for i, kind in enumerate(("ended", "live")):
                each = notebook.runs.nth(i)
                each.scroll_into_view_if_needed()
                each.locator(".jp-AmlSweep-scroll").evaluate("node => (node.scrollTop = 0)")
                scroll, client = each.evaluate("node => [node.scrollWidth, node.clientWidth]")
                assert scroll <= client, "wider than its output area"
                each.screenshot(path=shots / f"sweep-{kind}-{name}.png")
    finally:
        page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area')")
        page.set_viewport_size({"width": 1200, "height": 950})
        notebook.theme("JupyterLab Light")


@pytest.mark.thorough
def test_trial_is_opened_and_canceled(page: Page, lab: LabServer, shots: Path) -> None:
    (lab.notebooks / "simulated_run.py").write_text(SIMULATED_RUN.read_text())
    (lab.notebooks / "sweep.json").write_bytes(msgspec.json.encode(sweep_record()))
    notebook = open_notebook(page, lab, lab.write("live-sweep.ipynb", [code_cell("# a notebook")]))
    try:
        notebook.cell(PLAY)
        run = notebook.runs.first
        row = run.locator(f"{ROWS}[data-trial='5']")
        expect(row.get_by_role("button", name="Trial 5")).to_be_enabled(timeout=MS)
        row.locator("td[data-key=state]").click()
        inner = run.locator(".jp-AmlRun-trialSlot .jp-AmlRun")
        expect(inner.locator(".jp-AmlRun-name")).to_have_text("local/trial-5", timeout=MS)
        expect(row.get_by_role("button", name="Trial 5")).to_have_attribute("aria-expanded", "true")
        page.screenshot(path=shots / "sweep-trial.png")
        row.get_by_role("button", name="Trial 5").click()
        expect(inner).to_have_count(0)
        run.get_by_role("button", name="Cancel trial 40").click()
        page.locator(".jp-Dialog").get_by_role("button", name="Cancel run").click()
        state = run.locator(f"{ROWS}[data-trial='40'] td[data-key=state]")
        expect(state).to_have_attribute("title", "canceling", timeout=MS)
        expect(run.get_by_role("button", name="Cancel trial 40")).to_be_hidden()
        notebook.cell("print('requests:', *simulated_run.operations)")
        eventually("the kernel has the request", lambda: " cancel" in notebook.outputs_text())
        page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
        run.get_by_role("button", name="Copy parameters").click()
        expect(page.get_by_text("--param layers=3").first).to_be_visible(timeout=MS)
    finally:
        notebook.close()
